"""Loops that compute without learning from it, one after the other: those that the arguments name, or LOOPS. Prints for
each, as JSON: the ns of that compute by the loop's own clock, and how much each word of the ledger has grown."""

from __future__ import annotations

import copy
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import whyidle
from whyidle.ledger.causes import CAUSE
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks import attach

STEPS, SECONDS = 12, 0.02
CAUSES = ("evaluation", "rollout", "compute", "host")
net = nn.Linear(16, 4)
spent = [0]


def turn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(200))


def busy() -> None:
    begun = time.monotonic_ns()
    turn(SECONDS)
    spent[0] += time.monotonic_ns() - begun


def batches() -> Iterator[torch.Tensor]:
    """Without a loader that the hooks know."""
    for _ in range(STEPS):
        yield torch.randn(4, 16)


def loader(count: int = STEPS) -> Any:
    return DataLoader(TensorDataset(torch.randn(4 * count, 16)), 4)


def learn(x: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()


@contextmanager
def evaluating() -> Iterator[None]:
    net.eval()
    yield
    net.train()


@torch.no_grad()
def estimate() -> None:
    with evaluating():
        busy()


def by_hand(optimizer: torch.optim.Optimizer) -> None:
    for x in batches():
        learn(x, optimizer)
        with evaluating(), torch.no_grad():
            busy()


def decorated(optimizer: torch.optim.Optimizer) -> None:
    for (x,) in loader():
        learn(x, optimizer)
        estimate()


def with_gradients(optimizer: torch.optim.Optimizer) -> None:
    for (x,) in loader():
        learn(x, optimizer)
        with evaluating():
            busy()


def before_a_long_forward_pass(optimizer: torch.optim.Optimizer) -> None:
    for x in batches():
        with evaluating():
            busy()
        turn(SECONDS)
        learn(x, optimizer)


def other_loader(optimizer: torch.optim.Optimizer) -> None:
    for (x,) in loader():
        learn(x, optimizer)
        for (y,) in loader(1):
            with torch.no_grad():
                net(y)
                busy()


def generation(optimizer: torch.optim.Optimizer) -> None:
    for (x,) in loader():
        with torch.no_grad():
            busy()
        learn(x, optimizer)


def made_in_forward(optimizer: torch.optim.Optimizer) -> None:
    """torch itself switches gradients off, inside a forward pass."""

    class Slow(nn.LazyLinear):
        def reset_parameters(self) -> None:
            if self.in_features:
                busy()

    for (x,) in loader():
        Slow(4)(x)
        learn(x, optimizer)


def samples(optimizer: torch.optim.Optimizer) -> None:
    for (x,) in loader():
        learn(x, optimizer)
        with torch.inference_mode():
            busy()


def switched(optimizer: torch.optim.Optimizer) -> None:
    for x in batches():
        with torch.set_grad_enabled(False):
            busy()
        learn(x, optimizer)


def rollout(optimizer: torch.optim.Optimizer) -> None:
    for x in batches():
        with whyidle.phase("rollout"), torch.no_grad():
            busy()
        learn(x, optimizer)


def collected(optimizer: torch.optim.Optimizer) -> None:
    """Steps of an environment that no library makes. They leave no time for looks, so names decide."""

    def env_step() -> torch.Tensor:
        busy()
        return torch.randn(4, 16)

    for _ in range(STEPS // 4):
        with torch.no_grad():
            x = env_step()
        for _ in range(4):
            learn(x, optimizer)


def collected_after_an_evaluation(optimizer: torch.optim.Optimizer) -> None:
    def rollout() -> torch.Tensor:
        with torch.no_grad():
            busy()
        return torch.randn(4, 16)

    for _ in range(STEPS // 4):
        with evaluating():
            net(torch.randn(4, 16))
        x = rollout()
        for _ in range(4):
            learn(x, optimizer)


def fetched_together(optimizer: torch.optim.Optimizer) -> None:
    """Two batches for each step, taken at once. On each, a reference model runs first."""
    taken = iter(loader())
    for _ in range(STEPS // 2):
        optimizer.zero_grad()
        for (x,) in [next(taken), next(taken)]:
            with torch.no_grad():
                busy()
            net(x).square().mean().backward()
        optimizer.step()


def reentrant(optimizer: torch.optim.Optimizer) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        busy()
        return net(x)

    for x in batches():
        optimizer.zero_grad()
        found: Any = checkpoint(forward, x.requires_grad_(), use_reentrant=True)
        found.square().mean().backward()
        optimizer.step()


def own_optimizer(_: torch.optim.Optimizer) -> None:
    class Slow(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            busy()
            return super().step(closure)

    optimizer = Slow(net.parameters(), 1e-3)
    for x in batches():
        learn(x, optimizer)


def lbfgs(_: torch.optim.Optimizer) -> None:
    optimizer = torch.optim.LBFGS(net.parameters(), 1e-3, max_iter=2)
    for x in batches():

        def closure(x: torch.Tensor = x) -> Any:
            optimizer.zero_grad()
            busy()
            loss = net(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def trained_in_evaluation_mode(optimizer: torch.optim.Optimizer) -> None:
    for x in batches():
        net.eval()
        busy()
        learn(x, optimizer)


def examples(x: torch.Tensor) -> torch.Tensor:
    """Adversarial ones, which are made in three backward passes."""
    for _ in range(3):
        x = x.detach().requires_grad_()
        net(x).square().mean().backward()
        busy()
        assert x.grad is not None
        x = x + x.grad.sign()
    return x.detach()


def attacked(optimizer: torch.optim.Optimizer) -> None:
    for step, (x,) in enumerate(loader()):
        learn(x, optimizer)
        if step % 4 == 3:
            with evaluating():
                for (y,) in loader(5):
                    net(examples(y))
            net.zero_grad()


def learned_from_an_attack(optimizer: torch.optim.Optimizer) -> None:
    for (x,) in loader():
        with evaluating():
            found = examples(x)
        learn(found, optimizer)


def accumulated_from_an_attack(optimizer: torch.optim.Optimizer) -> None:
    """The batch comes in evaluation mode, and each second one updates the weights."""
    taken = iter(loader())
    for step in range(STEPS):
        with evaluating():
            (x,) = next(taken)
            found = examples(x)
        net(found).square().mean().backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()


def accumulated_in_evaluation_mode(optimizer: torch.optim.Optimizer) -> None:
    """As with frozen statistics: training mode comes back only for the next pass over the data."""
    for _ in range(3):
        net.eval()
        for step, (x,) in enumerate(loader(4)):
            net(x).square().mean().backward()
            busy()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
        net.train()


def attacked_in_each_step(optimizer: torch.optim.Optimizer) -> None:
    """The examples are made of another loader's batches, and learned from together with the next batch."""
    others, taken = iter(loader()), iter(loader())
    for step in range(STEPS):
        with evaluating():
            found = next(others)[0].requires_grad_()
            net(found).square().mean().backward()
            if step > 1:
                busy()
        learn(torch.cat((found.detach(), next(taken)[0])), optimizer)


def reduced(optimizer: torch.optim.Optimizer, *, attacks: bool = False) -> None:
    """Trained in evaluation mode with accumulated gradients, and all ranks reduce them; or tested with an attack."""
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    ranks = nn.parallel.DistributedDataParallel(net)

    def passes(batches: Any) -> None:
        for (y,) in batches:
            ranks(y.requires_grad_()).square().mean().backward()
            busy()

    for step, (x,) in enumerate(loader()):
        optimizer.zero_grad()
        ranks(x).square().mean().backward()
        optimizer.step()
        if step % 4 == 3:
            ranks.eval()
            if attacks:
                passes(loader(5))
            else:
                with ranks.no_sync():
                    passes(loader(4))
                passes(loader(1))
                optimizer.step()
            ranks.train()


def attacked_and_reduced(optimizer: torch.optim.Optimizer) -> None:
    reduced(optimizer, attacks=True)


def generator_in_evaluation_mode(optimizer: torch.optim.Optimizer) -> None:
    """Two steps of a discriminator for each step of its generator, which is not trained meanwhile."""
    generator = nn.Linear(16, 16)
    second = torch.optim.SGD(generator.parameters(), lr=1e-3)
    taken = iter(loader(2 * STEPS))
    for _ in range(STEPS):
        for _ in range(2):
            generator.eval()
            (x,) = next(taken)
            learn(x + generator(x), optimizer)
            busy()
            generator.train()
        net(generator(x)).square().mean().backward()
        second.step()
        second.zero_grad()


def other_thread(optimizer: torch.optim.Optimizer) -> None:
    def evaluate() -> None:
        with torch.no_grad():
            busy()

    for x in batches():
        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()
        learn(x, optimizer)


def ahead(loader: Any) -> Iterator[torch.Tensor]:
    """Takes the next batch before it hands on the last one, as loaders do that copy to a device meanwhile."""
    last = None
    for (x,) in loader:
        if last is not None:
            yield last
        last = x
    if last is not None:
        yield last


def fetches_ahead(optimizer: torch.optim.Optimizer) -> None:
    for step, x in enumerate(ahead(loader())):
        learn(x, optimizer)
        if step % 4 == 3:
            with evaluating(), torch.no_grad():
                for _ in ahead(loader(5)):
                    busy()


def second_loader(optimizer: torch.optim.Optimizer) -> None:
    noise = loader(2)
    for (x,) in loader():
        for (y,) in noise:
            net(x + y)
        learn(x, optimizer)


def forces(optimizer: torch.optim.Optimizer) -> None:
    for step, (x,) in enumerate(loader()):
        learn(x, optimizer)
        if step % 4 == 3:
            with evaluating():
                for (y,) in loader(5):
                    torch.autograd.grad(net(y.requires_grad_()).sum(), y)
                    busy()


def energies(x: torch.Tensor) -> None:
    torch.autograd.grad(net(x.requires_grad_()).sum(), x)


def validate(batches: Any) -> None:
    for (x,) in batches:
        begun = time.monotonic_ns()
        energies(x)
        turn(SECONDS)
        spent[0] += time.monotonic_ns() - begun


def validated_forces(optimizer: torch.optim.Optimizer, *, loaded: bool = True) -> None:
    """The model is never put into evaluation mode. The training computes forces, too."""
    for step, (x,) in enumerate(loader()):
        energies(x)
        learn(x, optimizer)
        if step % 4 == 3:
            validate(loader(5) if loaded else [(torch.randn(4, 16),)] * 5)


def forces_by_hand(optimizer: torch.optim.Optimizer) -> None:
    validated_forces(optimizer, loaded=False)


def evaluate_residual(x: torch.Tensor) -> torch.Tensor:
    out = net(x.requires_grad_()).sum()
    busy()
    return torch.autograd.grad(out, x, create_graph=True)[0].square().mean() + out


def residuals(optimizer: torch.optim.Optimizer) -> None:
    """The loop learns from gradients that a function takes which seems to be an evaluation."""
    for x in batches():
        evaluate_residual(x).backward()
        optimizer.step()
        optimizer.zero_grad()


def trains_below_validate(optimizer: torch.optim.Optimizer) -> None:
    def validate() -> None:
        residuals(optimizer)

    validate()


def meta_test() -> None:
    """Adapts to three tasks, in two steps each."""
    params = dict(net.named_parameters())
    for _ in range(3):
        for _ in range(2):
            begun = time.monotonic_ns()
            loss = torch.func.grad(lambda p, x: torch.func.functional_call(net, p, x).square().mean())
            loss(params, torch.randn(4, 16))
            turn(SECONDS)
            spent[0] += time.monotonic_ns() - begun


def meta_tested(optimizer: torch.optim.Optimizer) -> None:
    for step, x in enumerate(batches()):
        fast = torch.autograd.grad(net(x).square().mean(), net.weight, create_graph=True)[0]
        optimizer.zero_grad()
        (x @ (net.weight - 0.1 * fast).T).square().mean().backward()
        optimizer.step()
        if step % 4 == 3:
            meta_test()


def sampled(optimizer: torch.optim.Optimizer) -> None:
    for step, (x,) in enumerate(loader()):
        learn(x, optimizer)
        if step % 4 == 3:
            with torch.no_grad():
                busy()


def copied(optimizer: torch.optim.Optimizer) -> None:
    state = {"large": torch.zeros(10_000_000)}
    for step, (x,) in enumerate(loader()):
        learn(x, optimizer)
        if step % 4 == 3:
            begun = time.monotonic_ns()
            copy.deepcopy(state)
            spent[0] += time.monotonic_ns() - begun


def two_optimizers(optimizer: torch.optim.Optimizer) -> None:
    """As a generator and a discriminator: the first optimizer ends a step, and samples follow the second."""
    other = nn.Linear(16, 4)
    second = torch.optim.SGD(other.parameters(), lr=1e-3)
    for step, (x,) in enumerate(loader()):
        learn(x, optimizer)
        other(x).square().mean().backward()
        second.step()
        second.zero_grad()
        if step % 4 == 3:
            with torch.no_grad():
                busy()


def refreshed(optimizer: torch.optim.Optimizer) -> None:
    """The statistics of batch normalisation are computed again, for averaged weights."""

    class Slow(nn.BatchNorm1d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            busy()
            return super().forward(x)

    average = nn.Sequential(Slow(16))
    for step, (x,) in enumerate(loader()):
        learn(x, optimizer)
        if step % 4 == 3:
            torch.optim.swa_utils.update_bn(loader(3), average)


def averaged(optimizer: torch.optim.Optimizer) -> None:
    for (x,) in loader():
        learn(x, optimizer)
        with torch.no_grad():
            busy()


def averaged_now_and_then(optimizer: torch.optim.Optimizer) -> None:
    average = copy.deepcopy(net)
    for step, (x,) in enumerate(loader()):
        learn(x, optimizer)
        turn(SECONDS)
        if step % 4 == 3:
            begun = time.monotonic_ns()
            with torch.no_grad():
                for one, other in zip(average.parameters(), net.parameters(), strict=True):
                    one.lerp_(other, 0.1)
                    turn(SECONDS / 4)
            spent[0] += time.monotonic_ns() - begun


def averaged_and_sampled(optimizer: torch.optim.Optimizer) -> None:
    for step, (x,) in enumerate(loader(2 * STEPS)):
        learn(x, optimizer)
        with torch.no_grad():
            turn(0.002)
        if step % 8 == 7:
            with torch.no_grad():
                for _ in range(10):
                    busy()


def accumulated(optimizer: torch.optim.Optimizer) -> None:
    for step, (x,) in enumerate(loader()):
        net(x).square().mean().backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()


# Loops with a loader come first: what follows a loop that has none takes some steps to be recognised.
LOOPS: tuple[Callable[[torch.optim.Optimizer], None], ...] = (
    decorated,
    with_gradients,
    before_a_long_forward_pass,
    other_loader,
    generation,
    made_in_forward,
    fetched_together,
    samples,
    fetches_ahead,
    second_loader,
    forces,
    validated_forces,
    forces_by_hand,
    averaged,
    averaged_now_and_then,
    refreshed,
    sampled,
    copied,
    two_optimizers,
    accumulated,
    by_hand,
    switched,
    rollout,
    collected,
    collected_after_an_evaluation,
    reentrant,
    own_optimizer,
    lbfgs,
    meta_tested,
    residuals,
    trains_below_validate,
    trained_in_evaluation_mode,
    other_thread,
)


def known() -> dict[str, int]:
    writer = attach._session.writer
    assert writer is not None
    words, at = writer.words, WORD_AT["cause_ns"][0]
    counts = {name: words[WORD_AT[name][0]] for name in ("eval_batches", "evaluations", "batches")}
    return {cause: words[at + CAUSE[cause]] for cause in CAUSES} | {"no_grad": words[WORD_AT["no_grad_ns"][0]]} | counts


def statistics() -> int:
    """A pass over the data before there is a model. Returns how long after it the window begins, ns."""
    for _ in loader():
        busy()
    ended = time.monotonic_ns()
    for (x,) in loader(1):
        learn(x, torch.optim.SGD(net.parameters(), 1e-3))
    writer = attach._session.writer
    assert writer is not None
    return writer.words[WORD_AT["window_ns"][0]] - ended


assert whyidle.attach()
torch.set_num_threads(1)
print(json.dumps({"loop": "statistics", "window": statistics(), "spent": spent[0], **known()}), flush=True)
for loop in [globals()[name] for name in sys.argv[1:]] or LOOPS:
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for (x,) in loader(1):  # the first step begins, or an evaluation ends
        learn(x, optimizer)
    before, spent[0] = known(), 0
    loop(optimizer)
    net.train()
    for (x,) in loader(1):
        learn(x, optimizer)
    grown = {word: value - before[word] for word, value in known().items()}
    print(json.dumps({"loop": loop.__name__, "spent": spent[0], **grown}), flush=True)

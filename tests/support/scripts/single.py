"""Training loops of one process, one after the other: ``single.py NAME…``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import account
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

BATCH = 4


def data(batches: int = 6) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(batches * BATCH, 16, generator=generator), torch.randn(batches * BATCH, 4, generator=generator)
    )


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))


def backward(loss: torch.Tensor) -> None:
    loss.backward()
    account.counts["backwards"] += 1


def took(batch: torch.Tensor) -> None:
    account.counts["batches"] += 1
    account.counts["samples"] += len(batch)


def train(name: str, loader: object, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for x, y in loader:  # type: ignore[attr-defined]
        took(x)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        backward(loss)
        optimizer.step()
        account.counts["steps"] += 1
        account.loss(name, loss)


def plain(name: str) -> None:
    net = model()
    train(name, DataLoader(data(), BATCH), net, torch.optim.AdamW(net.parameters()))


def evaluation(name: str) -> None:
    """Three batches of evaluation after every second step."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    held_out = DataLoader(data(3), BATCH)
    for step, (x, y) in enumerate(DataLoader(data(), BATCH)):
        took(x)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        backward(loss)
        optimizer.step()
        account.counts["steps"] += 1
        if step % 2:
            net.eval()
            with torch.no_grad():
                for x, y in held_out:
                    took(x)
                    account.counts["eval_batches"] += 1
                    account.loss(name, nn.functional.mse_loss(net(x), y))
            net.train()
        account.loss(name, loss)


def accumulation(name: str) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number, (x, y) in enumerate(DataLoader(data(12), BATCH), 1):
        took(x)
        loss = nn.functional.mse_loss(net(x), y) / 4
        backward(loss)
        account.loss(name, loss)
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
            account.counts["steps"] += 1


def pipelined(name: str) -> None:
    """Three batches run forward before the first backward pass, as in the first stage of a pipeline. Then two batches
    without a backward pass: an evaluation that keeps gradients enabled."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    batches = iter(DataLoader(data(15), BATCH))
    for _ in range(3):
        losses = []
        for x, y in [next(batches) for _ in range(3)]:
            took(x)
            losses.append(nn.functional.mse_loss(net(x), y))
        for loss in losses:
            backward(loss)
            account.loss(name, loss)
        optimizer.step()
        optimizer.zero_grad()
        account.counts["steps"] += 1
        for x, y in (next(batches) for _ in range(2)):
            took(x)
            account.counts["eval_batches"] += 1
            account.loss(name, nn.functional.mse_loss(net(x), y))


def gan(name: str) -> None:
    """Two optimizers in turn: a cycle of both is one step."""
    torch.manual_seed(3)
    maker, judge = nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))
    maker_opt, judge_opt = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    for x, _ in DataLoader(data(), BATCH):
        took(x)
        fake = maker(torch.randn(BATCH, 8))
        judge_opt.zero_grad()
        judged = nn.functional.softplus(judge(fake.detach()) - judge(x)).mean()
        backward(judged)
        judge_opt.step()
        maker_opt.zero_grad()
        fooled = nn.functional.softplus(-judge(fake)).mean()
        backward(fooled)
        maker_opt.step()
        account.counts["steps"] += 1
        account.loss(name, judged)
        account.loss(name, fooled)


def lbfgs(name: str) -> None:
    net = model().eval()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
    for x, y in DataLoader(data(4), BATCH):
        took(x)

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            backward(loss)
            return loss

        account.loss(name, optimizer.step(closure))
        account.counts["steps"] += 1


def in_backward(name: str) -> None:
    """One optimizer per parameter. A hook runs each when its gradient is ready."""
    net = model()
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in net.parameters()}

    def apply(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(apply)
    for x, y in DataLoader(data(), BATCH):
        took(x)
        loss = nn.functional.mse_loss(net(x), y)
        backward(loss)
        account.counts["steps"] += 1
        account.loss(name, loss)


def engine(name: str) -> None:
    """Calls autograd's engine directly, as Megatron's pipeline schedules do (`custom_backward`)."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(data(), BATCH):
        took(x)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        torch.autograd.Variable._execution_engine.run_backward(
            tensors=(loss,),
            grad_tensors=(torch.ones_like(loss),),
            keep_graph=False,
            create_graph=False,
            inputs=(),
            allow_unreachable=True,
            accumulate_grad=True,
        )
        account.counts["backwards"] += 1
        optimizer.step()
        account.counts["steps"] += 1
        account.loss(name, loss)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return iter(data())


def iterable(name: str) -> None:
    net = model()
    train(name, DataLoader(Stream(), BATCH, num_workers=1), net, torch.optim.SGD(net.parameters(), 0.1))


def persistent(name: str) -> None:
    net = model()
    loader = DataLoader(data(), BATCH, num_workers=2, persistent_workers=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        train(name, loader, net, optimizer)


def stateful(name: str) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    net = model()
    loader = StatefulDataLoader(data(), BATCH, num_workers=1)
    train(name, loader, net, torch.optim.SGD(net.parameters(), 0.1))


class Twice(torch.optim.SGD):
    """The global hook of torch.optim runs for it and for its parent."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        return super().step(closure)


def twice(name: str) -> None:
    net = model()
    train(name, DataLoader(data(), BATCH), net, Twice(net.parameters(), 0.1))


def scheduled(name: str) -> None:
    """A clipped gradient, a penalty by autograd.grad, a learning-rate schedule, an averaged model."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    average = torch.optim.swa_utils.AveragedModel(net)
    for x, y in DataLoader(data(), BATCH):
        took(x)
        optimizer.zero_grad()
        x.requires_grad_()
        loss = nn.functional.mse_loss(net(x), y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        account.counts["backwards"] += 1
        loss = loss + slope.square().sum()
        backward(loss)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(net)
        account.counts["steps"] += 1
        account.loss(name, loss)


def saving(name: str) -> None:
    from safetensors.torch import load_file, save_file

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with tempfile.TemporaryDirectory() as folder:
        one, other = Path(folder, "a.pt"), Path(folder, "b.safetensors")
        for _ in range(2):
            train(name, DataLoader(data(2), BATCH), net, optimizer)
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, one)
            save_file(net.state_dict(), other)
            account.counts["saves"] += 1  # two files of one checkpoint
            account.counts["save_bytes"] += one.stat().st_size + other.stat().st_size
            net.load_state_dict(torch.load(one, weights_only=True)["model"])  # torch 2.4 warns without it
            net.load_state_dict(load_file(other))
            account.counts["loads"] += 2
            account.counts["load_bytes"] += one.stat().st_size + other.stat().st_size


def compiled(name: str) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    train(name, DataLoader(data(), BATCH), torch.compile(net, backend="aot_eager"), optimizer)


def compiled_step(name: str) -> None:
    """The whole step under torch.compile: the graph breaks at backward, and the patched functions are called from
    there."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    @torch.compile(backend="aot_eager")
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for x, y in DataLoader(data(), BATCH):
        took(x)
        account.loss(name, step(x, y))
        account.counts["steps"] += 1
        account.counts["backwards"] += 1


def compiled_optimizer(name: str) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    optimizer.step = torch.compile(optimizer.step, backend="eager")  # type: ignore[method-assign]
    train(name, DataLoader(data(), BATCH), net, optimizer)


def inductor(name: str) -> None:
    net = nn.Sequential(nn.Linear(16, 4), nn.Tanh())
    torch.manual_seed(4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    train(name, DataLoader(data(), BATCH), torch.compile(net), optimizer)


if __name__ == "__main__":
    for named in sys.argv[1:]:
        torch.manual_seed(0)
        with account.scenario(named):
            globals()[named](named)

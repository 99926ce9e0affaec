"""Loops that update parameters without an optimizer of torch. Each is recorded on its own. Prints for each, as JSON:
how many steps were counted and by what, and whether a parameter outlives its loop."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import whyidle
from whyidle.ledger.layout import STEPS_BY
from whyidle.ledger.reader import parse_ledger
from whyidle.torch_hooks import attach

STEPS, RATE = 12, 0.01


def batches() -> Iterator[torch.Tensor]:
    for (x,) in DataLoader(TensorDataset(torch.randn(4 * STEPS, 16)), 4):
        yield x


class Optimizer:
    """As in fastai: not a class of torch's, and it updates the data."""

    def __init__(self, net: nn.Module):
        self.parameters = [*net.parameters()]

    def step(self) -> None:
        for p in self.parameters:
            p.data.add_(p.grad, alpha=-RATE)  # type: ignore[arg-type]

    def zero_grad(self) -> None:
        for p in self.parameters:
            if p.grad is not None:
                p.grad.detach_()
                p.grad.zero_()


def own_optimizer(net: nn.Module) -> None:
    optimizer = Optimizer(net)
    for x in batches():
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def reset_before_the_backward_pass(net: nn.Module) -> None:
    optimizer = Optimizer(net)
    for x in batches():
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.zero_grad()


def in_place(net: nn.Module) -> None:
    for x in batches():
        net.zero_grad()
        net(x).square().mean().backward()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(RATE * p.grad)  # type: ignore[operator]


def accumulated(net: nn.Module) -> None:
    optimizer = Optimizer(net)
    for number, x in enumerate(batches(), 1):
        net(x).square().mean().backward()
        if number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()


def new_tensors(net: nn.Module) -> None:
    weight = torch.randn(16, 4, requires_grad=True)
    for x in batches():
        (gradient,) = torch.autograd.grad((x @ weight).square().mean(), [weight])
        weight = (weight - RATE * gradient).detach().requires_grad_()


def unseen(net: nn.Module) -> None:
    parameters = [*net.parameters()]
    for x in batches():
        for p, gradient in zip(parameters, torch.autograd.grad(net(x).square().mean(), parameters), strict=True):
            p.data.sub_(RATE * gradient)


def forces(net: nn.Module) -> None:
    """The model itself needs a gradient, as force fields do."""
    optimizer = Optimizer(net)
    for x in batches():
        x.requires_grad_()
        (force,) = torch.autograd.grad(net(x).square().sum(), x, create_graph=True)
        force.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def after_a_warm_up(net: nn.Module) -> None:
    """A backward pass that no optimizer uses, and then accumulated gradients."""
    net(torch.ones(4, 16)).sum().backward()
    net.zero_grad()
    with_an_optimizer(net)


def with_an_optimizer(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    for number, x in enumerate(batches(), 1):
        net(x).square().mean().backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


LOOPS: tuple[Callable[[nn.Module], None], ...] = (
    own_optimizer,
    reset_before_the_backward_pass,
    in_place,
    accumulated,
    new_tensors,
    unseen,
    forces,
    with_an_optimizer,
    after_a_warm_up,
)

for loop in LOOPS:
    assert whyidle.attach()
    net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    loop(net)
    weight = weakref.ref(net[0].weight)
    del net
    gc.collect()
    alive = weight() is not None
    attach._session.loop.close()  # what detach does first: the last step may end here
    found = attach.own_ledger()
    assert found is not None
    whyidle.detach()
    ledger = parse_ledger(found[1], found[0], alive=True)
    told = {"loop": loop.__name__, "steps": ledger.steps, "by": STEPS_BY[ledger.words["steps_by"][0]]}
    told |= {"faults": ledger.faults, "eval_batches": ledger.words["eval_batches"][0], "alive": alive}
    print(json.dumps(told), flush=True)

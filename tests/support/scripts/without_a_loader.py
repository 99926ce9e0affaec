"""Loops without a data loader. Prints the ns of a part of one loop, of CPU time and in all, and how much words of the
ledger have grown, as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch

import whyidle
from whyidle.ledger.causes import CAUSE
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks import attach

STEPS = 40
spent = {"apart": 0, "update": 0}
wall = dict(spent)


class Busy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: Any, part: str, seconds: float) -> Any:
        begun, since = time.thread_time(), time.monotonic_ns()
        while time.thread_time() < begun + seconds:
            sum(range(100))
        spent[part] += round(1e9 * (time.thread_time() - begun))
        wall[part] += time.monotonic_ns() - since
        return self.inner(x)


class VecEnv:
    def reset(self) -> Any:
        return torch.randn(4, 4)

    def step(self, action: Any) -> Any:
        return torch.randn(4, 4)


def known() -> dict[str, int]:
    writer = attach._session.writer
    assert writer is not None
    return {cause: writer.words[WORD_AT["cause_ns"][0] + CAUSE[cause]] for cause in ("rollout", "evaluation")}


def learn(x: Any) -> None:
    optimizer.zero_grad()
    net(x, "update", 0.01).sum().backward()
    optimizer.step()


def policies(steps: int) -> None:
    """A policy answers in 0.5 ms, many times before an update. A script may also read the environment's variables."""
    envs = VecEnv()
    x = envs.reset()
    for _ in range(steps * int(os.environ.get("TIMES", "1"))):
        for _ in range(40):
            with torch.no_grad():
                x = envs.step(net(x, "apart", 0.0005))
        learn(x)


def reference(steps: int) -> None:
    """A model without gradients, in each step."""
    for _ in range(steps):
        x = torch.randn(4, 4)
        with torch.no_grad():
            frozen(x, "apart", 0.02)
        learn(x)


whyidle.attach()
net, frozen = Busy(), Busy()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loop = {"policies": policies, "reference": reference}[sys.argv[1]]
loop(STEPS)  # looks find out what it is
before, apart, apart_wall = known(), spent["apart"], wall["apart"]
loop(2 * STEPS)
grown = {cause: ns - before[cause] for cause, ns in known().items()}
print(json.dumps(grown | {"apart": spent["apart"] - apart, "wall": wall["apart"] - apart_wall}))

"""Loops of the user's own that act in environments. Prints for each, as JSON: the CPU ns of its parts, and how much
each word of the ledger has grown. The environments are of stand-ins with gymnasium's names."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import whyidle
from whyidle.ledger.causes import CAUSE, ROLLOUT_PARTS
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks import attach

UPDATES, STEPS = 6, 30
STAND_INS = {
    "gymnasium/core.py": "class Env:\n    def reset(self, *, seed=None): pass\n"
    "class Wrapper(Env):\n"
    "    def __init__(self, env): self.env = env\n"
    "    def step(self, action): return self.env.step(action)\n",
    "gymnasium/wrappers/common.py": "class OrderEnforcing:\n"
    "    def __init__(self, env): self.env = env\n"
    "    def step(self, action): return self.env.step(action)\n",
}


def busy(part: str, seconds: float) -> None:
    begun = time.thread_time()
    while time.thread_time() < begun + seconds:
        sum(range(100))
    spent[part] += round(1e9 * (time.thread_time() - begun))


def known() -> dict[str, int]:
    writer = attach._session.writer
    assert writer is not None
    words, at = writer.words, WORD_AT["cause_ns"][0]
    part = words[WORD_AT["rollout_part_ns"][0] + ROLLOUT_PARTS.index("environment")]
    return {cause: words[at + CAUSE[cause]] for cause in ("rollout", "evaluation")} | {"environment": part}


def collect(env: Any, policy: str) -> None:
    for _ in range(STEPS):
        with torch.no_grad():
            busy(policy, 0.0005)
        env.step(0)


def evaluate(act: Callable[[str], None]) -> None:
    global kind
    kind = "evaluation"
    act(kind)
    kind = "environment"


def update() -> None:
    for _ in range(4):
        optimizer.zero_grad()
        busy("update", 0.005)
        net(torch.randn(4, 4)).sum().backward()
        optimizer.step()


def made_by_gymnasium() -> None:
    env = importlib.import_module("gymnasium.wrappers.common").OrderEnforcing(Own())
    for _ in range(UPDATES):
        collect(env, "policy")
        update()


def of_an_own_class() -> None:
    class Late(Own):
        def reset(self, *, seed: int | None = None) -> None:
            super().reset(seed=seed)

    env = Late()
    env.reset(seed=1)
    for _ in range(UPDATES):
        collect(env, "policy")
        update()


def wrapped() -> None:
    class Slow(importlib.import_module("gymnasium.core").Wrapper):
        def step(self, action: int) -> None:
            busy("environment", 0.001)
            self.env.step(action)

    env = Slow(importlib.import_module("gymnasium.wrappers.common").OrderEnforcing(Own()))
    for _ in range(UPDATES):
        collect(env, "policy")
        update()


def evaluated_by_name() -> None:
    """Between steps of a rollout, with the same function for steps of both."""
    env = Own()
    env.reset()

    for number in range(UPDATES):
        collect(env, "policy")
        with torch.set_grad_enabled(number % 2 == 0):
            evaluate(partial(collect, env))
        collect(env, "policy")
        update()


def shares_helpers() -> None:
    """With what collects, three functions above the step. The first one that is seen is an evaluation."""
    env = Own()
    env.reset()

    def play(policy: str) -> None:
        collect(env, policy)

    def run(policy: str) -> None:
        play(policy)

    for _ in range(UPDATES):
        evaluate(run)
        run("policy")
        update()


def only_evaluates() -> None:
    """Nothing else uses the environment."""
    env = Own()
    env.reset()

    for _ in range(UPDATES):
        for _ in range(5):
            update()
        evaluate(partial(collect, env))


def test_agent() -> None:
    """Its name is that of an evaluation, and it trains."""
    env = Own()
    env.reset()
    for _ in range(UPDATES):
        collect(env, "policy")
        update()


def evaluated() -> None:
    env = Own()
    env.reset()
    for _ in range(UPDATES):
        net.eval()
        collect(env, "evaluation")
        net.train()
        update()


def fails() -> None:
    class Fails(importlib.import_module("gymnasium.core").Env):
        def step(self, action: int) -> None:
            raise RuntimeError("of the environment")

    env = Fails()
    env.reset()
    try:
        env.step(0)
    except RuntimeError:
        update()
    else:
        sys.exit("the error did not reach the loop")


sys.path.insert(0, sys.argv[1])
for name, text in STAND_INS.items():
    path = Path(sys.argv[1], name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
torch.set_num_threads(1)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
spent = dict.fromkeys(("update", "policy", "environment", "evaluation"), 0)
kind = "environment"
assert whyidle.attach()


class Own(importlib.import_module("gymnasium.core").Env):
    def step(self, action: int) -> None:
        busy("evaluation" if not net.training else kind, 0.001)


update()
LOOPS = (
    *(made_by_gymnasium, of_an_own_class, wrapped),
    *(evaluated, evaluated_by_name, shares_helpers, only_evaluates, test_agent, fails),
)
for loop in LOOPS:
    before, spent = known(), dict.fromkeys(spent, 0)
    loop()
    update()
    grown = {word: value - before[word] for word, value in known().items()}
    print(json.dumps({"loop": loop.__name__, "spent": spent, "found": grown}), flush=True)
whyidle.detach()

"""Calls each method of NAMED, in stand-ins for the frameworks. Prints for each, as JSON: the ns that it took, and how
much each word of the ledger has grown.

The stand-ins are modules of the same names, with classes and methods of the same names, which are imported after the
hooks are installed.
"""

from __future__ import annotations

import builtins
import importlib
import json
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import whyidle
from whyidle.ledger.causes import CAUSE, ROLLOUT_PARTS
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks import attach
from whyidle.torch_hooks.hooks.named_work import NAMED

SECONDS = 0.02


def busy() -> None:
    end = time.thread_time() + SECONDS
    while time.thread_time() < end:
        sum(range(200))


def evaluate() -> None:
    """With gradients, and with a loader, after which metrics are computed."""
    for _ in DataLoader(TensorDataset(torch.randn(8, 4)), 4):
        busy()
    busy()


def write_stand_ins(folder: Path) -> None:
    for module in dict.fromkeys(one.module for one in NAMED):
        lines = []
        for owner in dict.fromkeys(one.owner for one in NAMED if one.module == module):
            mine = [one for one in NAMED if (one.module, one.owner) == (module, owner)]
            for one in mine:
                body = "stand_in_busy()" if one.part else "stand_in_evaluates()"
                if one.method == "_generate_and_score_completions":
                    body = "; ".join(f"self.{part.method}()" for part in mine if part.part)
                lines.append(f"{'    ' * bool(owner)}def {one.method}({'self' * bool(owner)}): {body}")
            made_by = {one.made_by for one in mine} - {""}
            lines += [f"    def {method}(self): pass" for method in made_by]
            if owner:
                lines.insert(len(lines) - len(mine) - len(made_by), f"class {owner}:")
        path = folder.joinpath(*module.split("."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text("\n".join(lines) + "\n")
    builtins.stand_in_busy, builtins.stand_in_evaluates = busy, evaluate  # type: ignore[attr-defined]


def known() -> dict[str, int]:
    writer = attach._session.writer
    assert writer is not None
    words, at, parts = writer.words, WORD_AT["cause_ns"][0], WORD_AT["rollout_part_ns"][0]
    causes = {cause: words[at + CAUSE[cause]] for cause in ("evaluation", "rollout", "compute", "host")}
    return (
        causes
        | {part: words[parts + index] for index, part in enumerate(ROLLOUT_PARTS)}
        | {"eval_batches": words[WORD_AT["eval_batches"][0]]}
    )


net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)


def learn() -> None:
    for (x,) in DataLoader(TensorDataset(torch.randn(4, 4)), 4):
        net(x).sum().backward()
        optimizer.step()


write_stand_ins(Path(sys.argv[1]))
sys.path.insert(0, sys.argv[1])
assert whyidle.attach()
assert not {one.module.split(".")[0] for one in NAMED} & set(sys.modules)
learn()
for one in NAMED:
    module = importlib.import_module(one.module)
    target = module
    if one.owner:
        owner = getattr(module, one.owner)
        # Each pipeline or evaluator has its own class, which overrides the method.
        sub = type("Sub", (owner,), {one.method: lambda self: evaluate()} if one.made_by else {})
        target = sub()
        if one.made_by and one.made_by != "__init__":
            getattr(target, one.made_by)()
    learn()
    before, begun = known(), time.monotonic_ns()
    target() if one.method == "__call__" else getattr(target, one.method)()
    spent = time.monotonic_ns() - begun
    learn()
    grown = {word: value - before[word] for word, value in known().items()}
    print(json.dumps({"name": f"{one.module} {one.owner} {one.method}", "spent": spent, **grown}), flush=True)
whyidle.detach()
assert not any(
    hasattr(getattr(vars(importlib.import_module(one.module)).get(one.owner), one.method, None), "_whyidle_hook")
    for one in NAMED
)

"""The independent clock of benchmarks/programs.py: py-spy's samples of the training thread, by class.

A stack has the class of its innermost frame that matches a rule of the program's ``waits`` or of ``WAITS``: a batch, a
save, a logger. If no frame matches, it has the class of the innermost frame that matches a rule of the program's
``parts``: an evaluation, a rollout. Otherwise it is compute, or outside.
"""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

RATE = 100
"""Samples a second."""
QUALIFIED = r"(?:^|\.)"
"""In place of `^` in a rule: py-spy writes `Trainer.evaluate`."""
Rules = tuple[tuple[str, str], ...]
WAITS: Rules = (
    ("save", r"^_?save\w* .*torch/serialization\.py|^save_file .*safetensors|^write_record"),
    ("data", r"^(__next__|_next_data|__iter__) .*torch/utils/data/dataloader\.py"),
)
COMPUTE = r"torch/nn/modules/module\.py|torch/autograd/|torch/_tensor\.py|torch/optim/|torch/nn/functional\.py"
LEARNS = re.compile(r"torch/autograd/|torch/optim/")
"""Frames of a training, which a model that is built does not have."""
BEGINS = frozenset(("data", "rollout"))
OUTSIDE = frozenset(("outside", "import", "compute"))
MOST_SHOWN = 5


class Clock(NamedTuple):
    seconds: float
    """From the first step to the end of the training, of the process with the most samples."""
    startup: float
    classes: dict[str, float]
    """Shares of ``seconds``."""
    outside: list[tuple[str, float]]
    """The most frequent stacks of no class, with their shares."""


def read(path: Path, waits: Rules, parts: Rules) -> list[Clock]:
    """One clock for each process that trains."""
    said = json.loads(path.read_text())
    names = [f"{one['name']} {one.get('file', '')}:{one.get('line', '')}" for one in said["shared"]["frames"]]
    found = [_clock(profile, names, (*waits, *WAITS), parts) for profile in _main_threads(said["profiles"])]
    return [one for one in found if one is not None]


def _main_threads(profiles: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The main thread of each process. If none has its name, it is the thread with the most samples."""
    best: dict[str, dict[str, Any]] = {}

    def rank(profile: dict[str, Any]) -> tuple[bool, int]:
        return "MainThread" in profile["name"], len(profile["samples"])

    for profile in profiles:
        named = re.match(r"Process (\d+)", profile["name"])
        process = named.group(1) if named else ""
        if process not in best or rank(profile) > rank(best[process]):
            best[process] = profile
    return list(best.values())


def _largest(seconds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda one: -one[1])


def _clock(profile: dict[str, Any], names: list[str], waits: Rules, parts: Rules) -> Clock | None:
    inner, outer = (
        [(name, re.compile(one.replace("^", QUALIFIED))) for name, one in rules] for rules in (waits, parts)
    )
    compute = re.compile(COMPUTE)

    @functools.cache
    def of(stack: tuple[int, ...]) -> str:
        frames = [names[frame] for frame in reversed(stack)]
        if any("importlib._bootstrap" in frame for frame in frames):
            return "import"
        for rules in (inner, outer):
            for frame in frames:
                if name := next((name for name, rule in rules if rule.search(frame)), ""):
                    return name
        return "compute" if any(compute.search(frame) for frame in frames) else "outside"

    classes = [of(tuple(sample)) for sample in profile["samples"]]
    weights: list[float] = profile["weights"]
    learns = functools.cache(lambda stack: any(LEARNS.search(names[frame]) for frame in stack))
    stacks_of = zip(classes, profile["samples"], strict=True)
    trained = [name == "compute" and learns(tuple(sample)) for name, sample in stacks_of]
    if not any(trained):
        return None
    first = next((i for i, name in enumerate(classes) if name in BEGINS or trained[i]), 0)
    last = max(i for i, name in enumerate(classes) if name not in OUTSIDE or trained[i] or not i)
    times: dict[str, float] = defaultdict(float)
    stacks: dict[str, float] = defaultdict(float)
    for i in range(first, last + 1):
        times[classes[i]] += weights[i]
        if classes[i] == "outside":
            frames = [names[frame] for frame in reversed(profile["samples"][i])][:4]
            stacks[" < ".join(frames)] += weights[i]
    total = sum(times.values())
    return Clock(
        total,
        sum(weights[:first]),
        {name: seconds / total for name, seconds in _largest(times)},
        [(stack, seconds / total) for stack, seconds in _largest(stacks)[:MOST_SHOWN]],
    )

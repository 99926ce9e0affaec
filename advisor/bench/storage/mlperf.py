"""AU, MLPerf Storage's measure of storage, and which of its rules a measurement meets.

The rules are those of MLPerf Storage (github.com/mlcommons/storage, Rules.md) and of DLIO, the program that it runs
(github.com/argonne-lcf/dlio_benchmark, utils/statscounter.py). Our results are not MLPerf results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MEMORY_FACTOR = 5
"""The dataset must be this many times as large as the host's memory, so that it does not come from a cache."""
LEAST_AU = 0.90
"""The least AU, unless the workload sets another one."""


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    met: bool
    found: str


def utilisation(ends: Sequence[float], compute: float) -> float | None:
    """AU: the time in which an accelerator would compute, as a share of the whole time without the first step.

    ``ends``: when each step ended; ``compute``: how long each step computes; both in seconds. None if there are fewer
    than two steps, or if ``compute`` is 0.
    """
    if len(ends) < 2 or not compute:
        return None
    return compute * (len(ends) - 1) / (ends[-1] - ends[0])


def judge(loop: dict[str, Any], *, memory: int, own_memory: bool, least_au: float, dropped_all: bool) -> dict[str, Any]:
    """AU, and which rules are met, from the entry `samples: loop` of a path's report.

    ``memory``: the memory of the host, in bytes. ``own_memory``: True if it was found here, False if the user gave it.
    """
    au = loop["au"]
    factor = loop["dataset_bytes"] / memory
    share = loop["cached_share"]
    cold = share is not None and not loop["from_cache"]
    caches = (
        "not known: the file system does not report it" if share is None else f"{100 * share:.1f} % was still cached"
    )
    rules = [
        Rule("the first step does not count", True, "left out"),
        Rule(
            f"the dataset is {MEMORY_FACTOR} times as large as memory",
            factor >= MEMORY_FACTOR and own_memory,
            f"{factor:.2g} times" + ("" if own_memory else ", of a memory size that was given"),
        ),
        Rule("caches were dropped", cold, caches + (", after all of the kernel's were emptied" if dropped_all else "")),
        Rule("the whole dataset was read", loop["whole"], "read once" if loop["whole"] else "time ran out before"),
        Rule(
            f"AU is at least {100 * least_au:.0f} %",
            au is not None and au >= least_au and not loop["from_cache"],
            "not measured" if au is None or loop["from_cache"] else f"{100 * au:.1f} %",
        ),
    ]
    return {
        "au": None if loop["from_cache"] else au,
        "least_au": least_au,
        "memory_bytes": memory,
        "rules": [asdict(rule) for rule in rules],
        "met": all(rule.met for rule in rules),
    }


def host_memory(meminfo: str = "/proc/meminfo", limit: str = "/sys/fs/cgroup/memory.max") -> int:
    """The bytes that can cache files: the host's memory, or the limit of this control group if that is lower.

    Raises OSError, ValueError.
    """
    with open(meminfo) as file:
        whole = next(1024 * int(line.split()[1]) for line in file if line.startswith("MemTotal:"))
    try:
        with open(limit) as file:
            return min(whole, int(file.read()))
    except (OSError, ValueError):  # control groups of version 1, or no limit (`max`)
        return whole

"""Runs whose ranks take turns at being late and lack CPU time, for tests of the report and of the rules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from whyidle.verdict.accounts import GroupAccount, RankAccount, RunAccount

WALL, STEPS, KEY = 30.0, 300, 7
WAITED = 6.5
HYPERVISOR, QUEUE = "the hypervisor takes their CPUs", "their threads wait for a CPU"


def run(*ranks: dict[str, Any], nodes: int = 1, late_steps: tuple[int, ...] = (160, 140)) -> RunAccount:
    """Ranks that wait for each other for as long; ``ranks``: asked, stolen and queued seconds of each."""
    found = []
    for number, of in enumerate(ranks):
        newest = SimpleNamespace(
            position=SimpleNamespace(phase="host"),
            cpus_node=0,
            rank=number,
            node=f"n{number % nodes}",
            hook_states={"exchange": "active"},
            words={"mode_looks": (0, 0, 0)},
            base_looks=0,
        )
        newest.dead_worker_pid, newest.ring = 0, []
        newest.alloc_steps = newest.alloc_flushes = newest.alloc_retries = 0
        newest.device, newest.steps, newest.batches, newest.marked_data = "cpu", STEPS, STEPS, 0
        behind = {other: WAITED / (len(ranks) - 1) for other in range(len(ranks)) if other != number}
        rank = RankAccount(cast(Any, newest), steps=STEPS, wall=WALL, late_steps=late_steps[number % len(late_steps)])
        rank.seconds |= {"compute": WALL - WAITED, "straggler": WAITED}
        rank.groups[KEY] = GroupAccount(
            KEY, "world", len(ranks), False, straggler=WAITED, behind=behind, late_own={"compute": WAITED}
        )
        rank.cpu_asked, rank.cpu_stolen = of.get("asked", 0.0), of.get("stolen", 0.0)
        rank.cpu_queued = of.get("queued", 0.0)
        found.append(rank)
    return RunAccount("r1", found, [])


COMPUTE = "compute takes longer than on the others"
# What each of two ranks on one node lacks, and what the verdict names as the reason why they take turns.
SHORTAGES: tuple[tuple[list[dict[str, float]], str], ...] = (
    ([{}, {}], COMPUTE),  # nobody could read /proc/stat
    ([{"asked": 55.0}] * 2, COMPUTE),
    ([{"asked": 55.0, "stolen": 2.0}] * 2, COMPUTE),  # 4 %
    ([{"asked": 55.0, "stolen": 5.0}] * 2, COMPUTE),  # not enough for 13 s
    ([{"asked": 55.0, "stolen": 13.7}] * 2, HYPERVISOR),
    ([{"asked": 55.0, "queued": 6.0}] * 2, QUEUE),
    ([{"asked": 55.0, "queued": 2.0}] * 2, COMPUTE),
    ([{"asked": 55.0, "stolen": 11.0, "queued": 6.0}] * 2, QUEUE),
    ([{"asked": 55.0, "stolen": 13.0, "queued": 6.0}] * 2, HYPERVISOR),
)

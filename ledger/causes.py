"""The names that a ledger uses: phases, causes, families, hooks, operations.

The hooks observe phases. Causes are concluded from phases, and each cause belongs to a family. What is known of each is
in its row in cause_rows.py. The order of each tuple is part of the ledger's format: only append, and raise
:data:`layout.VERSION` when an index changes.
"""

from __future__ import annotations

from operator import itemgetter

from .cause_rows import CAUSE_ROWS, PHASE_ROWS, Cause, Phase

CAUSE_ROW: dict[str, Cause] = {row.name: row for row in CAUSE_ROWS}
CAUSE_FAMILY: dict[str, str] = {row.name: row.family for row in CAUSE_ROWS}
"""Cause -> family, in the order of the ledger."""

CAUSES: tuple[str, ...] = tuple(CAUSE_FAMILY)
CAUSE = {name: index for index, name in enumerate(CAUSES)}

FAMILIES: tuple[str, ...] = (
    "compute",
    "storage",
    "network",
    "straggler",
    "pipeline",
    "communication",
    "cpu",
    "host",
    "lost",
    "unattributed",
)
FAMILY = {name: index for index, name in enumerate(FAMILIES)}

LATE_FAMILIES: tuple[str, ...] = ("compute", "storage", "cpu", "host", "unattributed", "network", "lost")
"""The families that can make a rank late.

All but `network` are families of the rank's own time. Recomputed steps count as compute here, so `lost` is what was
suspended. `network` is lateness that the rank's own time does not explain: on a CPU rank, the last collective ended
later there than on other ranks. A part of it is `cpu`, if the rank's own threads got no CPU in its waits.
"""

WAIT_CAUSES: tuple[str, ...] = tuple(row.name for row in CAUSE_ROWS if row.place == "waits")
"""Waits for other ranks. All other causes are the rank's own time."""

OWN_CAUSES: dict[str, tuple[str, ...]] = {
    family: tuple(
        cause
        for cause, of in CAUSE_FAMILY.items()
        if cause not in WAIT_CAUSES and family == ("compute" if cause == "recompute" else of)
    )
    for family in LATE_FAMILIES
}
"""Each of LATE_FAMILIES -> the causes of a rank's own time that belong to it."""
_OWN_PARTS = [
    # With one index, itemgetter would not return a tuple.
    itemgetter(*causes) if len(causes) > 1 else itemgetter(slice(causes[0], causes[0] + 1) if causes else slice(0))
    for causes in ([CAUSE[cause] for cause in own] for own in OWN_CAUSES.values())
]


def own_time(spent: tuple[int, ...]) -> list[int]:
    """A rank's own time in ns, per LATE_FAMILIES. ``spent``: ns per cause; words after them are ignored."""
    return [sum(part(spent)) for part in _OWN_PARTS]


PHASE_ROW: dict[str, Phase] = {row.name: row for row in PHASE_ROWS}
PHASE_CAUSE: dict[str, str] = {row.name: row.cause for row in PHASE_ROWS}
"""Phase -> the cause that its time counts under, unless a finer split is known when the phase ends."""

PHASES: tuple[str, ...] = tuple(PHASE_CAUSE)
PHASE = {name: index for index, name in enumerate(PHASES)}
DATA_CAUSES: tuple[str, ...] = tuple(row.name for row in CAUSE_ROWS if row.name.startswith("data_"))
"""Waits for batches, with the start of the workers."""
WORK_CAUSES: tuple[str, ...] = tuple(row.name for row in CAUSE_ROWS if row.faster == "compute")
"""What a device does when it works: compute, also if it is repeated or nobody learns from it."""
WORK_PHASES: tuple[str, ...] = tuple(phase for phase, cause in PHASE_CAUSE.items() if cause in WORK_CAUSES)

OUTSIDE_CAUSES: tuple[str, ...] = tuple(row.name for row in CAUSE_ROWS if row.place == "outside")
"""What is outside the loop, and so outside the window: see verdict/outside.py. In queries, `OUTSIDE_LOOP`."""
OUTSIDE_LOOP = "|".join(("startup", *OUTSIDE_CAUSES))
_STAY = {*WAIT_CAUSES, *OUTSIDE_CAUSES, "startup", "suspended", "checkpoint_write", "checkpoint_cpu", "checkpoint_read"}
MAY_BE_OUTSIDE: tuple[str, ...] = tuple(
    sorted((row.name for row in CAUSE_ROWS if row.name not in _STAY), key=lambda cause: not cause.startswith("host"))
)
"""What counts as `shutdown` or `between` if it was outside the loop. Where only a part of it was, the first of these.
Waits for other ranks, saves and restores stay what they are."""

USER_PHASES = frozenset(row.name for row in PHASE_ROWS if row.user)
"""The phases that ``whyidle.phase(...)`` accepts."""

HOOKS: tuple[str, ...] = (
    "step",
    "backward",
    "dataloader",
    "stateful_dataloader",
    "work_wait",
    "functional_wait",
    "process_group",
    "ddp",
    "fsdp1",
    "fsdp2",
    "torch_save",
    "dcp",
    "safetensors",
    "fsync",
    "transformers",
    "accelerate",
    "lightning",
    "torchtitan",
    "gc",
    "compile",
    "exchange",
    "device_clock",
    "sources",
    "deepspeed",
    "megatron",
    "composer",
    "ray",
    "cuda_graphs",
    "evaluation",
    "threads",
    "new_group",
    "frames",
    "loggers",
    "allocator",
)
HOOK_STATES: tuple[str, ...] = ("absent", "active", "failed")

COLLECTIVE_OPS: tuple[str, ...] = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
)
COLLECTIVE_OP = {name: index for index, name in enumerate(COLLECTIVE_OPS)}

ROLLOUT_PARTS: tuple[str, ...] = ("generation", "reward", "log-probabilities", "environment")
"""What a rollout consists of, where a framework's methods tell it."""

CHECKPOINT_KINDS: tuple[str, ...] = ("save", "load")

STEP_BUCKETS_SECONDS: tuple[float, ...] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Upper bounds of the step-time histogram, in seconds. One more bucket without an upper bound follows them."""

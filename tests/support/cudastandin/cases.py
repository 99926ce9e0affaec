"""The cases: each shape with each fault, and what the report must say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cudastandin.plan import LATE, SAVES, Plan

ERROR, LINK_ERROR = 0.02, 0.03
"""How much the seconds of a kind may differ, as a share of the wall time. The second is for slow links."""
SLOW_GBPS = "0.05"


@dataclass(frozen=True)
class Fault:
    name: str
    changes: Mapping[str, float] = field(default_factory=dict)
    """Fields of the plan."""
    env: Mapping[str, str] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    """Families that the verdict may have."""
    late: int | None = None
    """The rank that the verdict must name, where there are several."""
    error: float = ERROR


FAULTS = (
    Fault("none", families=("compute",)),
    Fault("slow-reads", {"read_ms": 120.0}, families=("storage",), late=LATE),
    Fault("slow-rank", {"slower": 1.6}, families=("straggler",), late=LATE),
    Fault("slow-link", env={"STANDIN_GBPS": SLOW_GBPS}, families=("network",), error=LINK_ERROR),
    Fault("save", {"save_every": 4}, families=("storage",), late=SAVES),
)


@dataclass(frozen=True)
class Case:
    name: str
    plan: Plan
    ranks: int
    fault: Fault
    env: Mapping[str, str] = field(default_factory=dict)
    wrong: str = ""
    """Why it is known to fail, if it is."""


SHAPES = {
    "single": 1,
    "ddp": 2,
    "ddp_views": 2,
    "ddp_static": 2,
    "ddp_buffers": 2,
    "fsdp1": 2,
    "fsdp2": 2,
}
"""Function of shapes.py -> ranks."""
_ALONE = ("none", "slow-reads", "save")
"""Faults that one rank can have."""


def _case(shape: str, ranks: int, fault: Fault) -> Case:
    plan = replace(Plan(shape), **fault.changes)  # pyright: ignore[reportArgumentType]
    return Case(f"{shape}-{fault.name}", plan, ranks, fault, dict(fault.env))


CASES: dict[str, Case] = {
    case.name: case
    for shape, ranks in SHAPES.items()
    for fault in FAULTS
    if ranks > 1 or fault.name in _ALONE
    for case in [_case(shape, ranks, fault)]
}

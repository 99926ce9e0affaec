"""The table of injected cases: every fault in every mesh where it can happen."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from .case import Case, Fault

MESHES: tuple[Case, ...] = (
    Case(dp=4),
    Case(dp=8, norm=False),
    Case(dp=2, tp=2),
    Case(dp=4, tp=2, norm=False),
    Case(tp=4),
    Case(pp=4, microbatches=8),
    Case(pp=4, microbatches=8, norm=False),
    Case(pp=4, microbatches=8, schedule="gpipe"),
    Case(pp=4, microbatches=8, schedule="gpipe", norm=False, buffered=True),
    Case(dp=2, pp=2, microbatches=6),
    Case(dp=2, pp=4, microbatches=8, buffered=True),
    Case(dp=2, pp=4, microbatches=8, norm=False),
    Case(dp=2, pp=2, tp=2, microbatches=6),
    Case(dp=2, pp=2, tp=2, microbatches=6, schedule="gpipe", norm=False),
    Case(dp=2, pp=4, tp=2, microbatches=8),
    Case(pp=2, tp=4, microbatches=6, norm=False),
    Case(pp=8, microbatches=16, steps=4),
    Case(dp=2, pp=4, microbatches=8, heavy_last=0.25),
    Case(dp=2, pp=2, tp=2, microbatches=6, jitter=0.10, lengths=0.10),
    Case(dp=4, tp=2, jitter=0.10, lengths=0.15),
    Case(dp=2, pp=4, microbatches=12, schedule="gpipe", jitter=0.10, heavy_last=0.15, steps=4),
)

SIZES: dict[str, tuple[float, ...]] = {
    "read": (0.3, 0.9),
    "decode": (0.5,),
    "pause": (0.4,),
    "compute": (0.3, 0.8),
    "stage": (0.5,),
    "link_tp": (15.0,),
    "link_dp": (8.0,),
    "link_pp": (12.0, 25.0),
    "microbatches": (0.5,),
    "reads_turn": (0.5,),
}


def possible(case: Case, kind: str) -> bool:
    if kind == "stage" or kind == "link_pp":
        return case.pp > 1
    if kind in ("link_tp", "link_dp"):
        return getattr(case, kind[-2:]) > 1
    return kind != "microbatches" or case.dp > 1


def cases() -> list[Case]:
    """All of them, always the same."""
    table = []
    for number, mesh in enumerate(MESHES):
        for kind, sizes in SIZES.items():
            for size in sizes:
                if possible(mesh, kind):
                    random = Random(f"{number} {kind} {size}")
                    where = random.randrange(mesh.pp if kind == "stage" else mesh.ranks)
                    steps = 10 if kind == "microbatches" and mesh.dp == 2 else mesh.steps
                    table.append(replace(mesh, seed=len(table), steps=steps, fault=Fault(kind, where, size)))
    return table

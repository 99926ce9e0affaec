"""The table of injected cases: every fault in every mesh in which it can happen."""

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
    """All cases, always the same."""
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


def random_cases(count: int, seed: int = 7) -> list[Case]:
    """Cases that were not used to choose any formula: meshes, times and faults are random."""
    random = Random(seed)
    table: list[Case] = []
    while len(table) < count:
        kind = random.choice([*SIZES])
        case = Case(
            dp=random.choice([1, 2, 3, 4]),
            pp=random.choice([1, 2, 4, 6]),
            tp=random.choice([1, 2, 4]),
            microbatches=random.choice([4, 6, 8, 12]),
            schedule=random.choice(["1f1b", "gpipe"]),
            steps=6,
            layers=random.choice([1, 2, 3]),
            jitter=random.choice([0.02, 0.05, 0.10]),
            tp_transfer=random.choice([50, 150, 400]) * 1_000,
            dp_transfer=random.choice([1, 3, 8]) * 1_000_000,
            pp_transfer=random.choice([50, 200, 800]) * 1_000,
            buffered=random.random() < 0.4,
            norm=random.random() < 0.5,
            heavy_last=random.choice([0.0, 0.0, 0.1]),
            lengths=random.choice([0.0, 0.0, 0.1]),
            seed=len(table),
        )
        if 2 <= case.ranks <= 16 and possible(case, kind):
            at = random.randrange(case.pp if kind == "stage" else case.ranks)
            size = random.choice([0.5, 1.0]) * max(SIZES[kind])
            table.append(replace(case, fault=Fault(kind, at, size)))
    return table

"""Cells of docs/accuracy.md: which there are, what is known of one, and when whyidle is right about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from accelerators.lab import FAULTS as SIMULATED_FAULTS
from accelerators.lab import LOOPS, RANKS
from cudastandin.cases import CASES as CUDA_CASES
from cudastandin.cases import FAULTS as CUDA_FAULTS
from parallel.cases import SHAPES
from parallel.spec import FAULTS as CPU_FAULTS

CPU, SIMULATED, CUDA, DEMO = "cpu", "simulated", "cuda", "demo"
DEVICES = (CPU, SIMULATED, CUDA, DEMO)
TRACEML, PROFILER = "traceml", "profiler"
PEERS = (TRACEML, PROFILER)
CLOSE = 0.05
"""How far a share may be from the truth, as a share of the time of all ranks."""
THRESHOLD = 0.10
"""A family other than compute is a verdict from this share on."""
SUM = 0.001
"""How far the causes may be from summing to the wall time, as a share of it."""


@dataclass(frozen=True)
class Cell:
    device: str
    """One of DEVICES, or of PEERS: then the job is that of the demo, and the other tool watches it."""
    job: str
    fault: str
    """Empty for a loop, which has its own fault or none."""

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.device, self.job, self.fault)))


DEMO_CASES = (
    *(("1-rank", fault) for fault in ("none", "storage", "cpu", "checkpoint")),
    *(("2-ranks", fault) for fault in ("none", "storage", "network", "straggler", "checkpoint")),
)
"""What `whyidle demo --inject` can do with one rank and with two."""


def _cuda_case(name: str) -> tuple[str, str]:
    shape, _, fault = name.partition("-")
    return (shape, fault) if fault in CUDA_FAULTS and CUDA_CASES[name].plan.loop == "plain" else (name, "")


CUDA_NAMES = {_cuda_case(name): name for name in CUDA_CASES}
"""(job, fault) -> the case's name."""
_CASES: dict[str, Sequence[tuple[str, str]]] = {
    CPU: [(shape, fault) for shape in SHAPES for fault in CPU_FAULTS],
    SIMULATED: [*((shape, fault) for shape in RANKS for fault in SIMULATED_FAULTS), *((loop, "") for loop in LOOPS)],
    CUDA: list(CUDA_NAMES),
    **dict.fromkeys((DEMO, *PEERS), DEMO_CASES),
}
CELLS = [Cell(device, *case) for device, cases in _CASES.items() for case in cases]


@dataclass(frozen=True)
class Finding:
    """What a run of a cell has shown. Shares are of the time of all ranks."""

    told: str
    """The family of whyidle's verdict, or the sentence of the other tool."""
    told_share: float | None = None
    family: str = ""
    """By the truth; empty if nothing was injected and the truth is not known further."""
    share: float | None = None
    error: float | None = None
    """whyidle's share of that family, minus the truth."""
    culprit: int | None = None
    named: bool | None = None
    """Whether the verdict names the culprit first; None if there is none."""
    rest: float | None = None
    """How far the causes of a rank are from its wall time, for the worst rank, as a share of it."""
    least: float | None = None
    """The start of the range up to ``share``, if the truth is a range."""
    wrong: list[str] = field(default_factory=list)
    """Sentences; none if whyidle is right."""


@dataclass(frozen=True)
class Result:
    cell: Cell
    date: str
    commit: str
    machine: str
    stolen: float = 0.0
    """The share of the machine's CPU time that its hypervisor gave to others meanwhile."""
    reason: str = ""
    """Why the cell could not run."""
    finding: Finding | None = None

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        folder.joinpath(f"{self.cell.name}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")


def read(folder: Path) -> dict[Cell, Result]:
    """The results of existing cells. Files of cells that no longer exist are ignored."""
    found: dict[Cell, Result] = {}
    for cell in CELLS:
        path = folder / f"{cell.name}.json"
        if path.exists():
            known: dict[str, Any] = json.loads(path.read_text())
            finding = Finding(**known["finding"]) if known["finding"] else None
            found[cell] = Result(**{**known, "cell": cell, "finding": finding})
    return found


def expected(shares: Mapping[str, float], injected: str = "") -> tuple[str, ...]:
    """Families that a verdict may name, the likeliest first, given the true shares of all families.

    An injected fault that took less than THRESHOLD is not a verdict. Near the threshold, both answers are right.
    """
    if injected and shares[injected] >= THRESHOLD:
        return (injected,)
    lost = sorted((name for name in shares if name != "compute"), key=lambda name: -shares[name])
    lost = [name for name in lost if shares[name] >= THRESHOLD - CLOSE]
    if not lost or shares[lost[0]] < THRESHOLD:
        return ("compute", *lost)
    return (*lost, "compute") if shares[lost[0]] < THRESHOLD + CLOSE else tuple(lost)


def told_share(report: Mapping[str, Any], family: str) -> float:
    """The share of the verdict, or of a family that is not the verdict, before waits are followed to a late rank."""
    verdict = report["verdict"]
    return verdict["share"] if verdict["family"] == family else report["families"].get(family, 0.0)


def rest(report: Mapping[str, Any]) -> float:
    return max(abs(sum(rank["seconds"].values()) / rank["wall_seconds"] - 1) for rank in report["per_rank"])


def judge(
    report: Mapping[str, Any],
    shares: Mapping[str, float],
    families: Sequence[str],
    culprit: int | None = None,
    *,
    slack: float = 0.0,
    together: Sequence[str] = (),
    further: Sequence[str] = (),
) -> Finding:
    """Compares a report with the true shares. It may be lower than the truth by ``slack``. Only the sum of
    families ``together`` is known. ``further`` are other sentences about what is wrong."""
    verdict = report["verdict"]
    told = verdict["family"]
    family = told if told in families else families[0]
    share, said = shares.get(family, 0.0), told_share(report, family)
    if family in together:
        share, said = (sum(of.get(one, 0.0) for one in together) for of in (shares, report["families"]))
    error = said - max(share - slack, min(share, said))
    named = None if culprit is None else [one["rank"] for one in verdict["late_ranks"][:1]] == [culprit]
    wrong = [] if told in families else [f"the verdict is {told}, not {family}"]
    wrong += [f"{family} differs by {100 * error:+.1f} points"] if abs(error) > CLOSE else []
    wrong += [f"the verdict does not name rank {culprit} first"] if named is False else []
    wrong += [f"the causes miss the wall time by {rest(report):.2%}"] if rest(report) > SUM else []
    known = " + ".join(together) if family in together else family
    told_and_true = told, verdict["share"], known, share, error, culprit, named, rest(report)
    return Finding(*told_and_true, least=share - slack if slack else None, wrong=[*wrong, *further])


def judge_sound(report: Mapping[str, Any], most: float) -> Finding:
    """Nothing was injected, and the shares of compute and of busy cores are not known: only a larger share of another
    family is wrong."""
    verdict = report["verdict"]
    alarm = verdict["family"] in ("storage", "straggler", "network") and verdict["share"] > most
    wrong = [f"nothing was injected, and the verdict is {verdict['family']}"] if alarm else []
    wrong += [f"the causes miss the wall time by {rest(report):.2%}"] if rest(report) > SUM else []
    return Finding(verdict["family"], verdict["share"], rest=rest(report), wrong=wrong)

"""The rows of the report: a figure, its expected value, and whether it is within its threshold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

KEEP = "GPU_CHECK_KEEP"
"""The variable of the environment with the folder of `--keep`, where ledgers are kept."""

LIMITS: dict[str, tuple[float | None, float | None, str]] = {
    # name: (on a GPU, simulated, unit and meaning)
    "data": (
        0.3,
        1.0,
        "ms a step, plus the host time of two raw events: idle while the loop waits for a batch, compared with them",
    ),
    "loops": (
        0.03,
        None,
        "of the wall: busy, idle in data or in saves, against Kineto or GPM; plus two standard errors of the looks",
    ),
    "changed": (0.0, 0.0, "the largest change of a parameter by whyidle"),
    "exposed": (0.5, 0.5, "ms a step, plus 2 % of the truth: exposed communication, compared with raw events"),
    "sum": (0.001, 0.001, "of the wall: causes add up to it"),
    "unattributed": (0.01, 0.02, "of the wall"),
    "faults": (0.0, 0.0, "faults that the hooks counted"),
    "unmeasured": (1.0, 1.0, "boundaries not measured: the last one may not be done when the recording ends"),
    "late": (0.10, 0.15, "of the known lateness: `straggler` of the rank that waits"),
    "boundary": (10.0, 60.0, "us of host time a boundary (simulated: the device's own threads compete for the cores)"),
    "device_time": (2.0, None, "us of device time a boundary; the host's cores decide it if simulated"),
    "torn": (0.0, 0.0, "reads of the ledger, of a rank whose host is blocked by a full launch queue"),
    "losses": (1e-4, 0.0, "difference of the losses with and without whyidle"),
    "capture": (0.0, 0.0, "captures that failed with whyidle attached"),
    "drift": (2e-5, 2e-3, "device time on the host's clock, against the host, as a share of the elapsed time"),
    "duty": (0.05, None, "the GPU's counters, against a known duty cycle"),
    "agent": (0.01, 0.01, "of the wall: causes in the agent's /metrics, against the ledger"),
    "share": (0.05, None, "a model's idle share in `whyidle report`, against Kineto"),
}
"""Name of a threshold -> (value on a GPU, value on the simulated device, description). None means not checked."""


@dataclass
class Row:
    """One row. ``ok`` is None if nothing is checked: the figure is only reported, or the check was skipped."""

    what: str
    known: float | None
    measured: float | None
    unit: str
    limit: float | None = None
    ok: bool | None = None
    note: str = ""
    routine: bool = False
    """Whether this is checked in every run. The table shows such rows only if they are out of bounds."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def limit_of(name: str, simulated: bool) -> float | None:
    on_gpu, on_sim, _ = LIMITS[name]
    return on_sim if simulated else on_gpu


def compare(
    name: str, simulated: bool, what: str, known: float, measured: float, unit: str, note: str = "", slack: float = 0.0
) -> Row:
    """A row that is ok if ``measured`` differs from ``known`` by at most the threshold ``name`` plus ``slack``."""
    limit = limit_of(name, simulated)
    if limit is None:
        return Row(what, known, measured, unit, None, None, note)
    return Row(what, known, measured, unit, limit + slack, abs(measured - known) <= limit + slack, note)


def at_most(name: str, simulated: bool, what: str, measured: float, unit: str, note: str = "") -> Row:
    limit = limit_of(name, simulated)
    return Row(what, None, measured, unit, limit, None if limit is None else measured <= limit, note)


def figure(what: str, measured: float, unit: str, note: str = "") -> Row:
    return Row(what, None, measured, unit, None, None, note)


def skipped(what: str, why: str) -> Row:
    return Row(what, None, None, "", None, None, f"skipped: {why}")

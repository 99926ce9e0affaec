"""How long the GPUs of ranks were idle in compute. Ledgers do not have this, so the node's agent is asked."""

from __future__ import annotations

from collections.abc import Iterable

from ..agent.metrics.gpu import COMPUTE_IDLE, COMPUTE_OBSERVED
from ..agent.metrics.metric import Metric
from ..ledger.directory import Run
from ..ledger.reader import Ledger
from ..verdict.gaps import Idle
from . import exposition

NAMES: tuple[str, ...] = (COMPUTE_IDLE.name, COMPUTE_OBSERVED.name)
"""The metrics to ask an agent for."""


def on_accelerators(run: Run, ledgers: Iterable[Ledger]) -> bool:
    """Whether any rank of a run has an accelerator."""
    return any((one.owner, one.run) == run and one.device != "cpu" for one in ledgers)


def ask(address: str, run: Run) -> tuple[dict[int, Idle], str]:
    """Asks the agent at ``host:port``. Returns the same as `idle`."""
    return idle(exposition.read(address, *NAMES), run)


def idle(reading: exposition.Reading, run: Run) -> tuple[dict[int, Idle], str]:
    """Returns rank -> its compute in which no kernel ran, and the reason if that is not known."""
    if reading.why_not:
        return {}, reading.why_not
    found, covered = (_of_run(reading, metric, run) for metric in (COMPUTE_IDLE, COMPUTE_OBSERVED))
    why_not = "" if found else f"the agent at {reading.address} has no data about the GPUs of this run"
    return {rank: Idle(seconds, covered.get(rank, 0.0)) for rank, seconds in found.items()}, why_not


def _of_run(reading: exposition.Reading, metric: Metric, run: Run) -> dict[int, float]:
    return {
        int(sample.labels["rank"]): sample.value
        for sample in reading.samples
        if sample.name == metric.name
        and (sample.labels.get("owner", ""), sample.labels.get("run")) == run
        and sample.labels.get("rank", "").isdecimal()
    }

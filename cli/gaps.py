"""Asks the node's agent for how long the GPUs of ranks were idle in compute, which ledgers cannot know."""

from __future__ import annotations

from collections.abc import Iterable

from ..agent.metrics.gpu import COMPUTE_IDLE
from ..ledger.directory import Run
from ..ledger.reader import Ledger
from . import exposition


def on_accelerators(run: Run, ledgers: Iterable[Ledger]) -> bool:
    """Whether any rank of a run has a device of its own."""
    return any((one.owner, one.run) == run and one.device != "cpu" for one in ledgers)


def ask(address: str, run: Run) -> tuple[dict[int, float], str]:
    """-> (seconds of compute without a kernel by rank of the run, why there are none)."""
    try:
        samples = exposition.ask(address, COMPUTE_IDLE.name)
        found = {
            int(sample.labels["rank"]): sample.value
            for sample in samples
            if (sample.labels.get("owner", ""), sample.labels.get("run")) == run and "rank" in sample.labels
        }
    except (exposition.NoAgent, ValueError) as error:
        return {}, str(error)
    return found, "" if found else f"the agent at {address} has no data about the GPUs of this run"

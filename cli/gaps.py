"""Asks the node's agent for how long the GPUs of ranks were idle in compute, which ledgers cannot know."""

from __future__ import annotations

import http.client
from collections.abc import Iterable

from ..agent.metrics.gpu import COMPUTE_IDLE
from ..ledger.directory import Run
from ..ledger.reader import Ledger
from .exposition import fetch

TIMEOUT_SECONDS = 2.0
_MOST_BYTES = 64 << 20


def on_accelerators(run: Run, ledgers: Iterable[Ledger]) -> bool:
    """Whether any rank of a run has a device of its own."""
    return any((one.owner, one.run) == run and one.device != "cpu" for one in ledgers)


def ask(address: str, run: Run) -> tuple[dict[int, float], str]:
    """-> (seconds of compute without a kernel by rank of the run, why there are none)."""
    try:
        found = parse(fetch(address, TIMEOUT_SECONDS, _MOST_BYTES).decode("utf-8", "replace"), run)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        return {}, f"no agent answers at {address} ({getattr(reason, 'strerror', None) or reason})"
    return found, "" if found else f"the agent at {address} knows nothing of this run's GPUs"


def parse(text: str, run: Run) -> dict[int, float]:
    """The same in an exposition of the agent's metrics. Raises ValueError."""
    lines = "\n".join(line for line in text.splitlines() if line.startswith(COMPUTE_IDLE.name))
    found: dict[int, float] = {}
    if not lines:
        return found
    from prometheus_client.parser import text_string_to_metric_families

    for metric in text_string_to_metric_families(lines + "\n"):
        for sample in metric.samples:
            labels = sample.labels
            if (labels.get("owner", ""), labels.get("run")) == run and "rank" in labels:
                found[int(labels["rank"])] = sample.value
    return found

"""Faults of a node that its own counters show, from what its agent exports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..agent.metrics import gpu
from ..alerts.alerting.gpu import HELD_DOWN
from ..alerts.xids import numbers
from ..ledger.text import printable

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

HELD_DOWN_SHARE = 0.05
"""A GPU's clocks are held down if they are for this share of the time that is known."""
NAMES: tuple[str, ...] = tuple(
    metric.name for metric in (gpu.LOST, gpu.REMAP_FAILURE, gpu.XIDS, gpu.ECC_ERRORS, gpu.THROTTLED, gpu.OBSERVED)
)
_HARDWARE = {str(number) for number in (*numbers("reset"), *numbers("service"))}
_REASONS = frozenset(HELD_DOWN.split("|"))


def faults_of(samples: list[Sample]) -> list[str]:
    """A short phrase for each fault. Counters are of the time since the agent, or the driver, started."""
    observed: dict[str, float] = {}
    for sample in samples:
        if sample.name == gpu.OBSERVED.name:
            of = sample.labels.get("gpu", "")
            observed[of] = max(observed.get(of, 0.0), sample.value)
    return sorted({phrase for sample in samples for phrase in _faults(sample, observed)})


def _faults(sample: Sample, observed: dict[str, float]) -> Iterator[str]:
    labels, value = sample.labels, sample.value
    which = f"GPU {printable(labels.get('gpu', '?'))}"
    if not value > 0:
        return
    if sample.name == gpu.LOST.name:
        yield f"{which} is lost"
    elif sample.name == gpu.REMAP_FAILURE.name:
        yield f"{which} has a bad row of memory that could not be replaced"
    elif sample.name == gpu.XIDS.name and labels.get("xid") in _HARDWARE:
        yield f"{which} reported XID {labels['xid']}"
    elif sample.name == gpu.ECC_ERRORS.name:
        if labels.get("kind") == "uncorrected" and labels.get("since") == "volatile":
            yield f"{which} had {value:.0f} memory errors that ECC could not correct"
    elif sample.name == gpu.THROTTLED.name and labels.get("reason") in _REASONS:
        known = observed.get(labels.get("gpu", ""), 0.0)
        if known and value >= HELD_DOWN_SHARE * known:
            yield f"{which} ran with lowered clocks for {100 * min(1.0, value / known):.0f} % ({labels['reason']})"

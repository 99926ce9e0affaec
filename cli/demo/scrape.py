"""Asks the agent about the ranks, over HTTP as Prometheus does."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from ...ledger.causes import CAUSE_FAMILY, FAMILIES
from ..exposition import fetch

_TIMEOUT_SECONDS = 3.0


@dataclass(slots=True)
class RankView:
    """One rank at one scrape. Seconds count from its first step."""

    steps: int = 0
    families: dict[str, float] = field(default_factory=lambda: dict.fromkeys(FAMILIES, 0.0))
    phase: str = ""
    phase_seconds: float = 0.0
    alive: bool = False

    @property
    def seconds(self) -> float:
        return sum(self.families.values()) + (self.phase_seconds if self.steps else 0.0)


def scrape(address: str) -> dict[int, RankView]:
    """The ranks by number. Raises OSError if the agent does not answer, and ValueError if its answer is not valid."""
    return parse(fetch(address, _TIMEOUT_SECONDS).decode("utf-8"))


def parse(text: str) -> dict[int, RankView]:
    """The ranks in an exposition of the agent's metrics. Raises ValueError."""
    ranks: dict[int, RankView] = {}
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            if "rank" in sample.labels:
                _add(ranks.setdefault(int(sample.labels["rank"]), RankView()), sample.name, sample.labels, sample.value)
    return ranks


def _add(rank: RankView, name: str, labels: dict[str, str], value: float) -> None:
    if name == "whyidle_device_seconds_total":
        if labels["cause"] != "startup":
            rank.families[labels["family"]] += value
    elif name == "whyidle_device_pending_seconds":
        rank.families[CAUSE_FAMILY["collective"]] += value
    elif name == "whyidle_steps_total":
        rank.steps = int(value)
    elif name == "whyidle_phase_open_seconds":
        rank.phase, rank.phase_seconds = labels["phase"], value
    elif name == "whyidle_rank_up":
        rank.alive = value == 1.0

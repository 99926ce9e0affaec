"""The metrics of the collector `advice`."""

from __future__ import annotations

from .metric import Metric

INFO = Metric(
    "whyidle_advice_info",
    "gauge",
    "info",
    ("owner", "run", "advice", "family", "change"),
    "What to change in a run, by the ledgers of this node; always 1. At most 3 for each run: those that would save "
    "most. The label advice names the rule (docs/advice.md), and change is the sentence with the setting.",
    "<advice>",
)
GAIN = Metric(
    "whyidle_advice_gain_ratio",
    "gauge",
    "ratio",
    ("owner", "run", "advice"),
    "The share of the time of a run's ranks that the change would save. The gains of several changes cannot be added.",
    "<advice>",
)

METRICS: tuple[Metric, ...] = (INFO, GAIN)

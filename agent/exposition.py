"""Renders samples as text, in Prometheus's own format or as OpenMetrics.

prometheus_client renders 500 samples of a custom collector in 2.4 ms. This module keeps the names and labels of each
series as text and takes 0.4 ms. The tests check its output with prometheus_client's parsers and promtool.

Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ and
https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from .metrics.metric import Metric
from .reading import Histogram, Labels

Samples = Mapping[Labels, "float | Histogram"]

_SPARE = 100
"""Texts of a metric are cleaned up above this number, if most of their series are gone: ranks come and go."""


class _Series:
    """The text of one series, and its last line: most values of a node do not change between two scrapes."""

    __slots__ = ("line", "text", "value")

    def __init__(self, text: str):
        self.text = text
        self.value: float | Histogram | None = None
        self.line = ""


class _Buckets(NamedTuple):
    """The texts of a histogram's lines."""

    bounds: tuple[float, ...]
    texts: list[str]


class Exposition:
    """Renders samples. Keeps the text before each value between scrapes. Not thread-safe."""

    def __init__(self) -> None:
        self._heads: dict[tuple[Metric, bool], str] = {}
        self._texts: dict[Metric, dict[Labels, Any]] = {}  # _Series or, for histograms, _Buckets

    def render(
        self, metrics: Iterable[Metric], readings: Sequence[Mapping[Metric, Samples]], *, openmetrics: bool
    ) -> str:
        """The text of all samples, in the order of ``metrics``. Metrics without samples are left out.

        The text does not contain OpenMetrics's final ``# EOF``.
        """
        found: dict[Metric, list[Samples]] = {}
        for reading in readings:
            for metric, samples in reading.items():
                if samples:
                    found.setdefault(metric, []).append(samples)
        lines: list[str] = []
        for metric in metrics:
            if metric in found:
                lines.append(self._head(metric, openmetrics))
                texts = self._texts.setdefault(metric, {})
                write = _histograms if metric.type == "histogram" else _values
                for samples in found[metric]:
                    write(metric, samples, texts, lines)
        self._forget(found)
        return "".join(lines)

    def _forget(self, found: dict[Metric, list[Samples]]) -> None:
        """Removes the texts of series that are gone, once they are more than those that exist."""
        if len(self._texts) > len(found):
            self._texts = {metric: texts for metric, texts in self._texts.items() if metric in found}
        for metric, texts in self._texts.items():
            if len(texts) > _SPARE and len(texts) > 2 * sum(map(len, found[metric])):
                self._texts[metric] = {labels: texts[labels] for samples in found[metric] for labels in samples}

    def _head(self, metric: Metric, openmetrics: bool) -> str:
        head = self._heads.get((metric, openmetrics))
        if head is None:
            name = metric.name.removesuffix("_total") if openmetrics and metric.type == "counter" else metric.name
            help_text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
            if openmetrics:
                help_text = help_text.replace('"', r"\"")
            head = f"# HELP {name} {help_text}\n# TYPE {name} {metric.type}\n"
            self._heads[metric, openmetrics] = head
        return head


def _values(metric: Metric, samples: Samples, texts: dict[Labels, _Series], lines: list[str]) -> None:
    for labels, value in samples.items():
        kept = texts.get(labels)
        if kept is None:
            kept = texts[labels] = _Series(f"{metric.name}{_braces(metric.labels, labels)} ")
        if kept.value != value or kept.value.__class__ is not value.__class__:
            kept.value = value
            kept.line = f"{kept.text}{value!r}\n" if _is_number(value) else ""
        lines.append(kept.line)


def _histograms(metric: Metric, samples: Samples, texts: dict[Labels, _Buckets], lines: list[str]) -> None:
    for labels, value in samples.items():
        assert isinstance(value, Histogram)
        kept = texts.get(labels)
        if kept is None or kept.bounds != value.bounds:
            kept = texts[labels] = _Buckets(value.bounds, _histogram_texts(metric, labels, value.bounds))
        for text, number in zip(kept.texts, (*value.counts, value.counts[-1], value.sum), strict=True):
            lines.append(f"{text}{number!r}\n")


def _is_number(value: object) -> bool:
    """Whether Prometheus can parse the value. Others are left out: one bad line would make the whole answer invalid."""
    return value.__class__ is int or (isinstance(value, float) and isfinite(value))


def _histogram_texts(metric: Metric, labels: Labels, bounds: tuple[float, ...]) -> list[str]:
    names = (*metric.labels, "le")
    buckets = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    braces = _braces(metric.labels, labels)
    return [
        *(f"{metric.name}_bucket{_braces(names, (*labels, bucket))} " for bucket in buckets),
        f"{metric.name}_count{braces} ",
        f"{metric.name}_sum{braces} ",
    ]


def _braces(names: Sequence[str], values: Labels) -> str:
    """The labels in braces. Empty labels are left out: to Prometheus they are the same as absent ones."""
    pairs = [f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True) if value]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escape(value: str) -> str:
    value = value.encode("utf-8", "backslashreplace").decode()  # file names may contain bytes that are not UTF-8
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

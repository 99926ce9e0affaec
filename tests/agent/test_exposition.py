"""The text of a scrape is read back correctly by Prometheus's own parsers, for all labels and values."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from whyidle.agent import exposition as module
from whyidle.agent.exposition import Exposition
from whyidle.agent.metrics import METRICS, Metric
from whyidle.agent.reading import Histogram, Labels

LEVEL = Metric("whyidle_some_level_ratio", "gauge", "ratio", ("a", "b"), 'Has a \\ and a "quote"\nand lines.', "x")
COUNT = Metric("whyidle_some_events_total", "counter", "events", ("a",), "Some events.", "x")
STEPS = Metric("whyidle_some_step_seconds", "histogram", "seconds", ("a",), "Some steps.", "x")
BOUNDS = (0.1, 1.0, 10.0)

Series = dict[Metric, dict[Labels, "float | Histogram"]]
Read = dict[tuple[str, tuple[tuple[str, str], ...]], float]

TEXT = st.text(max_size=20) | st.text('\\"\n\r\t{}=, aé\0\x85\u2028\x1c')
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 2**64 - 1) | st.floats(0, allow_nan=False, allow_infinity=False)
HISTOGRAMS = st.builds(
    lambda counts, total: Histogram(BOUNDS, sorted(counts), total),
    st.lists(st.integers(0, 2**40), min_size=4, max_size=4),
    st.floats(0, 1e12),
)
SERIES = st.fixed_dictionaries(
    {
        LEVEL: st.dictionaries(st.tuples(TEXT, TEXT), NUMBERS, max_size=5),
        COUNT: st.dictionaries(st.tuples(TEXT), COUNTS, max_size=5),
        STEPS: st.dictionaries(st.tuples(TEXT), HISTOGRAMS, max_size=3),
    }
)


def render(*readings: Series, openmetrics: bool = False, exposition: Exposition | None = None) -> str:
    text = (exposition or Exposition()).render((LEVEL, COUNT, STEPS), readings, openmetrics=openmetrics)
    return text + ("# EOF\n" if openmetrics else "")


def read(text: str, parse: Callable[[str], Iterable[object]]) -> Read:
    samples: list[Sample] = [sample for family in parse(text) for sample in family.samples]  # pyright: ignore[reportAttributeAccessIssue]
    found = {(one.name, tuple(sorted(one.labels.items()))): float(one.value) for one in samples}
    assert len(found) == len(samples), "a series is there twice"
    return found


def expected(series: Series) -> Read:
    found: Read = {}
    for metric, samples in series.items():
        for labels, value in samples.items():
            pairs = {name: text for name, text in zip(metric.labels, labels, strict=True) if text}
            if isinstance(value, Histogram):
                for bound, number in zip((*BOUNDS, math.inf), value.counts, strict=True):
                    bucket = {**pairs, "le": "+Inf" if bound == math.inf else str(bound)}
                    found[metric.name + "_bucket", tuple(sorted(bucket.items()))] = number
                found[metric.name + "_count", tuple(sorted(pairs.items()))] = value.counts[-1]
                found[metric.name + "_sum", tuple(sorted(pairs.items()))] = value.sum
            else:
                found[metric.name, tuple(sorted(pairs.items()))] = float(value)
    return found


def printable(series: Series) -> bool:
    """Python's parser of OpenMetrics accepts other line ends too; Prometheus's does not."""
    return all(text.isprintable() for samples in series.values() for labels in samples for text in labels)


@given(SERIES)
def test_rendered_text_is_read_back(series: Series) -> None:
    assert read(render(series), parse_text) == expected(series)


@given(SERIES)
def test_rendered_openmetrics_text_is_read_back(series: Series) -> None:
    if printable(series):
        assert read(render(series, openmetrics=True), parse_openmetrics) == expected(series)


@given(st.lists(SERIES, max_size=6), st.booleans())
def test_cached_text_does_not_change_the_output(scrapes: list[Series], openmetrics: bool) -> None:
    kept = Exposition()
    for series in scrapes:
        assert render(series, openmetrics=openmetrics, exposition=kept) == render(series, openmetrics=openmetrics)


@given(st.lists(st.tuples(TEXT, NUMBERS), min_size=1, max_size=20))
@settings(max_examples=25, deadline=None)
@pytest.mark.skipif(not shutil.which("promtool"), reason="asks promtool, of the package prometheus")
def test_promtool_accepts_the_text(pairs: list[tuple[str, float]]) -> None:
    """Prometheus's own parser checks more than the one in Python."""
    series: Series = {LEVEL: {(text, str(number)): value for number, (text, value) in enumerate(pairs)}}
    series[COUNT] = {(f"{text}{number}",): abs(value) for number, (text, value) in enumerate(pairs)}
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=render(series).encode(), capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_renders_the_expected_text() -> None:
    series: Series = {
        COUNT: {("x\ny",): 3, ("",): 0.5},
        LEVEL: {("1", ""): 1 << 60},
        STEPS: {("z",): Histogram(BOUNDS, [0, 1, 1, 2], 12.5)},
    }
    assert render(series, openmetrics=True) == (
        r"# HELP whyidle_some_level_ratio Has a \\ and a \"quote\"\nand lines." + "\n"
        "# TYPE whyidle_some_level_ratio gauge\n"
        'whyidle_some_level_ratio{a="1"} 1152921504606846976\n'
        "# HELP whyidle_some_events Some events.\n"
        "# TYPE whyidle_some_events counter\n"
        'whyidle_some_events_total{a="x\\ny"} 3\n'
        "whyidle_some_events_total 0.5\n"
        "# HELP whyidle_some_step_seconds Some steps.\n"
        "# TYPE whyidle_some_step_seconds histogram\n"
        'whyidle_some_step_seconds_bucket{a="z",le="0.1"} 0\n'
        'whyidle_some_step_seconds_bucket{a="z",le="1.0"} 1\n'
        'whyidle_some_step_seconds_bucket{a="z",le="10.0"} 1\n'
        'whyidle_some_step_seconds_bucket{a="z",le="+Inf"} 2\n'
        'whyidle_some_step_seconds_count{a="z"} 2\n'
        'whyidle_some_step_seconds_sum{a="z"} 12.5\n'
        "# EOF\n"
    )
    assert "# TYPE whyidle_some_events_total counter\n" in render(series)


def test_file_names_that_are_not_utf8_stay_distinct() -> None:
    names = [os.fsdecode(name) for name in (b"\x80", b"\x81", b"?")]
    series: Series = {COUNT: {(name,): number for number, name in enumerate(names)}}
    assert sorted(read(render(series), parse_text).values()) == [0, 1, 2]


def test_a_metric_may_come_from_several_readings() -> None:
    text = render({COUNT: {("a",): 1}}, {LEVEL: {("a", "b"): 2}}, {COUNT: {("b",): 3}}, {COUNT: {}})
    assert text.count("# TYPE") == 2
    assert sorted(read(text, parse_text).values()) == [1, 2, 3]


def test_a_value_of_another_type_is_rendered_again() -> None:
    kept = Exposition()
    texts = [render({COUNT: {("a",): value}}, exposition=kept).splitlines()[-1] for value in (1, 1, 1.0, 2, 1)]
    assert [text.rpartition(" ")[2] for text in texts] == ["1", "1", "1.0", "2", "1"]


def test_cached_text_of_removed_series_is_dropped() -> None:
    """Hundreds of ranks come and go."""
    kept = Exposition()
    histogram = Histogram(BOUNDS, [0, 1, 1, 2], 12.5)
    for number in range(1000):
        render({COUNT: {(str(number),): number}, STEPS: {(str(number),): histogram}}, exposition=kept)
        assert max(map(len, kept._texts.values())) <= module._SPARE + 1
    series: Series = {COUNT: {(str(number),): number for number in range(1000)}}
    render(series, exposition=kept)
    assert {metric: len(texts) for metric, texts in kept._texts.items()} == {COUNT: 1000}
    render({COUNT: {("1",): 1}}, exposition=kept)
    assert {metric: len(texts) for metric, texts in kept._texts.items()} == {COUNT: 1}


def test_metric_names_do_not_collide_in_openmetrics() -> None:
    """In OpenMetrics, the name of a counter has no _total, and a histogram adds its own names."""
    suffixes = {"counter": ("_total", "_created"), "histogram": ("_bucket", "_count", "_sum", "_created"), "gauge": ()}
    names = []
    for metric in METRICS:
        family = metric.name.removesuffix("_total") if metric.type == "counter" else metric.name
        names += [family, *(family + suffix for suffix in suffixes[metric.type])]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, True, "7"])
def test_a_value_that_is_not_a_number_affects_only_its_own_series(value: float) -> None:
    """No collector should return such a value. If one does, the other series must not suffer."""
    text = Exposition().render([COUNT], [{COUNT: {("bad",): value, ("good",): 7}}], openmetrics=False)
    assert text.splitlines()[2:] == ['whyidle_some_events_total{a="good"} 7']

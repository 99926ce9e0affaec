"""A day of a real Prometheus: what it scraped and what its rules recorded meanwhile, written within a minute.

Each recording rule is evaluated over the whole day by the server itself, and its results are sent back to the server
before the next rule is evaluated. Scrapes and groups of rules are at their own moments, as on a server that runs for a
day: the samples of a group lie exactly on the edges of the windows of its own rules. While the server is down, there
are neither scrapes nor evaluations.
"""

from __future__ import annotations

import math
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from remote_write import HEADERS, block, field, varint
from support_history import SCRAPE, History, Series
from support_prometheus import PROMETHEUS, Labels, Prometheus
from support_sums import LABEL, expanded, with_sums
from support_yaml import write_yaml

from whyidle.alerts.promql import seconds
from whyidle.alerts.rule import Group, Record

VICTORIA_METRICS = shutil.which("victoria-metrics")
SCRAPED_AT = 3.217
"""When in its interval a target is scraped, in seconds. Evaluations of rules have other moments."""
APART = 0.531
"""By how much later the next group of rules is evaluated."""
STALE = struct.pack("<Q", 0x7FF0000000000002)
"""The value with which Prometheus ends a series (model/value/value.go)."""
LATE = {"storage": {"tsdb": {"out_of_order_time_window": "2d"}}}
"""The recorded series are sent after scrapes of later times."""

Points = list[tuple[float, "float | None"]]
"""Moments and values, None for the end of a series."""
_no_proxy = build_opener(ProxyHandler({}))


class Writable(Prometheus):
    """A Prometheus without targets and rules that accepts what is written. If it ran before, it has its data."""

    def __init__(self, folder: Path):
        (folder / "prometheus.yml").write_text(write_yaml(LATE))
        super().__init__(folder, "--web.enable-remote-write-receiver")

    def write(self, series: Sequence[bytes]) -> None:
        """Sends a request of Prometheus's remote write."""
        request = Request(f"{self.url}/api/v1/write", block(b"".join(series)), HEADERS)
        _no_proxy.open(request, timeout=120).close()


class VictoriaMetrics(Writable):
    """The same, of VictoriaMetrics as a single node."""

    def __init__(self, folder: Path):
        assert VICTORIA_METRICS, "needs victoria-metrics, of the Debian package of that name"
        self._start(
            folder,
            *(VICTORIA_METRICS, "-httpListenAddr=127.0.0.1:0", f"-storageDataPath={folder / 'data'}"),
            *("-retentionPeriod=1y", "-search.maxQueryLen=1MB"),
        )

    def write(self, series: Sequence[bytes]) -> None:
        super().write(series)
        self.flush()

    def flush(self) -> None:
        """Otherwise queries see new data some seconds later."""
        _no_proxy.open(f"{self.url}/internal/force_flush", timeout=120).close()

    def _ask(self, path: str, **parameters: str | Sequence[str]) -> Any:
        """Without `nocache`, the moments of a range query are rounded to multiples of its step."""
        return super()._ask(path, **parameters, nocache="1")


SERVERS: dict[str, tuple[str | None, type[Writable]]] = {
    "prometheus": (PROMETHEUS, Writable),
    "victoria-metrics": (VICTORIA_METRICS, VictoriaMetrics),
}
"""Debian package -> its program, if it is here, and how to run it."""


class Day:
    """What a server records between two moments, except while it is ``down``. All times are in Unix seconds."""

    def __init__(self, server: Writable, begin: float, end: float, down: Sequence[tuple[float, float]]):
        self.server = server
        begins, ends = [begin, *(back for _, back in down)], [*(gone for gone, _ in down), end]
        self.up = list(zip(begins, ends, strict=True))

    def scrape(self, history: History) -> None:
        """What the agents of a run's nodes export, the sums over ranks included."""
        of = {name: " ".join(values) for name, values in _values(history).items()}
        written: list[bytes] = []
        for name, text in with_sums(of.items()):
            seen: dict[float, float] = {
                history.began + SCRAPED_AT + at * SCRAPE: value
                for at, value in enumerate(expanded(text))
                if value is not None and value == value
            }
            labels = {"__name__": name.partition("{")[0], **dict(LABEL.findall(name))}
            grids = [list(_moments(history.began + SCRAPED_AT, SCRAPE, begin, end)) for begin, end in self.up]
            written.append(time_series(labels, _ended(seen, grids)))
        self.server.write(written)

    def evaluate(self, groups: Iterable[Group]) -> None:
        """Records what the rules of the groups record, one rule after the other."""
        for number, group in enumerate(groups):
            every = seconds(group.interval or "1m")
            grids = [list(_moments((number + 1) * APART, every, begin, end)) for begin, end in self.up]
            for rule in group.rules:
                assert isinstance(rule, Record)
                self._record(rule, every, grids)

    def _record(self, rule: Record, every: float, grids: list[list[float]]) -> None:
        found: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
        for grid in grids:
            for labels, points in self.server.points(rule.expr, grid[0], grid[-1], every):
                key = tuple(sorted({**labels, **rule.labels, "__name__": rule.name}.items()))
                found.setdefault(key, {}).update(points)
        if found:
            self.server.write([time_series(dict(labels), _ended(seen, grids)) for labels, seen in found.items()])


def _values(history: History) -> dict[str, list[str]]:
    """Series of ranks and agents, with a value for each scrape, in promtool's notation."""
    scrapes = round((history.now - history.began) / SCRAPE) + 1
    given: Series = history.series(recorded=False)
    live = {name.partition("{")[2].split(", node=")[0] for name in given if name.startswith("whyidle_rank_info")}
    found: dict[str, list[str]] = {}

    def put(name: str, points: Iterable[tuple[float, float]]) -> None:
        values = found.setdefault(name, ["_"] * scrapes)
        for moment, value in points:
            values[round((moment - history.began) / SCRAPE)] = repr(value)

    for name, points in given.items():
        put(name, points)
    for rank in live:
        up = f"whyidle_rank_up{{{rank}}}"
        put(
            up,
            ((at, 0.0) for name in given if name.startswith(f"whyidle_steps_total{{{rank}") for at, _ in given[name]),
        )
        opened = (name for name in given if name.startswith(f"whyidle_phase_open_seconds{{{rank}"))
        put(up, ((at, 1.0) for name in opened for at, _ in given[name]))
    for node in {node for one in history.tries for node in one.nodes}:
        agent = f'job="whyidle", instance="{node}:9838"'
        found[f'whyidle_collector_up{{{agent}, collector="ranks"}}'] = ["1"] * scrapes
        found[f'whyidle_node_info{{{agent}, node="{node}"}}'] = ["1"] * scrapes
    return found


def _moments(first: float, every: float, begin: float, end: float) -> Iterator[float]:
    """The moments of a grid from ``begin`` to ``end``."""
    number = math.ceil((begin - first) / every)
    while first + number * every <= end:
        yield round(first + number * every, 3)
        number += 1


def _ended(seen: Mapping[float, float], grids: Iterable[Iterable[float]]) -> Points:
    """The values, with an end after each value that has no successor. A server that is down does not end a series."""
    values = {round(at, 3): value for at, value in seen.items()}
    found: Points = []
    for grid in grids:
        before = False
        for at in grid:
            value = values.get(at)
            if value is not None or before:
                found.append((at, value))
            before = value is not None
    return found


def time_series(labels: Labels, points: Points) -> bytes:
    """A TimeSeries of Prometheus's remote write."""
    named = b"".join(
        field(1, field(1, name.encode()) + field(2, text.encode())) for name, text in sorted(labels.items()) if text
    )
    samples = b"".join(
        field(2, b"\x09" + (STALE if value is None else struct.pack("<d", value)) + b"\x10" + varint(round(at * 1000)))
        for at, value in points
    )
    return field(1, named + samples)

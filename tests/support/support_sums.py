"""The sums that an agent exports for each run besides the series of its ranks, for tests in promtool's notation. They
are sums over the ranks of a node, and do not fall (agent/run_sums.py)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from whyidle.agent.metrics import METRIC

SUMS: dict[str, str] = {
    f"whyidle_{name}": f"whyidle_run_{name}"
    for name in (
        "device_seconds_total",
        "waited_for_seconds_total",
        "collective_bytes_total",
        "compute_idle_seconds_total",
        "steps_total",
        "checkpoints_total",
        "hook_faults_total",
    )
}
"""A counter of ranks -> their sum by run and node."""
UP, ENDED, LIVE = "whyidle_rank_up", "whyidle_rank_killed", "whyidle_run_ranks"
GROUP_WAITS, TRANSFERS = "whyidle_group_wait_seconds_total", "whyidle_run_group_transfer_seconds_total"
UNHOOKED = "whyidle_unhooked_seconds_total"
STALE = float("nan")
"""Stands for promtool's `stale`: the series has disappeared."""
OF_TARGET = ("cluster", "job", "instance")
LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')

Values = list["float | None"]


def expanded(text: str) -> Values:
    """Samples in promtool's notation, None for a missing one, or STALE."""
    found: Values = []
    for word in text.split():
        what, _, times = word.partition("x")
        if what in ("_", "stale"):
            found += [None if what == "_" else STALE] * int(times or 1)
            continue
        match = re.fullmatch(r"(-?[\d.]+(?:e[+-]?\d+)?)([+-][\d.]+(?:e[+-]?\d+)?)?", what)
        assert match is not None, word
        begin, step = float(match[1]), float(match[2] or 0)
        found += [begin + step * at for at in range(int(times or 0) + 1)]
    return found


def with_sums(series: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The series, names and values, the sums that an agent computes from them, and the series of ended ranks."""
    given = list(series)
    yield from given
    parsed = [(name.partition("{")[0], dict(LABEL.findall(name)), values) for name, values in given]
    nodes = {_rank(labels): labels["node"] for _, labels, _ in parsed if labels.get("run") and "node" in labels}
    yield from _ended(given, nodes)
    parts: dict[tuple[str, tuple[tuple[str, str], ...]], list[Values]] = {}
    for name, labels, values in parsed:
        if to := _sum_of(name, labels):
            labels.setdefault("node", nodes.get(_rank(labels), ""))
            kept = (*OF_TARGET, *METRIC[to].labels)
            key = to, tuple((label, labels[label]) for label in kept if label in labels)
            parts.setdefault(key, []).append(expanded(values))
    for (name, labels), several in parts.items():
        chosen = ", ".join(f'{label}="{value}"' for label, value in labels)
        total = _number(several) if name == LIVE else _sum(several, sparse=name == UNHOOKED or METRIC[name].sparse)
        yield f"{name}{{{chosen}}}", " ".join(map(_written, total))


def _ended(series: list[tuple[str, str]], nodes: Mapping[tuple[str, ...], str]) -> Iterator[tuple[str, str]]:
    """A rank that has ended has a series that others do not have."""
    given = {_rank(dict(LABEL.findall(name))) for name, _ in series if name.startswith(ENDED)}
    for name, values in series:
        rank = _rank(dict(LABEL.findall(name)))
        if name.startswith(UP) and rank not in given and 0.0 in (alive := expanded(values)):
            of = f'{name.removesuffix("}").replace(UP, ENDED)}, node="{nodes.get(rank, "")}"}}'
            yield of, " ".join(_written(0.0 if up == 0.0 else STALE) for up in alive)


def _sum_of(name: str, labels: dict[str, str]) -> str:
    """The sum that a series is part of, or nothing."""
    if labels.get("run"):
        if name == GROUP_WAITS:
            return TRANSFERS if labels.get("part") == "network" else ""
        return LIVE if name == UP else SUMS.get(name, "")
    return UNHOOKED if name == "whyidle_device_seconds_total" else ""


def _written(value: float | None) -> str:
    return "_" if value is None else "stale" if value != value else repr(value)


def _rank(labels: dict[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(label, "") for label in (*OF_TARGET, "owner", "run", "rank"))


def _at_each_time(several: list[Values]) -> Iterator[Values]:
    for at in range(max(map(len, several))):
        yield [values[at] if at < len(values) else None for values in several]


def _gone(seen: Values) -> float | None:
    """STALE if a series has disappeared, for times at which none has a value."""
    return next((value for value in seen if value is not None), None)


def _number(several: list[Values]) -> Values:
    found: Values = []
    for seen in _at_each_time(several):
        known = [value for value in seen if value is not None and value == value]
        found.append(sum(known) if known else _gone(seen))
    return found


def _sum(several: list[Values], *, sparse: bool) -> Values:
    """The sum of counters, which does not fall. With ``sparse``, a sum of 0 has no series."""
    found: Values = []
    total, last = 0.0, [0.0] * len(several)
    for seen in _at_each_time(several):
        known = False
        for rank, value in enumerate(seen):
            if value is not None and value == value:
                known = True
                total += value - last[rank] if value >= last[rank] else value
                last[rank] = value
        found.append((total if total or not sparse else None) if known else _gone(seen))
    return found

"""The sums that an agent exports for each run besides the series of its ranks, for tests in promtool's notation. They
are sums over the ranks of a node, and do not fall (agent/run_sums.py)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from whyidle.agent.metrics import METRIC

SUMS: dict[str, str] = {
    f"whyidle_{name}": f"whyidle_run_{name}"
    for name in (
        "device_seconds_total",
        "waited_for_seconds_total",
        "collective_bytes_total",
        "compute_idle_seconds_total",
    )
}
"""A metric of ranks -> their sum by run and node."""
OF_TARGET = ("cluster", "job", "instance")
LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')

Values = list["float | None"]


def expanded(text: str) -> Values:
    """Samples in promtool's notation, or None for a missing one."""
    found: Values = []
    for word in text.split():
        what, _, times = word.partition("x")
        if what in ("_", "stale"):
            found += [None] * int(times or 1)
            continue
        match = re.fullmatch(r"(-?[\d.]+(?:e[+-]?\d+)?)([+-][\d.]+(?:e[+-]?\d+)?)?", what)
        assert match is not None, word
        begin, step = float(match[1]), float(match[2] or 0)
        found += [begin + step * at for at in range(int(times or 0) + 1)]
    return found


def with_sums(series: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The series, names and values, and the sums that an agent computes from them."""
    given = list(series)
    yield from given
    parsed = [(name.partition("{")[0], dict(LABEL.findall(name)), values) for name, values in given]
    nodes = {_rank(labels): labels["node"] for _, labels, _ in parsed if labels.get("run") and "node" in labels}
    parts: dict[tuple[str, tuple[tuple[str, str], ...]], list[Values]] = {}
    for name, labels, values in parsed:
        if name in SUMS and labels.get("run"):
            labels.setdefault("node", nodes.get(_rank(labels), ""))
            kept = (*OF_TARGET, *METRIC[SUMS[name]].labels)
            key = SUMS[name], tuple((label, labels[label]) for label in kept if label in labels)
            parts.setdefault(key, []).append(expanded(values))
    for (name, labels), of_ranks in parts.items():
        chosen = ", ".join(f'{label}="{value}"' for label, value in labels)
        yield f"{name}{{{chosen}}}", " ".join("_" if value is None else repr(value) for value in _sum(of_ranks))


def _rank(labels: dict[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(label, "") for label in (*OF_TARGET, "owner", "run", "rank"))


def _sum(of_ranks: list[Values]) -> Values:
    found: Values = []
    total, last = 0.0, [0.0] * len(of_ranks)
    for at in range(max(map(len, of_ranks))):
        seen = [values[at] if at < len(values) else None for values in of_ranks]
        for rank, value in enumerate(seen):
            if value is not None:
                total += value - last[rank] if value >= last[rank] else value
                last[rank] = value
        # A sum that is 0 has no series.
        found.append(total if total and any(value is not None for value in seen) else None)
    return found

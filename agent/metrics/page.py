"""Writes docs/metrics.md from the declarations: `python -m whyidle.agent.metrics.page`. `--check` only compares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from . import BY_COLLECTOR
from .metric import Metric

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

INTRODUCTION = """# Metrics

Generated from the declarations in `agent/metrics/` by `make docs`; edit those.

Every series below comes from `whyidle agent`. A value that could not be read is absent, never 0 and never the last
good one; `whyidle_read_errors_total` counts it, with the file or the call. Units are base units: seconds, bytes, ratios
from 0 to 1. A label that is empty is left out. A collector is left out with `--no-collector.<name>`. Sources under
`/proc` and `/sys` follow `--path.procfs` and `--path.sysfs`.
"""

TITLES: dict[str, str] = {"own": "The agent itself"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/metrics.md from the declarations of all metrics.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    args = parser.parse_args()
    text = render()
    if not args.check:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print("docs/metrics.md differs from the declarations in agent/metrics/: run `make docs`", file=sys.stderr)
    return 1


def render() -> str:
    """The page, as Markdown."""
    return "\n".join([INTRODUCTION, *_contents(), *(line for name in BY_COLLECTOR for line in _section(name))])


def _title(name: str) -> str:
    return TITLES.get(name, f"Collector `{name}`")


def _contents() -> Iterator[str]:
    from ..collector import COLLECTORS  # here, because the declarations may import only the standard library

    reads = {entry.name: entry.reads for entry in COLLECTORS}
    reads["own"] = "what the agent costs, and what it could not read"
    yield "| collector | reads | metrics |"
    yield "| --- | --- | --- |"
    for name, metrics in BY_COLLECTOR.items():
        anchor = _title(name).lower().replace("`", "").replace(" ", "-")
        yield f"| [{name}](#{anchor}) | {reads[name]} | {len(metrics)} |"
    yield ""


def _section(name: str) -> Iterator[str]:
    yield f"## {_title(name)}\n"
    yield "| metric | type | unit | labels | meaning | source |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for metric in BY_COLLECTOR[name]:
        yield _row(name, metric)
    yield ""


def _row(collector: str, metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    cells = (f"`{metric.name}`", metric.type, metric.unit, labels, metric.help, _source(collector, metric))
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _source(collector: str, metric: Metric) -> str:
    if metric.source.startswith("<"):
        return f"computed: {metric.source.strip('<>')}"
    if collector == "ranks":
        return f"ledger: `{metric.source}`"
    return metric.source if " " in metric.source else f"`{metric.source}`"


if __name__ == "__main__":
    sys.exit(main())

"""Chooses the run of a command among all runs in a Prometheus."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from typing import NamedTuple

from ...alerts.recording.names import RUN_RANKS, spent
from ...ledger.directory import Run
from ...ledger.text import as_stored
from ..choice import name_of
from ..quantities import in_time
from .client import Labels, NoAnswer, Prometheus

SECONDS = spent("run_node_cause")
"""The recorded series of device-seconds of a run, by node and cause, that each evaluation added."""
CLUSTER = "cluster"
_SHOWN = 12


class Chosen(NamedTuple):
    """A run in a Prometheus, and the time range to look at."""

    run: Run
    matchers: str
    start: float
    end: float

    def of(self, metric: str, matchers: str = "") -> str:
        """A selector of a metric for this run."""
        return f"{metric}{{{', '.join(part for part in (self.matchers, matchers) if part)}}}"


def equal(label: str, value: str) -> str:
    """A matcher for an exact value. Strings in PromQL are escaped as in Go, and therefore as in JSON."""
    return f"{label}={json.dumps(value, ensure_ascii=False)}"


def choose(asked: Prometheus, args: argparse.Namespace, back: float, whose: str = "with --owner") -> Chosen:
    """The run that the arguments name, within the last ``back`` seconds. Raises NoAnswer if no run or several match.

    ``whose`` tells the user how to name an owner.
    """
    end = time.time()
    start = end - back
    matchers = _matchers(args, args.owner, args.run_name)
    found = _places(asked.series(f"{SECONDS}{{{matchers}}}", start, end))
    if not found and not args.owner and "/" in (args.run_name or ""):
        owner, _, name = args.run_name.partition("/")
        found = _places(asked.series(f"{SECONDS}{{{_matchers(args, owner, name)}}}", start, end))
    if not found:
        raise NoAnswer(_why_none(asked, args, matchers, start, end))
    runs = {(owner, name) for _, owner, name in found}
    if len(runs) > 1:
        if args.run_name:
            owners = ", ".join(sorted(owner for owner, _ in runs))
            raise NoAnswer(f"several owners have a run {args.run_name}: {owners}. Say which {whose}")
        raise NoAnswer(f"{asked.url} has several runs: {_names(runs)}. Say which one")
    (run,) = runs
    clusters = sorted({cluster for cluster, _, _ in found})
    if len(clusters) > 1:
        named = ", ".join(cluster or "(none)" for cluster in clusters)
        raise NoAnswer(f"there is a run {name_of(run)} in several clusters: {named}. Say which with --cluster")
    places = [("owner", run[0]), ("run", run[1]), *([(CLUSTER, clusters[0])] if clusters[0] else [])]
    return Chosen(run, ", ".join(equal(label, value) for label, value in places), start, end)


def _matchers(args: argparse.Namespace, owner: str | None, name: str | None) -> str:
    exact = {label: as_stored(label, value) for label, value in (("run", name), ("owner", owner)) if value}
    if args.cluster:
        exact[CLUSTER] = args.cluster
    return ", ".join(equal(label, value) for label, value in exact.items())


def _places(series: Iterable[Labels]) -> set[tuple[str, str, str]]:
    """The (cluster, owner, run) of each series."""
    return {(one.get(CLUSTER, ""), one.get("owner", ""), one["run"]) for one in series if one.get("run")}


def _names(runs: Iterable[Run]) -> str:
    names = sorted(map(name_of, runs))
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _why_none(asked: Prometheus, args: argparse.Namespace, matchers: str, start: float, end: float) -> str:
    window = in_time(end - start)
    known = {(owner, name) for _, owner, name in _places(asked.series(RUN_RANKS, start, end))}
    scraped = _places(asked.series(f"whyidle_rank_info{{{matchers}}}", start, end))
    if scraped:
        return (
            f"{asked.url} scrapes this run, but has not recorded what its ranks spent: its rules are missing, or of an"
            " older whyidle. Write them with `whyidle rules --out rules` and load them (docs/prometheus.md)"
        )
    what = f"run {args.run_name}" if args.run_name else "any run"
    of = f" of owner {args.owner}" if args.owner else ""
    where = f" in cluster {args.cluster}" if args.cluster else ""
    seen = f"; it has {_names(known)}" if known else ""
    return f"{asked.url} has seen nothing of {what}{of}{where} in the last {window}{seen}"

"""The panel of scaling efficiency, on a real Prometheus with runs of 8 to 1,024 GPUs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support_history import Series, backfill
from support_prometheus import Prometheus, prometheus
from support_queries import DASHBOARDS, Value, dashboard_queries, filled

pytestmark = [
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus, of the Debian package"),
    pytest.mark.xdist_group("scaling-panel"),
]

NOW = time.time() // 60 * 60
[FLEET] = (path for path in DASHBOARDS if path.stem == "whyidle-fleet")
RUNS: dict[str, tuple[int, float | None, float, dict[str, float]]] = {
    "small": (8, 100.0, 5.0, {"compute": 0.9, "host": 0.1}),
    "large": (1024, 78.0, 3.9, {"compute": 0.702, "host": 0.078, "network": 0.14, "storage": 0.08}),
    "uncounted": (64, None, 4.0, {"compute": 0.72, "host": 0.2, "network": 0.08}),
    "other": (16, 9.0, 9.0, {"compute": 1.0}),
}
"""Ranks, samples per second of a rank, steps per second, and shares by family."""


def recorded() -> Series:
    found: Series = {}
    moments = [NOW - 60 * ago for ago in range(60, -1, -1)]
    for run, (ranks, samples, steps, shares) in RUNS.items():
        labels = f'cluster="lab", owner="nlp", run="{run}"'
        values = {
            f"run:whyidle_ranks:count{{{labels}}}": float(ranks),
            f"run:whyidle_rank_samples:rate5m{{{labels}}}": samples,
            f"run:whyidle_steps:rate5m{{{labels}}}": steps,
            **{
                f'run_family:whyidle_charged:ratio5m{{{labels}, family="{family}"}}': share
                for family, share in shares.items()
            },
        }
        found |= {name: [(at, value) for at in moments] for name, value in values.items() if value is not None}
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("scaling")
    backfill(folder, recorded())
    with prometheus(folder) as running:
        yield running


def asked(server: Prometheus, letter: str, reference: str = "small") -> dict[tuple[str, ...], float]:
    """The result of one query of the panel -> value by run, and by family where it has one."""
    times: dict[str, Value] = {"__range": "30m", "__range_s": "1800", "__interval": "1m", "__interval_ms": "60000"}
    chosen = {"cluster": "lab", "worst": "20", "reference": reference, "scaled": ["small", "large", "uncounted"]}
    (expr,) = (one.expression for one in dashboard_queries(FLEET) if one.where == f"Scaling efficiency {letter}")
    answer: list[Any] = server.query(filled(expr, times | chosen), NOW)
    return {tuple(one.labels[name] for name in ("run", "family") if name in one.labels): one.value for one in answer}


def test_each_run_has_its_efficiency_and_what_took_most_of_the_rest(server: Prometheus) -> None:
    assert asked(server, "A") == {("small",): 8, ("large",): 1024, ("uncounted",): 64}
    assert asked(server, "B") == {("small",): 100, ("large",): 78}
    assert asked(server, "C") == pytest.approx({("small",): 1.0, ("large",): 0.78, ("uncounted",): 0.8})
    assert asked(server, "D") == pytest.approx({("large",): 0.78 ** (1 / 7), ("uncounted",): 0.8 ** (1 / 3)})
    assert asked(server, "E") == pytest.approx({("large", "network"): 0.14, ("uncounted", "host"): 0.12})


def test_steps_are_compared_if_the_reference_has_no_samples(server: Prometheus) -> None:
    found = asked(server, "C", "uncounted")
    assert found == pytest.approx({("small",): 1.25, ("large",): 0.975, ("uncounted",): 1.0})
    assert asked(server, "C", "missing") == {}

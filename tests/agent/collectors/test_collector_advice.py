"""The collector `advice`: it serves what a separate process has computed, without waiting for it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support_ledgers import Spec, children, until
from support_matrix import read

from whyidle.agent.collector import Advised
from whyidle.agent.collectors.advice import MOST, AdviceCollector
from whyidle.agent.ledgers import LedgerStore, Snapshot
from whyidle.agent.reading import Absent, Reading
from whyidle.agent.run_sums import RunCounters
from whyidle.cli.advice import of_directory

INFO, GAIN = "whyidle_advice_info", "whyidle_advice_gain_ratio"


def line(run: str, number: int) -> Advised:
    return Advised("lab", run, f"rule.{number}", "storage", f"Change {number}", 0.5 / number)


def with_runs(*runs: str) -> LedgerStore:
    store = LedgerStore("/ledgers", 1.0)
    store.latest = Snapshot([], {}, 0, {("lab", run, "n1"): RunCounters({}, {}, {}, {}) for run in runs})
    return store


def test_scrapes_do_not_wait_and_later_ones_have_the_best_advice_of_each_run() -> None:
    go, asked = threading.Event(), []

    def advise(directory: str) -> list[Advised]:
        asked.append(directory)
        assert go.wait(60)
        return [line(run, number) for run in ("a", "b") for number in range(1, 6)]

    ledgers = with_runs("a", "b")
    collector = AdviceCollector(advise, ledgers)
    assert not read(collector)[0]
    go.set()
    until(lambda: read(collector)[0])
    series, errors = read(collector)
    assert not errors
    assert len(series) == 2 * 2 * MOST
    assert series[GAIN, ("lab", "a", "rule.2")] == 0.25
    assert (INFO, ("lab", "b", "rule.3", "storage", "Change 3")) in series
    read(collector)
    assert asked == ["/ledgers"]  # once a minute
    ledgers.latest = with_runs("b").latest
    assert {labels[1] for _, labels in read(collector)[0]} == {"b"}, "the ranks of the other are gone"


def test_an_error_of_the_advice_fails_the_collector() -> None:
    def advise(directory: str) -> list[Advised]:
        raise RuntimeError("no")

    collector = AdviceCollector(advise, with_runs())

    def failed() -> bool:
        try:
            collector.collect(Reading())
        except RuntimeError:
            return True
        return False

    assert until(failed)
    with pytest.raises(Absent):
        AdviceCollector(None, with_runs()).collect(Reading())


def test_gives_advice_to_a_live_run(tmp_path: Path) -> None:
    slow = Spec(world_size=1, steps=100, step={"compute": 0.06, "data_read": 0.04})
    with children(tmp_path, slow):
        (tmp_path / "bad.ledger").write_bytes(b"nonsense")
        found = {one.advice: one for one in of_directory(str(tmp_path))}
    assert found.keys() == {"data.cache", "data.ahead"}
    said = found["data.cache"]
    assert (said.owner, said.run, said.advice, said.family) == ("lab", "r1", "data.cache", "storage")
    assert said.share == pytest.approx(0.4, abs=0.01)
    assert of_directory(str(tmp_path)) == []

"""The sums over the ranks of a run on a node only grow, and an agent that restarts computes the same sums."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support_ledgers import SECOND, Spec, children, ended, until, write

from whyidle.agent.collectors.ranks import RankCollector
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.metrics.ranks import METRICS as RANK_METRICS
from whyidle.agent.metrics.runs import LIVE_RANKS, SUMS
from whyidle.agent.reading import Reading
from whyidle.ledger.causes import CAUSE
from whyidle.ledger.layout import WORD_AT

STEP = {"compute": 1.0}
RETENTION = 900.0


def store(folder: Path, retention: float = RETENTION) -> LedgerStore:
    return LedgerStore(str(folder), retention)


def compute(of: LedgerStore, run: str = "r1") -> float | None:
    """Seconds of compute of a run on its node, or None if there is no sum."""
    found = {place[1]: run.sums["device_ns"][CAUSE["compute"]] / SECOND for place, run in of.look().runs.items()}
    return found.get(run)


def test_sums_equal_those_of_the_series_of_ranks(tmp_path: Path) -> None:
    ranks = [
        Spec(rank=rank, steps=3, step={"compute": 0.5 + rank, "straggler": 2.0}, waited_for={"storage": 1.0 + rank})
        for rank in range(3)
    ]
    with children(tmp_path, *ranks, Spec(run="r2", steps=1, step=STEP)):
        reading = Reading()
        RankCollector(store(tmp_path)).collect(reading)
    for of_run in SUMS:
        name = of_run.name.replace("whyidle_run_", "whyidle_")
        metric = next(metric for metric in RANK_METRICS if metric.name == name)
        expected: dict[tuple[str, ...], float] = {}
        for labels, value in reading.series(metric).items():
            named = {"node": "n1", **dict(zip(metric.labels, labels, strict=True))}
            key = tuple(named[label] for label in of_run.labels)
            expected[key] = expected.get(key, 0.0) + float(value)  # pyright: ignore[reportArgumentType]
        assert reading.series(of_run) == {key: value for key, value in expected.items() if value or not of_run.sparse}


def test_counts_the_live_ranks_of_each_run(tmp_path: Path) -> None:
    ended(tmp_path, Spec(run="r1", rank=2, idle=5.0), Spec(run="r2", idle=5.0))
    with children(tmp_path, Spec(run="r1"), Spec(run="r1", rank=1)):
        reading = Reading()
        RankCollector(store(tmp_path)).collect(reading)
    assert {labels[1:]: live for labels, live in reading.series(LIVE_RANKS).items()} == {
        ("r1", "n1"): 2,
        ("r2", "n1"): 0,
    }


def test_a_sum_does_not_fall_when_a_rank_restarts_ends_or_is_removed(tmp_path: Path) -> None:
    agent = store(tmp_path, retention=30.0)
    with children(tmp_path, Spec(rank=1, steps=50, step=STEP)):
        [old] = ended(tmp_path, Spec(rank=0, steps=20, step=STEP))
        assert compute(agent) == 70
        [again] = ended(tmp_path, Spec(rank=0, attempt=1, steps=4, step=STEP, idle=20.0))
        assert compute(agent) == 74
        os.unlink(old)
        os.unlink(again)
        assert compute(agent) == 74
        assert [rank.newest.rank for rank in agent.latest.ranks] == [1]
    until(lambda: not any(rank.newest.alive for rank in agent.look().ranks))
    assert compute(agent) == 74


def test_a_rank_whose_run_gets_another_name_leaves_the_sum_of_the_old_one(tmp_path: Path) -> None:
    """Also the sums of a rank, if another process is still known by the same one."""
    agent = store(tmp_path)
    renamed = write(str(tmp_path), Spec(run="old", steps=20, step=STEP))
    with children(tmp_path, Spec(run="old", attempt=1, steps=3, step=STEP)):
        assert compute(agent, "old") == 23
        renamed.set_string("run", "new")
        renamed.close()
        assert (compute(agent, "old"), compute(agent, "new")) == (3, 20)
        assert {rank.newest.run: rank.totals["steps"] for rank in agent.latest.ranks} == {"old": (3,), "new": (20,)}


def test_a_sum_does_not_fall_when_a_rank_corrects_its_account(tmp_path: Path) -> None:
    """What counted as compute turns out to be an evaluation, for example."""
    agent = store(tmp_path)
    ledger = write(str(tmp_path), Spec(steps=20, step=STEP, startup=9.0))
    at = WORD_AT["cause_ns"][0] + CAUSE["compute"]
    ledger.words[WORD_AT["cause_ns"][0] + CAUSE["startup"]] = 0  # so that there is time for more compute
    try:
        assert compute(agent) == 20
        for moved, shown in ((-5, 20), (3, 20), (4, 22)):
            ledger.words[at] += moved * SECOND
            ledger.file.flush()
            assert compute(agent) == shown
        assert agent.latest.ranks[0].totals["device_ns"][CAUSE["compute"]] == 22 * SECOND
    finally:
        ledger.close()


def test_a_restarted_agent_computes_the_same_sum(tmp_path: Path) -> None:
    ended(
        tmp_path,
        Spec(rank=0, steps=100, step=STEP, startup=0.0, idle=2400.0),
        Spec(rank=0, attempt=1, steps=600, step=STEP, startup=0.0, idle=1000.0),
    )
    with children(tmp_path, Spec(rank=0, attempt=2, steps=300, step=STEP, startup=0.0)):
        assert compute(store(tmp_path)) == 1000


def test_a_run_that_returns_after_the_retention_starts_from_zero(tmp_path: Path) -> None:
    agent = store(tmp_path)
    ended(tmp_path, Spec(rank=0, steps=100, step=STEP, idle=1000.0))
    assert compute(agent) is None
    with children(tmp_path, Spec(rank=0, attempt=1, steps=5, step=STEP)):
        assert compute(agent) == 5
        assert compute(store(tmp_path)) == 5
        assert [rank.totals["steps"] for rank in agent.latest.ranks] == [(5,)]


def test_a_sum_continues_after_a_ledger_was_unreadable_for_a_while(tmp_path: Path) -> None:
    agent = store(tmp_path)
    [removed] = ended(tmp_path, Spec(rank=0, steps=20, step=STEP))
    with children(tmp_path, Spec(rank=1, steps=50, step=STEP)) as [child]:
        assert compute(agent) == 70
        os.unlink(removed)
        assert compute(agent) == 70
        path = child.path
        os.rename(path, f"{path}.away")
        Path(path).write_bytes(b"nonsense")
        assert compute(agent) is None
        os.replace(f"{path}.away", path)
        assert compute(agent) == 70


def test_the_phase_in_which_a_rank_was_killed_is_in_the_sum(tmp_path: Path) -> None:
    """A hang of days, for example. It counts once, also in an agent that starts later."""
    agent = store(tmp_path)
    hangs = Spec(steps=20, step=STEP, phase="compute", idle=600.0, words={"heartbeat_ns": time.monotonic_ns()})
    with children(tmp_path, hangs) as [child]:
        assert compute(agent) == 20
        child.kill()
        until(lambda: not any(rank.newest.alive for rank in agent.look().ranks))
    for one in (agent, agent, store(tmp_path)):
        assert compute(one) == pytest.approx(620, abs=5)


@pytest.mark.parametrize(("dies", "collective", "pending"), [(True, 70.0, 0.0), (False, 0.0, 10.0)])
def test_waits_that_a_killed_rank_has_not_split_are_in_its_sum(
    tmp_path: Path, dies: bool, collective: float, pending: float
) -> None:
    """Those of others are split soon."""
    waits = Spec(
        steps=20, step=STEP, pending=10.0, phase="collective", idle=60.0, words={"heartbeat_ns": time.monotonic_ns()}
    )
    agent = store(tmp_path)
    with children(tmp_path, waits) as [child]:
        if dies:
            child.kill()
            until(lambda: not any(rank.newest.alive for rank in agent.look().ranks))
        reading = Reading()
        RankCollector(agent).collect(reading)
    found = {metric.name: samples for metric, samples in reading.samples.items()}
    seconds = {labels[3]: value for labels, value in found["whyidle_run_device_seconds_total"].items()}
    assert seconds.get("collective", 0.0) == pytest.approx(collective, abs=5)
    assert list(found["whyidle_device_pending_seconds"].values()) == [pending]


@pytest.mark.parametrize(
    "words",
    [
        {"phase_since_ns": 1, "accounted_ns": 1},
        {"device_phase": 1, "device_since_ns": 1, "accounted_ns": 1},
        {"pending_ns": 1 << 60},
    ],
)
def test_a_bad_ledger_of_a_killed_rank_adds_at_most_the_time_that_it_lived(
    tmp_path: Path, words: dict[str, int]
) -> None:
    """Ledgers are untrusted input."""
    spec = Spec(startup=3.0, steps=20, step=STEP, words={"heartbeat_ns": time.monotonic_ns()} | words)
    with children(tmp_path, spec) as [child]:
        child.kill()
        until(lambda: not any(rank.newest.alive for rank in store(tmp_path).look().ranks))
    [run] = store(tmp_path).look().runs.values()
    assert sum(run.sums["device_ns"]) <= 2 * 25 * SECOND

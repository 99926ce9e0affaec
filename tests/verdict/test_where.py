"""What a verdict says about where the loop's own time is spent, and when it says nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from whyidle.verdict.accounts import Place, RankAccount, RunAccount, place_of
from whyidle.verdict.where import (
    LOCK,
    OUTSIDE,
    beside_the_model,
    groups_left,
    in_gaps,
    in_turns,
    lock_seconds,
    makes_groups,
    reason,
    sentences,
    spots,
    unknown,
)

WALL = 100.0
LOG = Place("train.py", 212, "log_metrics", "")


def rank(number: int = 0, device: str = "cpu", **options: Any) -> RankAccount:
    seconds = {"compute": 20.0, "host": 0.0, "host_blocked": 80.0} | options.pop("seconds", {})
    newest = SimpleNamespace(
        rank=number,
        device=device,
        position=SimpleNamespace(phase="host"),
        ring=(),
        backgrounds=(),
        until_ns=0,
        window_ns=0,
    )
    found = RankAccount(
        cast(Any, newest),
        steps=1000,
        wall=WALL,
        **options,
    )
    found.seconds |= seconds
    return found


def said(*ranks: RankAccount) -> list[str]:
    return [*sentences(RunAccount("r", [*ranks], []))]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("train.py:212 log_metrics -", LOG),
        ("my train.py:212 log_metrics wandb", Place("my train.py", 212, "log_metrics", "wandb")),
        ("<string>:1 <module> -", Place("<string>", 1, "<module>", "")),
        ("", None),
        ("cut off", None),
    ],
)
def test_reads_a_place_from_a_ledger(text: str, place: Place | None) -> None:
    assert place_of(text) == place


@pytest.mark.parametrize(
    ("looks", "at", "blocked", "named"),
    [(100, 100, 80.0, True), (100, 49, 80.0, False), (4, 4, 80.0, False), (0, 0, 80.0, False), (100, 100, 9.0, False)],
)
def test_a_place_is_named_if_most_looks_found_the_loop_there(looks: int, at: int, blocked: float, named: bool) -> None:
    found = rank(places={"blocked": (LOG, at, looks)}, seconds={"host_blocked": blocked})
    assert bool(spots(RunAccount("r", [found], []))) == named


def test_the_share_of_a_place_is_that_of_its_causes_times_that_of_the_looks() -> None:
    both = {"blocked": (LOG, 90, 100), "host": (LOG._replace(line=213), 10, 10)}
    [spot] = spots(RunAccount("r", [rank(places=both, seconds={"host": 10.0})], []))
    assert spot["share"] == pytest.approx(0.8 * 0.9 + 0.1)
    assert (spot["file"], spot["line"], spot["function"], spot["ranks"]) == ("train.py", 212, "log_metrics", [0])
    assert said(rank(places={"blocked": (LOG, 100, 100)})) == [
        "80 % of the loop is in `log_metrics` (train.py:212) (sampled, 100 looks)"
    ]


@pytest.mark.parametrize(("looks", "headline"), [(80, "72 % of the time is in `log_metrics` (train.py:212)"), (20, "")])
def test_a_place_beside_the_model_has_its_part_of_the_work(looks: int, headline: str) -> None:
    work = {"compute": 80.0, "evaluation": 10.0, "host_blocked": 0.0}
    found = rank(places={"outside": (LOG, looks, looks)}, seconds=work, work_looks=100)
    found.seconds["compute"] -= 30.0
    found.moved[("compute", "data_cpu")] = 30.0
    account = RunAccount("r", [found], [])
    assert not spots(account)  # advice on blocked code has no use for it
    assert beside_the_model(account).startswith(headline or "")
    assert bool(beside_the_model(account)) == bool(headline)
    [sentence] = said(found)
    assert sentence.endswith(f"{OUTSIDE} (sampled, {looks} looks)")


def test_a_function_that_computes_and_launches_has_one_sentence() -> None:
    places = {"outside": (LOG, 3, 4), "launching": (LOG._replace(line=213), 4, 4)}
    found = rank(device="cuda:0", places=places, work_looks=10, gaps=50.0)
    assert said(found) == [
        "35 % of the loop is in `log_metrics` (train.py:213), while the GPU has no work (sampled, 8 looks)"
    ]


def test_ranks_at_the_same_place_are_named_together() -> None:
    places = {"blocked": (LOG._replace(library="wandb"), 100, 100)}
    [sentence] = said(rank(places=places), rank(1, places=places))
    assert sentence.startswith("ranks 0 and 1: 80 % of the loop is in `log_metrics` (train.py:212), which calls wandb")


@pytest.mark.parametrize(("stands", "said"), [(60.0, "blocked: cache.py:27 open_cache"), (6.0, "blocked")])
def test_where_a_step_stands_is_named_if_few_looks_found_it(
    stands: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whyidle.verdict.where.standing_seconds", lambda ledger, now_ns: stands)
    monkeypatch.setattr("whyidle.verdict.where.stuck_at", lambda ledger: "cache.py:27 open_cache")
    monkeypatch.setattr("whyidle.verdict.where.waits_for", lambda ledger: "")
    found = rank(places={"blocked": (LOG, 2, 10)})
    assert reason(RunAccount("r", [found], []), [found], "blocked") == said


def test_a_step_that_waits_for_other_threads_is_named_with_what_is_known_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whyidle.verdict.where.standing_seconds", lambda ledger, now_ns: 60.0)
    monkeypatch.setattr("whyidle.verdict.where.stuck_at", lambda ledger: "t.py:4 f, in queue.Queue.get (its thread a)")
    monkeypatch.setattr("whyidle.verdict.where.waits_for", lambda ledger: "its thread a")
    found = rank(places={"blocked": (LOG, 100, 100)})
    said = "blocked: t.py:4 f, in queue.Queue.get (its thread a)"
    assert reason(RunAccount("r", [found], []), [found], "blocked") == said


def test_a_lock_is_named_instead_of_the_line_that_waits_for_it() -> None:
    found = rank(places={"blocked": (LOG, 100, 100)}, lock=70.0, lock_thread="save")
    account = RunAccount("r", [found], [])
    assert not spots(account)
    assert reason(account, [found], "blocked") == f"{LOCK} (the thread save)"
    assert said(found) == [
        "rank 0: in 70.0 s of its blocked time another thread computed and held Python's lock (the thread save)"
    ]


@pytest.mark.parametrize(
    ("kind", "name", "lock", "looks", "wall", "expected"),
    [
        ("thread", "tokenizer", 5.0, 3, 100.0, 20.0),
        ("save", "", 5.0, 3, 100.0, 20.0),
        ("save", "process", 5.0, 3, 100.0, 5.0),
        ("thread", "prefetch", 5.0, 3, 100.0, 5.0),
        ("thread", "tokenizer", 5.0, 3, 40.0, 8.0),  # a window of the run
        ("thread", "tokenizer", 0.0, 3, 40.0, 0.0),  # in which it did not run
        ("thread", "tokenizer", 5.0, 0, 100.0, 5.0),
    ],
)
def test_what_steps_beside_a_thread_lose_counts_for_its_lock(
    kind: str, name: str, lock: float, looks: int, wall: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = SimpleNamespace(kind=kind, name=name, part="lock", sure=True, share=0.4)
    monkeypatch.setattr("whyidle.verdict.where.background.costs", lambda ledgers: [cost])
    found = rank(lock=lock, lock_looks=looks, lock_thread="tokenizer")
    found.wall = wall
    cast(Any, found.newest).until_ns = 100 * 10**9
    assert lock_seconds(found) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("locked", "headline", "mentioned"),
    [
        (15, f"{LOCK} (the thread metrics)", True),
        (8, "the GPU has no work while the loop is in `log_metrics` (train.py:212)", True),
        (4, "the GPU has no work while the loop is in `log_metrics` (train.py:212)", False),
        (0, "the GPU has no work while the loop is in `log_metrics` (train.py:212)", False),
    ],
    ids=["most looks", "some looks", "few looks", "no looks"],
)
def test_a_thread_that_holds_pythons_lock_while_a_device_has_no_work_is_named(
    locked: int, headline: str, mentioned: bool
) -> None:
    looks = 24 - locked
    found = rank(
        device="cuda:0",
        seconds={"compute": 50.0, "host": 50.0, "host_blocked": 0.0},
        places={"outside": (LOG, looks, looks)},
        work_looks=24,
        gaps=50.0,
        lock_looks=locked,
        lock_thread="metrics",
    )
    account = RunAccount("r", [found], [])
    assert in_gaps(account, [found]) == headline
    told = [one for one in said(found) if "Python's lock" in one]
    assert len(told) == mentioned
    assert all(one.startswith(f"rank 0: in {locked} of 24 looks that found the GPU without work") for one in told)


def test_an_optimizer_is_not_beside_the_model() -> None:
    found = rank(places={"outside": (LOG._replace(library="torch.optim"), 80, 80)}, work_looks=100)
    found.seconds |= {"compute": 80.0, "host_blocked": 0.0}
    assert beside_the_model(RunAccount("r", [found], [])) == ""


@pytest.mark.parametrize(("library", "one"), [("", True), ("torch.optim", False)])
def test_an_optimizer_is_another_place_than_the_code_of_its_function(library: str, one: bool) -> None:
    places = {"outside": (LOG, 6, 6), "launching": (LOG._replace(library=library), 6, 6)}
    found = rank(device="cuda:0", places=places, work_looks=20, gaps=60.0)
    assert (in_turns(RunAccount("r", [found], []), [found]) is not None) is one


@pytest.mark.parametrize(("groups", "made"), [(1000, True), (100, True), (99, False), (9, False)])
def test_groups_are_named_if_the_loop_goes_on_making_them(groups: int, made: bool) -> None:
    found = rank(new_groups=groups, new_group=60.0, threads=1807, open_files=3082)
    assert makes_groups([found]) == made
    told = reason(RunAccount("r", [found], []), [found], "blocked")
    assert told.startswith("the loop makes a process group in e") == made
    assert ("1807 threads are left" in told) == made
    assert any("1807 threads and 3082 open files" in sentence for sentence in said(found)) == made


@pytest.mark.parametrize(
    ("threads", "left"), [(1807, "the loop makes a process group in each step, and 1807 threads are left"), (40, "")]
)
def test_ranks_that_get_no_cpu_because_of_the_threads_of_their_groups(threads: int, left: str) -> None:
    assert groups_left([rank(new_groups=1000, threads=threads)]) == left


@pytest.mark.parametrize(
    ("device", "awake", "told"),
    [("cpu", 10.0, True), ("cpu", 90.0, False), ("cpu", 0.0, False), ("cuda:0", 10.0, False)],
)
def test_compute_without_a_cpu_is_not_called_compute_without_a_remark(device: str, awake: float, told: bool) -> None:
    found = rank(device=device, awake=awake, seconds={"compute": 100.0, "host_blocked": 0.0})
    assert ("on a CPU in only 10 %" in unknown(RunAccount("r", [found], []))) == told


@pytest.mark.parametrize(("looks", "blocked"), [(60, True), (40, False)])
def test_a_device_whose_host_sleeps_waits_for_blocked_code(looks: int, blocked: bool) -> None:
    places = {"host": (LOG, 100, 100), "blocked": (LOG, looks, looks)}
    found = rank(device="cuda:0", places=places, seconds={"host": 30.0, "host_blocked": 0.0, "compute": 70.0})
    said = reason(RunAccount("r", [found], []), [found], "the loop runs its own Python between phases")
    assert said.endswith(": `log_metrics` (train.py:212)")
    assert said.startswith("the loop's own code is blocked") == blocked

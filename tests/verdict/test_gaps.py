"""Idle time in compute: the GPU's counters decide where they cover it, and a rank's looks decide about the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from whyidle.verdict.accounts import Place, RankAccount
from whyidle.verdict.gaps import LEAST_LOOKS, Idle, enough, gaps, move_gaps, move_worked, pool, shares_of_looks, weighed
from whyidle.verdict.where import in_gaps, own_gaps
from whyidle.verdict.words import FEW_LOOKS, LAUNCHES

WINDOW = 100.0
LOOKS = 500

LOOPS = {  # on an H100, docs/gpu.md: shares of time in which the device had work, by looks and by GPM
    "200 tiny layers": (0.14, 0.08),
    "always busy": (0.99, 1.00),
    "evaluates between steps": (0.49, 0.52),
    "trains on another stream": (0.36, 0.39),
    "torch.compile": (0.18, 0.17),
    "torch.compile, reduce-overhead": (0.54, 0.43),
    "FSDP2": (0.23, 0.28),
    "FSDP2 clips gradients": (0.70, 0.75),
    "ResNet-50 behind a loader": (0.38, 0.32),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_the_counters_of_a_gpu_decide(loop: str) -> None:
    looked, counted = (1 - busy for busy in LOOPS[loop])
    found = gaps(WINDOW, Idle(counted * WINDOW, WINDOW), LOOKS, looked * WINDOW, WINDOW)
    assert found.seconds == pytest.approx(counted * WINDOW)
    assert found.error is None
    assert found.by_counters
    assert (found.looked, found.counted) == (pytest.approx(looked * WINDOW), pytest.approx(counted * WINDOW))


@pytest.mark.parametrize(
    ("idle", "looks", "empty", "expected"),
    [
        (None, 0, 0, None),
        (None, LOOKS, 250, 50.0),
        (Idle(30.0), 0, 0, 30.0),
        (Idle(30.0), LOOKS, 250, 30.0),  # samples of the utilisation, and looks: the smaller figure
        (Idle(70.0), LOOKS, 250, 50.0),
        (Idle(0.0, 40.0), LOOKS, 250, 30.0),  # looks stand for the 60 s that are not covered
        (Idle(10.0, 40.0), 0, 0, 10.0),  # nobody has looked at the rest
        (Idle(120.0, 100.0), LOOKS, 250, 100.0),
        (Idle(-1.0, 100.0), LOOKS, 250, 0.0),
    ],
)
def test_looks_decide_about_what_counters_do_not_cover(
    idle: Idle | None, looks: int, empty: int, expected: float | None
) -> None:
    assert gaps(WINDOW, idle, looks, empty / 5, WINDOW).seconds == (expected and pytest.approx(expected))


def test_a_look_stands_for_the_time_since_the_one_before() -> None:
    """37 looks in 7 s that found work, and 8 in 16 s of which 6 did not."""
    times = [190] * 37 + [2000] * 8
    words = {"looked_ns": sum(times) * 10**6, "looked_square": sum(ms * ms for ms in times), "empty_ns": 12 * 10**9}
    words |= {"empty_host_looks": 0, "empty_host_ns": 0}
    known: Any = SimpleNamespace(looks=45, empty_looks=6, words={name: (value,) for name, value in words.items()})
    empty, in_host, looks = shares_of_looks(known)
    assert (empty, in_host, looks) == (pytest.approx(12 / 23.03), 0.0, pytest.approx(15.9, abs=0.1))


@pytest.mark.parametrize(
    ("looks", "like", "empty", "seconds", "known"),
    [
        (20, 20, 0.5, 15.0, True),
        (19, 19, 0.5, 15.0, True),  # half, or a third less three errors: more than a tenth of the time in any case
        (19, 19, 0.3, 15.0, True),
        (19, 10, 0.3, 15.0, False),
        (8, 8, 1.0, 15.0, True),
        (8, 8, 0.0, 15.0, True),
        (8, 8, 0.4, 15.0, False),
        (5, 5, 1.0, 15.0, True),
        (5, 5, 0.0, 15.0, False),  # the device may have been idle for a third of the time
        (4, 4, 1.0, 15.0, False),
        (40, 40, 1.0, 4.0, False),
    ],
)
def test_few_looks_that_agree_are_enough(looks: int, like: float, empty: float, seconds: float, known: bool) -> None:
    assert enough(looks, seconds, empty, like) is known


def test_a_rank_without_compute_has_no_gaps() -> None:
    assert gaps(0.0, Idle(5.0, 0.0), LOOKS, 50.0, WINDOW).seconds == 0
    assert gaps(0.0, Idle(5.0, 9.0), LOOKS, 50.0, WINDOW).seconds == 0


def rank(**options: Any) -> RankAccount:
    """60 s of compute and 40 s of host."""
    newest = cast(Any, SimpleNamespace(rank=0, device="cuda:0"))
    found = RankAccount(newest, wall=WINDOW, looks=LOOKS, effective_looks=LOOKS, looked=WINDOW, **options)
    found.seconds |= {"compute": 60.0, "host": 40.0}
    return found


@pytest.mark.parametrize(
    ("looks", "empty", "host"),
    [
        (LOOKS, 200, 40.0),
        (LOOKS, 0, 0.0),  # the device worked: the loop evaluates in code that no hook sees, and reads the result
        (LOOKS, 100, 20.0),
        (LOOKS, 180, 40.0),  # within the error of the looks
        (LEAST_LOOKS - 1, 0, 40.0),
    ],
)
def test_what_a_device_worked_on_between_steps_is_compute(looks: int, empty: int, host: float) -> None:
    found = rank(empty_host=empty / 5)
    found.looks = looks
    move_worked(found)
    assert found.seconds["host"] == pytest.approx(host)
    assert found.seconds["compute"] == pytest.approx(100.0 - host)


def test_what_looks_have_moved_from_host_is_also_compute_if_the_device_worked() -> None:
    found = rank(empty_host=20.0, moved={("host", "data_cpu"): 30.0})
    found.seconds |= {"host": 10.0, "data_cpu": 35.0, "compute": 55.0}
    move_worked(found)
    assert [found.seconds[cause] for cause in ("host", "data_cpu", "compute")] == pytest.approx([5.0, 20.0, 75.0])
    assert found.moved["host", "data_cpu"] == pytest.approx(15.0)


def test_ranks_that_compute_alike_have_their_looks_in_common() -> None:
    """Four ranks with six looks each, of which most find the device idle in 30 s of 60 s of compute."""
    ranks = [rank(empty=empty, empty_by={"evaluation": empty}) for empty in (33.0, 50.0, 17.0, 33.0)]
    for one in ranks:
        one.looks, one.effective_looks = 6, 6.0
    pool(ranks)
    for one in ranks:
        assert (one.empty, one.empty_by["evaluation"]) == (pytest.approx(33.25), pytest.approx(33.25))
        move_gaps(one, None)
        assert one.gaps == pytest.approx(33.25)
        assert one.gaps_by.error == pytest.approx(WINDOW * 0.199, abs=0.5), "that of six looks: ranks add up"


@pytest.mark.parametrize(("compute", "known"), [(60.0, True), (45.0, False)])
def test_a_rank_that_computes_less_than_others_is_not_taken_to_be_idle_like_them(compute: float, known: bool) -> None:
    ranks = [rank(empty=50.0), rank(empty=20.0)]
    ranks[0].looks, ranks[0].effective_looks = 6, 6.0
    ranks[0].seconds["compute"] = compute
    pool(ranks)
    for one in ranks:
        move_gaps(one, None)
    assert (ranks[0].gaps is not None) is known
    assert ranks[1].empty == 20.0, "it has enough"


@pytest.mark.parametrize(
    ("gaps_of", "empty", "split"),
    [
        (20.0, {"compute": 4.0, "evaluation": 16.0}, [4.0, 16.0]),
        (20.0, {"evaluation": 20.0}, [0.0, 20.0]),
        (50.0, {"compute": 10.0, "evaluation": 40.0}, [20.0, 30.0]),  # at most all of it
        (14.0, {}, [8.0, 6.0]),
    ],
)
def test_gaps_are_in_the_causes_in_which_looks_found_them(
    gaps_of: float, empty: dict[str, float], split: list[float]
) -> None:
    account = rank(empty=gaps_of, empty_by=empty)
    account.seconds |= {"compute": 40.0, "evaluation": 30.0, "host": 30.0}
    move_gaps(account, Idle(gaps_of, WINDOW))
    assert [40.0 - account.seconds["compute"], 30.0 - account.seconds["evaluation"]] == pytest.approx(split)
    assert account.seconds["host"] == pytest.approx(30.0 + gaps_of)


@pytest.mark.parametrize("idle", [None, Idle(30.0, WINDOW)])
def test_gaps_do_not_count_what_looks_have_moved_from_compute(idle: Idle | None) -> None:
    found = rank(empty_looks=150, empty=30.0, work_looks=75, moved={("compute", "data_cpu"): 20.0})
    found.seconds |= {"host": 0.0, "data_cpu": 20.0, "compute": 80.0}
    move_gaps(found, idle)
    assert (found.gaps, found.empty_looks, found.work_looks) == (pytest.approx(10.0), 50, 25)
    assert (found.seconds["host"], found.seconds["data_cpu"]) == (pytest.approx(10.0), 20.0)


def test_gaps_are_not_in_a_cause_from_which_looks_have_moved_them() -> None:
    found = rank(empty=30.0, empty_by={"compute": 20.0, "evaluation": 10.0}, moved={("compute", "data_cpu"): 20.0})
    found.seconds |= {"host": 0.0, "data_cpu": 20.0, "compute": 50.0, "evaluation": 30.0}
    move_gaps(found, None)
    assert (found.seconds["compute"], found.seconds["evaluation"]) == (pytest.approx(50.0), pytest.approx(20.0))


@pytest.mark.parametrize(
    ("kind", "looks", "said"),
    [
        ("outside", 40, "the GPU has no work while the loop is in `augment` (train.py:7)"),
        ("inside", 40, "the GPU has no work while the loop is in `augment` (train.py:7), in Python code of the model"),
        ("outside", 20, ""),
        ("launching", 40, f"{LAUNCHES}, in `augment` (train.py:7)"),
    ],
)
def test_names_what_the_loop_does_in_most_gaps(kind: str, looks: int, said: str) -> None:
    found = rank(places={kind: (Place("train.py", 7, "augment", ""), looks, looks)}, work_looks=50, gaps=30.0)
    found.seconds |= {"host": 30.0, "compute": 70.0}
    account = cast(Any, SimpleNamespace(ranks=[found]))
    assert in_gaps(account, [found]) == said
    assert own_gaps(found) == pytest.approx(0.0 if kind == "launching" else 30.0 * looks / 50)


@pytest.mark.parametrize(("looks", "ns", "weight"), [(10, 90, 45.0), (40, 10, 5.0), (4, 90, 4.0), (4, 2, 1.0)])
def test_looks_at_the_training_thread_weigh_as_long_as_they_stand(looks: int, ns: int, weight: float) -> None:
    """A few looks do not become more than they are."""
    ledger = cast(Any, SimpleNamespace(words={"host_looks": (50,), "host_looked_ns": (100,)}))
    assert weighed(ledger, looks, ns, "host") == pytest.approx(weight)


def test_few_looks_in_the_loop_s_own_code_do_not_make_late_launches() -> None:
    found = rank(work_looks=5, own_looks=4.0, gaps=30.0)
    found.seconds |= {"host": 30.0, "compute": 70.0}
    account = cast(Any, SimpleNamespace(ranks=[found]))
    assert in_gaps(account, [found]) == "the GPU has no work while the loop is in its own code, and few looks say where"


def test_many_places_of_the_loop_s_own_code_are_several() -> None:
    found = rank(places={"outside": (Place("train.py", 7, "augment", ""), 10, 40)}, work_looks=50, gaps=30.0)
    found.seconds |= {"host": 30.0, "compute": 70.0}
    account = cast(Any, SimpleNamespace(ranks=[found]))
    assert in_gaps(account, [found]) == "the GPU has no work while the loop is in its own code, in several places"


@pytest.mark.parametrize(
    ("looks", "said"), [(20, "the GPU has no work while the loop is in `augment` (train.py:7)"), (10, "")]
)
def test_a_function_that_computes_and_launches_in_turns_is_one_place(looks: int, said: str) -> None:
    place = Place("train.py", 7, "augment", "")
    places = {"outside": (place, looks, looks), "launching": (place._replace(line=8), looks - 1, looks)}
    found = rank(places=places, work_looks=50, gaps=30.0)
    found.seconds |= {"host": 30.0, "compute": 70.0}
    assert in_gaps(cast(Any, SimpleNamespace(ranks=[found])), [found]) == said


@pytest.mark.parametrize(("looks", "said"), [(4, FEW_LOOKS), (5, ""), (0, "")])
def test_few_looks_do_not_make_late_launches(looks: int, said: str) -> None:
    found = rank(work_looks=looks, gaps=30.0)
    found.seconds |= {"host": 30.0, "compute": 70.0}
    assert in_gaps(cast(Any, SimpleNamespace(ranks=[found])), [found]) == said

"""Other threads of a rank, as its ledger keeps them."""

from __future__ import annotations

from whyidle.ledger.threads import ENDED, RAISED, RUNS, Other, stored, threads_of

SOME = [
    Other(RAISED, "ValueError", "data.py:9 produce", "prefetcher"),
    Other(ENDED, "", "", "a/b"),
    Other(RUNS, "", "monitor.py:5 <lambda>", "GpuMonitor"),
]


def test_what_was_stored_is_read_again() -> None:
    assert threads_of(stored(SOME, 320)) == SOME
    assert threads_of(stored([SOME[0]._replace(name="x|y")], 320)) == [SOME[0]._replace(name="x y")]


def test_those_that_do_not_fit_are_left_out() -> None:
    assert threads_of(stored(SOME, 70)) == SOME[:2]


def test_what_is_not_valid_is_left_out() -> None:
    assert threads_of("raised/x|odd//f.py:3 f/t|runs//f.py:3 f/|ended///t") == [Other(ENDED, "", "", "t")]

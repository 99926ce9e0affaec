"""The judgement of a public report: what counts as wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from report_judge import judge
from report_lab import Observed, Ran
from report_rows import Report, more_than, of_all, of_both, of_one

TRUTHS: list[dict[str, Any]] = [
    {"rank": 0, "wall": 10.0, "lost": {"save": 3.0, "waits": 1.0}, "loss": "0x1p+0"},
    {"rank": 1, "wall": 10.0, "lost": {"waits": 4.0}, "loss": "0x1p+1"},
]
REPORT = Report(
    "example",
    ("owner/repository#1",),
    "a pattern",
    {"storage": of_both(0, "save")},
    ranks=2,
    late=0,
    first_to_end=1,
    says=("a save",),
    never=("a transfer",),
    advice=("checkpoint.async",),
    misleading=("straggler.drain",),
)
SAYS: dict[str, Any] = {
    "family": "storage",
    "share": 0.31,
    "summary": "rank 0 is late",
    "text": "rank 0 waited for\na save. Rank 1 was the first to end",
    "advice": ("checkpoint.async",),
}


def observed(status: int | None = 0, truths: list[dict[str, Any]] = TRUTHS, **changes: Any) -> Observed:
    said = SAYS | changes
    verdict = {name: said[name] for name in ("family", "share", "summary")}
    report = {"verdict": verdict if said["family"] else None, "advice": [{"id": rule} for rule in said["advice"]]}
    return Observed(Ran(0, 1.0, TRUTHS, ""), Ran(status, 1.0, truths, "Killed"), report, said["text"])


def test_a_true_report_has_nothing_wrong() -> None:
    assert judge(REPORT, observed()).wrong == []


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"family": "network"}, "the verdict is network instead of storage"),
        ({"family": "", "summary": ""}, "the verdict is missing instead of storage"),
        ({"share": 0.34}, "storage differs by +4.0 points"),
        ({"summary": "ranks 1 and 0 are late"}, "the verdict does not name rank 0"),
        ({"text": "a save. Rank 0 was the first to end"}, "rank 0 is called the first to end, but rank 1 was"),
        ({"text": "a read"}, "does not say “a save”"),
        ({"text": "a save, a transfer"}, "says “a transfer”"),
        ({"advice": ("checkpoint.async", "straggler.drain")}, "advice straggler.drain does not help here"),
        ({"advice": ()}, "advice checkpoint.async is missing"),
        ({"status": None}, "exit status None with whyidle, instead of 0: Killed"),
        ({"truths": [TRUTHS[0] | {"loss": "0x1p+2"}]}, "with whyidle, the losses of ranks [0] differ"),
    ],
)
def test_what_is_false_is_wrong(changes: dict[str, Any], wrong: str) -> None:
    assert wrong in judge(REPORT, observed(**changes)).wrong


@pytest.mark.parametrize(
    ("truth", "wrong"),
    [(0.25, ["storage differs by +6.0 points"]), (0.41, []), (0.45, ["storage differs by -14.0 points"])],
)
def test_a_clock_may_not_tell_families_apart(truth: float, wrong: list[str]) -> None:
    """The report has 10 % as the other family: the truth is from the share of one to the sum of both."""
    both = replace(REPORT, truth={"storage": lambda _: truth, "cpu": lambda _: truth})
    seen = observed()
    seen.report["explained"] = {"storage": 3.1, "cpu": 1.0, "compute": 5.9}
    assert judge(both, seen).wrong == wrong


def test_the_share_may_differ_more_where_threads_queue_for_a_cpu() -> None:
    busy = [truth | {"queued": 0.5} for truth in TRUTHS]
    assert judge(REPORT, observed(share=0.34, truths=busy)).wrong == []
    assert judge(REPORT, observed(share=0.35, truths=busy)).wrong != []


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (of_all("waits"), 0.25),
        (of_all("save", "waits"), 0.4),
        (of_one(1, "waits"), 0.2),
        (of_both(0, "save"), 0.3),
        (more_than(0, "waits", waiter=1), 0.15),
    ],
)
def test_true_shares_are_of_the_time_of_all_ranks(share: Any, expected: float) -> None:
    assert share(TRUTHS) == pytest.approx(expected)

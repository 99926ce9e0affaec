"""CPU time that ranks did not get: when a verdict mentions it, and when it is the reason why ranks take turns."""

from __future__ import annotations

from typing import Any, cast

import pytest
from support_shortage import COMPUTE, HYPERVISOR, SHORTAGES, WALL, run

from whyidle.verdict import shortage
from whyidle.verdict.verdict import verdict
from whyidle.verdict.words import UNSEEN


@pytest.mark.parametrize(("ranks", "said"), SHORTAGES)
def test_headline_names_a_shortage_that_explains_why_ranks_take_turns(ranks: list[dict[str, Any]], said: str) -> None:
    found = cast(Any, verdict(run(*ranks)))
    assert (found["family"], found["take_turns"]) == ("straggler", True)
    assert found["summary"] == f"ranks take turns at being late: {said}"


@pytest.mark.parametrize(("unseen", "never_late"), [([0, 1, 2], []), ([0], []), ([2], [2]), ([], [])])
def test_ranks_that_take_turns_on_gpus_that_nobody_looked_at_may_have_idle_gpus(
    unseen: list[int], never_late: list[int]
) -> None:
    account = run({}, {}, {})
    for rank in account.ranks:
        rank.newest.device = "cuda:0"  # type: ignore[misc]
        rank.gaps = None if rank.rank in unseen else 0.0
        (group,) = rank.groups.values()
        for other in never_late:
            group.behind.pop(other, None)
    said = f", {UNSEEN}" if set(unseen) - set(never_late) else ""
    found = cast(Any, verdict(account))
    assert found["take_turns"]
    assert found["summary"] == f"ranks take turns at being late: {COMPUTE}{said}"


@pytest.mark.parametrize(("stolen", "said"), [(0.0, shortage.BLOCKED), (7.0, shortage.BLOCKED), (8.0, shortage.STOLEN)])
def test_headline_on_blocked_code_says_if_a_hypervisor_may_be_the_reason(stolen: float, said: str) -> None:
    account = run({"asked": 55.0, "stolen": stolen})
    [rank] = account.ranks
    rank.seconds |= {"compute": WALL - 10.0, "straggler": 0.0, "host_blocked": 10.0}
    rank.groups.clear()
    found = cast(Any, verdict(account))
    assert (found["family"], found["summary"]) == ("host", said)


def test_a_rank_that_is_always_late_is_not_explained_by_a_shortage_of_all() -> None:
    found = cast(Any, verdict(run(*[{"asked": 55.0, "stolen": 13.7}] * 2, late_steps=(280, 0))))
    assert found["summary"] != f"ranks take turns at being late: {HYPERVISOR}"
    assert any("(steal)" in sentence for sentence in found["evidence"])  # it is mentioned all the same


def test_evidence_says_how_much_was_stolen_and_where() -> None:
    stolen = {"asked": 50.0, "stolen": 12.5}
    assert [*shortage.sentences(run(stolen, stolen))] == [
        "the hypervisor took 25 % of the CPU time that was asked for on the CPUs (steal). "
        "Ranks cannot see when it did: this time counts as compute, or as what else they did then"
    ]
    [sentence] = shortage.sentences(run({"asked": 50.0}, stolen, nodes=2))
    assert "25 % of the CPU time that was asked for on the CPUs of n1" in sentence
    assert [*shortage.sentences(run({"asked": 50.0, "stolen": 2.4}, {"asked": 50.0, "stolen": 2.4}))] == []


def test_evidence_says_which_ranks_queued() -> None:
    assert [*shortage.sentences(run({"queued": 6.0}, {"queued": 9.0}))] == [
        "the training threads of both ranks queued for a CPU in 25 % of the time"
    ]
    [sentence] = shortage.sentences(run({"queued": 1.0}, {"queued": 6.0}))
    assert sentence.startswith("the training threads of 1 of 2 ranks queued for a CPU in 20 % of the time")


def test_stolen_time_of_one_node_counts_once_however_many_ranks_see_it() -> None:
    """Two ranks that may use the same CPUs read the same counters: together they lost 5 s and not 10 s."""
    both = run(*[{"asked": 55.0, "stolen": 5.0}] * 2)
    assert shortage.reason(both, 13.0) == ""
    assert shortage.reason(both, 6.0) == HYPERVISOR
    assert shortage.reason(run(*[{"asked": 55.0, "stolen": 5.0}] * 2, nodes=2), 13.0) == HYPERVISOR

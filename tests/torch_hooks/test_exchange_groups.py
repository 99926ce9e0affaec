"""The split of waits in overlapping groups, by real runs of four ranks: rows and columns of a mesh of 2 x 2.

Rank 3 reads slowly, so that rank 2 waits for it in their row, and rank 1 in their column. Rank 0 waits for rank 2 in
their column, and for no rank in its row.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from support_forks import Forked, Forks
from support_training import Outcome, assert_every_second_is_in_one_place, sum_of_causes, until

from whyidle.agent.group_sums import across_nodes, of_run
from whyidle.ledger.causes import LATE_FAMILIES
from whyidle.ledger.layout import FAILED
from whyidle.ledger.reader import Ledger, Slot

pytestmark = pytest.mark.xdist_group("exchange-groups")

RANKS = 4
STEPS = 60
"""In each of two worlds."""
ROW, COLUMN = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}, {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}


def ended_well(
    forks: Forks,
    folder: Path,
    *arguments: str,
    recorded: bool = False,
    each: Mapping[int, Mapping[str, str]] | None = None,
) -> Outcome:
    words = ("mesh.py", str(STEPS), *arguments)
    outcome, codes = forks.run(words, folder, RANKS, recorded=recorded, each=each)
    assert codes == [0] * RANKS, outcome.stderr
    return outcome


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Outcome:
    return ended_well(forks, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Outcome:
    """Half of the ranks attach before there is a process group, the others when all groups have been used.

    Each row stands for a node.
    """
    nodes = {rank: {"WHYIDLE_NODE": f"node{min(row)}"} for rank, row in ROW.items()}
    return ended_well(forks, tmp_path_factory.mktemp("attached"), "ATTACH", each=nodes)


@pytest.fixture(scope="module")
def without_rank_3(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Outcome:
    """It is as late as before, but is not recorded."""
    return ended_well(forks, tmp_path_factory.mktemp("without"), recorded=True, each={3: {"WHYIDLE": "0"}})


def slots(ledger: Ledger) -> tuple[Slot, Slot]:
    """The slots of the row and of the column, in which a rank waits in this order."""
    row, column = (slot for slot in sorted(ledger.slots, key=lambda slot: slot.index) if slot.label != "world")
    return row, column


def assert_sums_hold(outcome: Outcome, *, attached: bool = False) -> None:
    for ledger in outcome.ledgers:
        told, _ = outcome.rank(ledger.rank)
        if attached:  # the exit handler of the process that attaches runs before the script's
            assert sum_of_causes(ledger) == ledger.until_ns - ledger.start_ns <= told.most_ns
        else:
            assert_every_second_is_in_one_place(told, ledger)
        assert (ledger.faults, ledger.pending_ns, ledger.steps) == (0, 0, 2 * STEPS)
        for slot in ledger.slots:
            assert slot.pending == slot.pipeline == 0
            assert slot.network + slot.straggler + slot.queue + slot.unsplit == slot.waited
            assert sum(slot.behind.values()) <= slot.straggler


def mostly_split(slot: Slot) -> bool:
    """The first steps of a world pass before members have met, and its last steps are not exchanged."""
    return slot.unsplit < slot.waited / 2


def test_each_group_is_split_and_names_who_was_late(attached: Outcome) -> None:
    assert_sums_hold(attached, attached=True)
    ledgers = {rank: attached.rank(rank)[1] for rank in range(RANKS)}
    for rank, other in ((2, 3), (0, None)):
        row, column = slots(ledgers[rank])
        assert min(row.calls, column.calls) >= 4 * STEPS, "two parameters"
        if other is not None:
            assert mostly_split(row)
            assert max(row.behind, key=lambda one: row.behind[one]) == other
            assert row.straggler > row.network
    _, column = slots(ledgers[1])
    assert mostly_split(column)
    assert max(column.behind, key=lambda one: column.behind[one]) == 3
    _, column = slots(ledgers[0])
    assert mostly_split(column)
    assert max(column.behind, key=lambda one: column.behind[one]) == 2
    for ledger in ledgers.values():
        assert ledger.hook_states["exchange"] == "active"
        assert all(slot.settled > STEPS + 8 for slot in slots(ledger)), "in the second world too"


def test_a_rank_is_late_because_of_its_reads_or_a_wait_in_another_group(attached: Outcome) -> None:
    row, column = slots(attached.rank(3)[1])
    for slot in (row, column):
        assert max(slot.late_own, key=lambda family: slot.late_own[family]) == "storage"
    # Rank 2 read as fast as the others: it came late to its column because it waited in its row.
    row, column = slots(attached.rank(2)[1])
    assert column.late_elsewhere.keys() == {row.index}
    assert column.late_elsewhere[row.index] > sum(column.late_own.get(family, 0) for family in LATE_FAMILIES)


def test_groups_without_the_rank_that_does_not_attach_are_split(without_rank_3: Outcome) -> None:
    assert_sums_hold(without_rank_3)
    assert sorted(ledger.rank for ledger in without_rank_3.ledgers) == [0, 1, 2]
    row, column = slots(without_rank_3.rank(0)[1])
    assert mostly_split(row)
    assert mostly_split(column)
    assert max(column.behind, key=lambda one: column.behind[one]) == 2


def test_bus_bytes_and_the_groups_that_need_the_links_of_a_node(attached: Outcome) -> None:
    assert across_nodes(attached.ledgers, lambda ledger: ledger.node) == {
        node: {"world": 1, "2 ranks": 0, "2 ranks (2)": 2} for node in ("node0", "node2")
    }
    for ledger in attached.ledgers:
        transfers, sent = of_run(ledger, slots(ledger)[1].index)
        assert transfers == slots(ledger)[1].network > 0
        # Two parameters in each step, and a number in each world. The late ranks attach after the first number.
        assert sent == 2 * STEPS * (8 + 1) * 8 * 4 + (2 if ledger.rank < 2 else 1) * 4


def test_groups_with_the_rank_that_does_not_attach_stay_unsplit(without_rank_3: Outcome) -> None:
    _, column = slots(without_rank_3.rank(1)[1])
    row, _ = slots(without_rank_3.rank(2)[1])
    for slot in (row, column):
        assert slot.unsplit + slot.queue == slot.waited > 2 * STEPS * 10_000_000
        assert not slot.behind


def test_losses_are_bit_identical(plain: Outcome, attached: Outcome, without_rank_3: Outcome) -> None:
    losses = {told.rank: told.losses for told in plain.told}
    for outcome in (attached, without_rank_3):
        assert {told.rank: told.losses for told in outcome.told} == losses
    assert all([len(values[world]) for world in ("first", "second")] == [STEPS] * 2 for values in losses.values())


def test_prints_nothing(plain: Outcome, attached: Outcome, without_rank_3: Outcome) -> None:
    for outcome in (attached, without_rank_3):
        assert "whyidle:" not in outcome.stderr
        assert outcome.stderr.count("Warning:") <= plain.stderr.count("Warning:")
        assert not outcome.left_behind


def test_other_ranks_end_with_their_own_error_when_one_is_killed(tmp_path: Path, forks: Forks) -> None:
    def kill(processes: list[Forked]) -> None:
        assert until((tmp_path / "trains").exists)
        processes[3].send_signal(signal.SIGKILL)

    outcome, codes = forks.run(("mesh.py", "1000000"), tmp_path, RANKS, meanwhile=kill)
    # Gloo closes the connections of a rank that fails, which makes the next one fail.
    assert codes == [1, 1, 1, -signal.SIGKILL], outcome.stderr
    assert "whyidle:" not in outcome.stderr
    assert "torch_hooks/exchange" not in outcome.stderr
    assert not outcome.left_behind
    for rank in range(3):
        told, ledger = outcome.rank(rank)
        assert_every_second_is_in_one_place(told, ledger)
        assert (ledger.alive, ledger.ended, ledger.faults, ledger.pending_ns) == (False, FAILED, 0, 0)
    (killed,) = (ledger for ledger in outcome.ledgers if ledger.rank == 3)
    assert (killed.alive, killed.ended) == (False, 0)


def test_leaders_of_nodes_compare_for_their_ranks_in_a_large_group(tmp_path: Path, forks: Forks) -> None:
    steps = 150
    outcome, codes = forks.run(("nodes.py", str(steps)), tmp_path, RANKS)
    assert codes == [0] * RANKS, outcome.stderr
    assert "whyidle:" not in outcome.stderr
    for told in outcome.told:
        _, ledger = outcome.rank(told.rank)
        assert told.counts["blocks"] > 3
        assert told.facts["groups"] == (["_up", "_leaders", "_down"] if told.rank in (0, 2) else ["_up", "_down"])
        (world,) = ledger.slots
        assert (ledger.faults, world.pending, ledger.hook_states["exchange"]) == (0, 0, "active")
        assert world.network + world.straggler + world.queue + world.unsplit == world.waited
        assert world.settled > steps / 2
        if told.rank == 3:
            assert max(world.late_own, key=lambda family: world.late_own[family]) == "storage"
        else:
            assert mostly_split(world)
            assert world.straggler > world.network
            assert max(world.behind, key=lambda one: world.behind[one]) == 3

"""Which group a wait belongs to: the slots of a process, and real calls of four ranks in groups of many kinds."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from support_forks import Forks
from support_training import Outcome, Told, assert_every_second_is_in_one_place

from whyidle.ledger.bus import bus_bytes
from whyidle.ledger.layout import SLOTS, UNKNOWN_SLOT
from whyidle.ledger.reader import Ledger
from whyidle.torch_hooks import groups as groups_module
from whyidle.torch_hooks.groups import Group, Groups
from whyidle.torch_hooks.session import Session
from whyidle.torch_hooks.wait_codes import (
    NOT_ENTERED,
    UNKNOWN_WAIT,
    WITHOUT_PEER,
    Issue,
    Issues,
    WaitCode,
    slot_of,
    wait_code,
)

RANKS = 4


# -- the slots of a process


class ProcessGroup:
    """As in torch.distributed: some ranks, in any order."""

    def __init__(self, *ranks: int, described: str = "undefined", name: str = ""):
        self.ranks = list(ranks)
        self.group_name = name
        self.group_desc = described

    def size(self) -> int:
        return len(self.ranks)


@pytest.fixture(autouse=True)
def _ranks_are_known(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "pair" not in request.fixturenames:
        known = SimpleNamespace(get_process_group_ranks=lambda group: group.ranks)
        monkeypatch.setattr(groups_module, "sys", SimpleNamespace(modules={"torch.distributed": known}))


def slots_of(rank: int = 0, world: int = 4, taken: dict[int, Group] | None = None) -> Groups:
    return Groups(rank, tuple(range(world)), lambda _: None, taken)


def test_the_world_is_slot_zero_whichever_group_it_is() -> None:
    groups = slots_of()
    assert slot_of(groups.code_of(ProcessGroup(1, 0))) == 1
    assert slot_of(groups.code_of(ProcessGroup(0, 1, 2, 3))) == slot_of(groups.code_of(ProcessGroup(3, 2, 1, 0))) == 0


def test_groups_of_the_same_ranks_have_different_numbers() -> None:
    """torch numbers the groups in the order in which all ranks make them, or hashes their ranks."""
    groups = slots_of()
    named = [ProcessGroup(0, 1, 2, 3, name=name) for name in ("", "0", "1", "2", "d41d8c")]
    codes = [groups.code_of(group) for group in named]
    assert [slot_of(code) for code in codes] == [0] * 5
    assert codes[0] == codes[1] == WITHOUT_PEER[0], "the world"
    assert len({*codes}) == 4
    assert codes[2:] == [slots_of(3).code_of(group) for group in named[2:]], "the same on all ranks"
    assert groups.code_of(named[2], pairwise=True) == WITHOUT_PEER[6]


def test_groups_of_the_same_ranks_share_a_slot_and_messages_have_their_own() -> None:
    groups = slots_of()
    one, other = ProcessGroup(0, 1), ProcessGroup(1, 0)
    assert slot_of(groups.code_of(one)) == slot_of(groups.code_of(other)) == 1
    assert slot_of(groups.code_of(one, pairwise=True)) == slot_of(groups.code_of(other, pairwise=True)) == 6


def test_a_kind_of_group_has_the_same_slot_on_all_stages_of_a_pipeline() -> None:
    """Members of a group compare by slot how long they waited elsewhere, and the stages meet their groups in turn."""
    order = [("mesh_tp", False), ("mesh_pp", True), ("mesh_dp_shard", False), ("mesh_dp_replicate", False)]
    found = []
    for turned in (order, [order[1], order[0], *order[:1:-1]]):
        groups = slots_of(world=16)
        for name, pairwise in turned:
            groups.code_of(ProcessGroup(0, 1 + order.index((name, pairwise)), described=name), pairwise)
        found.append({group.label: slot for slot, group in groups.slots.items()})
    assert found[0] == found[1] == {"dp_replicate": 1, "dp_shard": 2, "tp": 3, "pp p2p": 6}


def test_late_groups_and_groups_of_other_ranks_have_no_slot() -> None:
    groups = slots_of(world=16)
    early = [ProcessGroup(0, other) for other in range(1, 7)]
    assert [slot_of(groups.code_of(group)) for group in early] == [1, 2, 3, 4, 5, 6]
    late = ProcessGroup(0, 9)
    assert groups.code_of(late) == groups.code_of(late) == UNKNOWN_WAIT
    assert slot_of(groups.code_of(ProcessGroup(*range(16)))) == 0, "the world always has a slot"
    assert slots_of().code_of(ProcessGroup(1, 2)) == UNKNOWN_WAIT
    assert groups.code_of(ProcessGroup(0)) == NOT_ENTERED


def test_labels_are_those_of_the_mesh_and_unique() -> None:
    groups = slots_of()
    for group, pairwise in (
        (ProcessGroup(0, 1, described="mesh_tp"), False),
        (ProcessGroup(0, 1, described="mesh_tp"), True),
        (ProcessGroup(0, 2), False),
        (ProcessGroup(0, 3), False),
        (ProcessGroup(0, 1, 2, 3), True),
        (ProcessGroup(0, 1, 2, described="mesh_tp"), False),
        (ProcessGroup(0, 1, 2, 3), False),
    ):
        groups.code_of(group, pairwise)
    labels = ["world", "2 ranks", "2 ranks (2)", "tp", "tp (2)", "world p2p", "tp p2p"]
    assert [groups.slots[slot].label for slot in range(7)] == labels


def test_slots_of_an_earlier_world_keep_their_meaning_and_their_name() -> None:
    before = slots_of()
    for group in (ProcessGroup(0, 1, described="mesh_tp"), ProcessGroup(0, 2)):
        before.code_of(group)
    groups = slots_of(taken={**before.taken, **before.slots})
    assert slot_of(groups.code_of(ProcessGroup(0, 3))) == 2
    assert slot_of(groups.code_of(ProcessGroup(0, 2))) == 1
    assert slot_of(groups.code_of(ProcessGroup(0, 1))) == 3
    assert [groups.slots[slot].label for slot in (3, 1, 2)] == ["tp", "2 ranks", "2 ranks (2)"]


def test_keys_are_the_same_on_all_ranks_and_differ_between_groups() -> None:
    found = []
    for rank in (0, 1):
        groups = slots_of(rank)
        for pairwise in (False, True):
            groups.code_of(ProcessGroup(1, 0), pairwise)
        groups.code_of(ProcessGroup(0, 1, 2))
        found.append([group.key for group in groups.slots.values()])
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


def test_the_peer_of_a_message_is_a_global_rank() -> None:
    groups = slots_of()
    group = ProcessGroup(3, 0)
    groups.code_of(group, pairwise=True)
    assert (groups.peer_of(group, 0), groups.peer_of(group, 1)) == (3, 0)


def test_a_new_group_at_the_address_of_an_old_one_has_its_own_ranks() -> None:
    """Python gives the id of a dead object to a new one."""
    groups = slots_of()
    gone = ProcessGroup(0, 2)
    groups.code_of(gone, pairwise=True)
    groups.peer_of(gone, 1)
    group = ProcessGroup(0, 3)
    # Which object gets the address is the allocator's choice. So what is known by the old id moves to the new one.
    groups.seen = {(id(group), pairwise): seen for (_, pairwise), seen in groups.seen.items()}
    groups._members = {id(group): members for members in groups._members.values()}
    del gone
    assert slot_of(groups.code_of(group, pairwise=True)) == 5
    assert groups.peer_of(group, 1) == 3


def test_groups_outside_are_those_that_do_not_hold_up_the_whole_group() -> None:
    groups = slots_of(world=8)
    for group, pairwise in (
        (ProcessGroup(*range(8)), False),
        (ProcessGroup(0, 1), False),
        (ProcessGroup(0, 1, 2), False),
        (ProcessGroup(0, 4), False),
        (ProcessGroup(0, 1), True),
    ):
        groups.code_of(group, pairwise)
    assert groups.outside(0) == (1, 2, 3, 6)
    assert groups.outside(1) == (3, 6)
    assert groups.outside(6) == (0, 1, 2, 3)


# -- from a call to its wait


class Work:
    pass


class Machine:
    """Tells which waits it was asked to enter."""

    device = None

    def __init__(self) -> None:
        self.entered: list[tuple[WaitCode, Issues]] = []

    def enter_wait(self, code: WaitCode, issues: Issues = (), blocks: bool = False) -> int:
        self.entered.append((code, issues))
        return 0


def waits_for(groups: Groups, work: Work) -> tuple[WaitCode, Issues]:
    """The wait that a session enters when the loop waits for a work."""
    session, machine = Session(), Machine()
    session.exchange, session.machine = SimpleNamespace(groups=groups), machine  # type: ignore[assignment]
    assert session.wait_for(work) == (0 if machine.entered else NOT_ENTERED)
    return machine.entered[0] if machine.entered else (NOT_ENTERED, ())


def test_a_work_is_waited_for_once() -> None:
    groups, work, issues = slots_of(), Work(), (Issue(1, sent=True, at=77),)
    groups.issued(work, wait_code(2), issues)
    assert groups.issue_of(work) == (wait_code(2), issues, True, False)
    assert waits_for(groups, work) == (wait_code(2), issues)
    assert waits_for(groups, work) == (UNKNOWN_WAIT, ())
    assert waits_for(groups, Work()) == (UNKNOWN_WAIT, ())


def test_nobody_waits_for_a_work_of_a_group_with_one_rank() -> None:
    groups, work = slots_of(), Work()
    groups.issued(work, NOT_ENTERED)
    assert waits_for(groups, work) == (NOT_ENTERED, ())


def test_works_that_nobody_waits_for_are_dropped_once_they_are_dead() -> None:
    groups, alive = slots_of(), Work()
    groups.issued(alive, wait_code(1))
    for _ in range(10_000):
        groups.issued(Work(), wait_code(2))
    assert len(groups.waited) <= 513
    assert waits_for(groups, alive) == (wait_code(1), ())


def test_works_that_are_kept_and_never_waited_for_take_bounded_memory() -> None:
    groups = slots_of()
    kept = [Work() for _ in range(5_000)]
    for work in kept:
        groups.issued(work, wait_code(2))
    assert len(groups.waited) <= 513
    assert waits_for(groups, kept[-1]) == (wait_code(2), ())


def test_keeps_no_work_alive() -> None:
    groups, work = slots_of(), Work()
    groups.issued(work, wait_code(2))
    gc.disable()
    try:
        place = id(work)
        del work
        assert groups.waited[place][0]() is None
    finally:
        gc.enable()


def test_tensors_of_functional_collectives_that_nobody_waits_for_take_bounded_memory() -> None:
    groups = slots_of()
    for address in range(5_000):
        groups.resolved = address % 6
        groups.wrapped(SimpleNamespace(data_ptr=lambda address=address: address))
    assert len(groups._of_storage) <= 513
    last: Any = SimpleNamespace(data_ptr=lambda: 4_999)
    assert groups.code_of_tensor(last) == 4_999 % 6
    assert groups.code_of_tensor(last) == UNKNOWN_WAIT, "it has been waited for"


# -- real calls


@dataclass(frozen=True)
class Calls:
    """What the script does, and where it may wait more often than it says."""

    names: Sequence[str]
    more: frozenset[str] = frozenset()
    plain: bool = False
    """Whether the calls also run without whyidle."""


CALLS = {
    # The parameters of tensor-parallel layers are sent; there is another wait for a view of their result.
    "kinds": Calls(
        ("slots", "kinds", "messages", "functional", "compiled", "again"), more=frozenset({"tp", "?"}), plain=True
    ),
    "many": Calls(("left_alone", "threads", "many")),
}


@dataclass
class Pair:
    calls: Calls
    plain: Outcome | None
    recorded: Outcome

    def ranks(self) -> list[tuple[Told, Ledger]]:
        return [self.recorded.rank(rank) for rank in range(RANKS)]


real = pytest.mark.parametrize(
    "pair",
    [pytest.param(name, marks=pytest.mark.xdist_group(f"groups-{name}")) for name in CALLS],
    indirect=True,
    scope="module",
)


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Pair:
    calls = CALLS[request.param]
    folder = tmp_path_factory.mktemp(request.param)

    def outcome(name: str) -> Outcome:
        words = ("groups.py", *calls.names)
        done, codes = forks.run(words, folder / name, RANKS, recorded=name == "recorded")
        assert codes == [0] * RANKS, done.stderr
        return done

    return Pair(calls, outcome("plain") if calls.plain else None, outcome("recorded"))


@real
def test_each_wait_is_in_the_slot_of_its_group(pair: Pair) -> None:
    for told, ledger in pair.ranks():
        found = {slot.label: slot.calls for slot in ledger.slots}
        found["?"] = ledger.words["slot_calls"][UNKNOWN_SLOT]
        expected = {"?": 0} | told.facts["waits"]
        expected["?"] += 1  # the ranks have met
        for name in pair.calls.more:
            assert found[name] >= expected[name], name
            found[name] = expected[name]
        assert found == expected
        assert sum(ledger.words["slot_calls"]) == ledger.collectives


@real
def test_slots_have_the_sizes_of_their_groups(pair: Pair) -> None:
    sizes = {"world": 4, "dp": 2, "tp": 2}
    for _, ledger in pair.ranks():
        for slot in ledger.slots:
            name = slot.label.removesuffix(" p2p")
            assert slot.size == (sizes[name] if name in sizes else int(name.split()[0]))
            assert slot.pairwise == slot.label.endswith(" p2p")


@real
def test_members_compute_the_same_key_for_a_group(pair: Pair) -> None:
    keys: dict[int, list[int]] = {}
    for _, ledger in pair.ranks():
        for slot in ledger.slots:
            keys.setdefault(slot.key, []).append(slot.size)
    assert all(sizes == [len(sizes)] * len(sizes) for sizes in keys.values()), keys


@real
def test_every_second_is_in_one_place(pair: Pair) -> None:
    for told, ledger in pair.ranks():
        assert_every_second_is_in_one_place(told, ledger)
        assert ledger.faults == 0
        assert "failed" not in ledger.hook_states.values()
        unknown = ledger.words["slot_waited_ns"][UNKNOWN_SLOT]
        assert sum(slot.waited for slot in ledger.slots) + unknown == ledger.waited_ns
        for slot in ledger.slots:
            assert (
                slot.network + slot.straggler + slot.pipeline + slot.queue + slot.unsplit + slot.pending == slot.waited
            )
        parts = ("network", "straggler", "pipeline", "collective", "collective_queue")
        assert sum(ledger.cause_ns[part] for part in parts) + ledger.pending_ns == ledger.waited_ns
        assert len(ledger.words["slot_calls"]) == SLOTS


@real
def test_prints_nothing(pair: Pair) -> None:
    assert "whyidle:" not in pair.recorded.stderr
    other = [line for line in pair.recorded.stderr.splitlines() if "Warning:" not in line]
    assert not any("torch_hooks" in line for line in other)
    assert pair.plain is None or _warnings(pair.recorded) <= _warnings(pair.plain)


def _warnings(outcome: Outcome) -> set[str]:
    """Without their places: Python names the function that has called C++, which in a backward pass is a hook."""
    lines = outcome.stderr.splitlines()
    return {"Warning:" + line.split("Warning:", 1)[1] for line in lines if "Warning:" in line}


@real
def test_losses_and_graph_counts_are_unchanged(pair: Pair) -> None:
    for without in pair.plain.told if pair.plain is not None else ():
        told, _ = pair.recorded.rank(without.rank)
        assert told.losses == without.losses
        assert told.facts["graphs"] == without.facts["graphs"] > 0
        assert told.facts["graph_breaks"] <= without.facts["graph_breaks"]


@real
def test_bytes_are_counted_by_group_and_operation(pair: Pair) -> None:
    """What is reduced, what was gathered, and what is scattered: 32 bytes a rank for each call."""
    expected = {"all_reduce": 7 * 32, "all_gather": 2 * 64, "reduce_scatter": 32, "all_to_all": 32}
    for _, ledger in pair.ranks():
        found = {slot.label: slot.bytes for slot in ledger.slots}
        assert found.get("dp") == (expected if "functional" in pair.calls.names else None)
        sent = {slot.label: bus_bytes(slot.bytes, slot.size) for slot in ledger.slots}  # to the other of two ranks
        assert sent.get("dp", 0) == sum(found.get("dp", {}).values()) / 2 + found.get("dp", {}).get("all_reduce", 0) / 2

"""How members of a group meet, over a real store: every member is polled in turn, as its background thread would do.

A member that is no longer polled has died.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from whyidle.torch_hooks.exchange import formation
from whyidle.torch_hooks.exchange.formation import Formation, Place

if TYPE_CHECKING:
    import torch.distributed as dist

pytestmark = pytest.mark.xdist_group("formation")
"""They are the only tests that import torch in pytest's own process."""

KEY = 0xC0FFEE
POLLS = 40
"""More rounds than it takes, in any order of arrival."""


@pytest.fixture(scope="module")
def server() -> dist.TCPStore:
    import torch.distributed as dist

    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=20))


@pytest.fixture
def store(server: dist.TCPStore, request: pytest.FixtureRequest) -> Iterator[dist.PrefixStore]:
    """A place in the store for each test."""
    import torch.distributed as dist

    return dist.PrefixStore(request.node.name, server)  # type: ignore[return-value]


class Counting:
    """A store that counts the requests and the bytes of keys and values that pass through it."""

    def __init__(self, store: dist.Store):
        self._store = store
        self.requests: Counter[str] = Counter()
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        ask = getattr(self._store, name)

        def call(*args: Any) -> Any:
            self.requests[name] += 1
            answer = ask(*args)
            self.bytes += _size(args) + _size(answer)
            return answer

        return call


def _size(value: object) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    return 1  # tests whether a key exists


class Member:
    def __init__(self, store: Any, ranks: Sequence[int], rank: int, held_from: int | None = 1, machine: str = ""):
        self.held_from = held_from
        self.formation = Formation(store, KEY, ranks, rank, machine)
        self.first: int | None = None

    def poll(self) -> None:
        if self.first is None:
            self.first = self.formation.poll(self.held_from)

    @property
    def token(self) -> str:
        return self.formation.token


def join(store: Any, ranks: Sequence[int], **held_from: int) -> dict[int, Member]:
    return {rank: Member(store, ranks, rank, held_from.get(f"of_{rank}", 1)) for rank in ranks}


def poll(members: Iterable[Member], times: int = POLLS) -> None:
    members = list(members)
    for _ in range(times):
        for member in members:
            member.poll()


def assert_met(members: Mapping[int, Member], first: int = 1) -> None:
    assert {rank: member.first for rank, member in members.items()} == dict.fromkeys(members, first)
    (token,) = {member.token for member in members.values()}
    assert token


def test_all_meet_and_agree_on_the_latest_of_their_first_steps(store: dist.Store) -> None:
    members = join(store, (0, 3, 5), of_0=4, of_3=11, of_5=2)
    poll(members.values())
    assert_met(members, first=11)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_members_may_come_in_any_order(store: dist.Store, order: tuple[int, ...]) -> None:
    members: dict[int, Member] = {}
    for rank in order:
        assert all(member.first is None for member in members.values())
        members[rank] = Member(store, (0, 1, 2), rank)
        poll(members.values(), 5)
    poll(members.values())
    assert_met(members)


def test_two_groups_do_not_meet_each_other(store: dist.Store) -> None:
    one = Formation(store, 1, (0, 1), 0)
    other = Formation(store, 2, (0, 1), 1)
    for _ in range(POLLS):
        assert one.poll(1) is None
        assert other.poll(1) is None


def test_waits_without_a_deadline_for_a_missing_member(store: dist.Store) -> None:
    members = join(store, (0, 1, 2))
    members.pop(1)  # it wrote its own number
    members = {rank: Member(store, (0, 1, 2, 3), rank) for rank in (0, 1, 2)}
    poll(members.values(), 200)
    assert [member.first for member in members.values()] == [None] * 3
    assert not any(member.formation.called for member in members.values())

    members[3] = Member(store, (0, 1, 2, 3), 3)
    poll(members.values())
    assert_met(members)


def test_waits_without_a_deadline_for_a_missing_leader(store: dist.Store) -> None:
    members = {rank: Member(store, (0, 1, 2), rank) for rank in (1, 2)}
    poll(members.values(), 200)
    assert [member.first for member in members.values()] == [None] * 2
    members[0] = Member(store, (0, 1, 2), 0)
    poll(members.values())
    assert_met(members)


def test_asks_a_member_to_hold_back_its_waits(store: dist.Store) -> None:
    members = join(store, (0, 1))
    members[1].held_from = None
    poll(members.values())
    assert members[1].formation.called
    assert not members[0].formation.called, "it has answered"
    assert [member.first for member in members.values()] == [None, None]

    members[1].held_from = 77
    poll(members.values())
    assert not members[1].formation.called
    assert_met(members, first=77)


@pytest.mark.parametrize("polls", range(6), ids=lambda polls: f"after {polls} polls")
def test_forms_after_an_attempt_that_died_at_any_moment(store: dist.Store, polls: int) -> None:
    """Its keys still exist: its members, that they were called, and their answers."""
    before = join(store, (0, 1, 2), of_1=500)
    poll(before.values(), polls)
    now = join(store, (0, 1, 2), of_2=3)
    poll(now.values())
    assert_met(now, first=3)
    assert now[0].token not in {member.token for member in before.values()}


@pytest.mark.parametrize("polls", range(4), ids=lambda polls: f"after {polls} polls")
def test_members_that_return_one_by_one_ignore_old_keys(store: dist.Store, polls: int) -> None:
    poll(join(store, (0, 1, 2), of_1=500).values(), polls)
    now: dict[int, Member] = {}
    for rank in (2, 0, 1):
        now[rank] = Member(store, (0, 1, 2), rank, held_from=3)
        poll(now.values(), 20)
        assert len(now) == 3 or all(member.first is None for member in now.values())
    poll(now.values())
    assert_met(now, first=3)


def test_members_follow_a_leader_that_restarts(store: dist.Store) -> None:
    members = join(store, (0, 1, 2))
    members[2].held_from = None  # so that the first leader does not get them together
    poll(members.values())
    assert members[1].token
    members[0] = Member(store, (0, 1, 2), 0, held_from=9)
    members[2].held_from = 2
    poll(members.values())
    assert_met(members, first=9)


@pytest.mark.parametrize("answered", [False, True])
def test_a_member_that_restarts_while_forming_takes_part_under_its_new_name(store: dist.Store, answered: bool) -> None:
    members = join(store, (0, 1, 2))
    members[1].held_from = None
    members[2].held_from = 5 if answered else None
    poll(members.values())
    assert bool(members[2].token) == answered
    members[2] = Member(store, (0, 1, 2), 2, held_from=8)
    members[1].held_from = 4
    poll(members.values())
    assert_met(members, first=8)


# -- large groups


def test_members_of_a_large_group_learn_their_places(store: dist.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formation, "NODES_FROM", 3)
    machines = {0: "a", 3: "b", 5: "a", 7: "", 8: "b", 9: "a"}
    members = {rank: Member(store, tuple(machines), rank, machine=machine) for rank, machine in machines.items()}
    poll(members.values())
    assert_met(members)
    assert {rank: member.formation.place for rank, member in members.items()} == {
        0: Place(node=0, index=0, size=3, nodes=3, widest=3),
        3: Place(node=1, index=0, size=2, nodes=3, widest=3),
        5: Place(node=0, index=1, size=3, nodes=3, widest=3),
        7: Place(node=2, index=0, size=1, nodes=3, widest=3),
        8: Place(node=1, index=1, size=2, nodes=3, widest=3),
        9: Place(node=0, index=2, size=3, nodes=3, widest=3),
    }


def test_members_of_other_groups_have_no_place(store: dist.Store) -> None:
    members = {rank: Member(store, (0, 1, 2), rank, machine="a") for rank in range(3)}
    poll(members.values())
    assert_met(members)
    assert {member.formation.place for member in members.values()} == {None}


# -- the cost for the store: docs/scale.md has these numbers


def counted(store: dist.Store, count: int) -> tuple[dict[int, Member], dict[int, Counting]]:
    ranks = range(count)
    stores = {rank: Counting(store) for rank in ranks}
    return {rank: Member(stores[rank], ranks, rank) for rank in ranks}, stores


@pytest.mark.parametrize("count", [4, 64])
def test_forming_costs_each_member_a_bounded_number_of_requests(store: dist.Store, count: int) -> None:
    members, stores = counted(store, count)
    poll(members.values(), 6)
    assert_met(members)
    for rank, asked in stores.items():
        assert asked.requests.total() == members[rank].formation.requests, "what it says of itself is true"
        assert asked.requests.total() <= 15
        # Only the leader reads and writes what grows with the group.
        assert asked.bytes <= (400 * count if rank == 0 else 500)


def test_waiting_costs_each_member_one_request_a_poll(store: dist.Store) -> None:
    members, stores = counted(store, 64)
    absent = members.pop(63)
    store.delete_key(f"{KEY:x}/63")
    poll(members.values(), 1)
    before = {rank: (stores[rank].requests.total(), stores[rank].bytes) for rank in members}
    poll(members.values(), 10)
    for rank in members:
        requests, size = before[rank]
        assert stores[rank].requests.total() - requests == (20 if rank == 0 else 10)
        assert stores[rank].bytes - size <= (10 * 64 * 24 if rank == 0 else 10 * 32)
    assert absent.first is None

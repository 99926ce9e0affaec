"""How the members of a group find each other: through keys in the store of torch.distributed, without a deadline.

1. Every member writes its name, a random number, and its machine.
2. When all names are there, the leader (the lowest rank) calls the members with a token. In a large group it also tells
   each its place among the nodes.
3. A member that was called by its own name answers with the first step whose waits it keeps pending.
4. When all have answered, the leader writes the first step whose waits all members keep pending.

Members of an earlier attempt, whose keys are still there, do not answer. Then the leader reads the names again and
calls with a new token. If a member never comes, only a background thread waits for it, and its group stays unsplit.

Each member writes about five keys to the store and, while it waits, reads now and then (`Formation.requests` counts).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

NODES_FROM = 2048
"""In groups with more ranks, only one rank of each node exchanges with other nodes."""
_LOOK_AGAIN = 8
"""If members do not answer, the leader checks after this many polls whether they are still the same."""


class Place(NamedTuple):
    """The place of a member of a large group."""

    node: int
    """The number of its node, from 0."""
    index: int
    """Its number on this node. Number 0 is the leader of the node."""
    size: int
    """How many members are on this node."""
    nodes: int
    widest: int
    """The most members on a node."""


def places_of(machines: Sequence[str]) -> list[Place]:
    """The places of members, given the machine of each. One whose machine is not known (``""``) is its own node."""
    nodes: dict[str, list[int]] = {}
    for member, machine in enumerate(machines):
        nodes.setdefault(machine or f"?{member}", []).append(member)
    widest = max(map(len, nodes.values()))
    places = {
        member: Place(node, index, len(members), len(nodes), widest)
        for node, members in enumerate(nodes.values())
        for index, member in enumerate(members)
    }
    return [places[member] for member in range(len(machines))]


class Formation:
    """The formation of one group, as a member sees it. ``poll`` never waits, but raises the errors of the store."""

    def __init__(self, store: Any, key: int, ranks: Sequence[int], rank: int, machine: str = ""):
        """``machine``: the same for all ranks of a machine, without spaces; empty if that is not known."""
        self._store = store
        self._ranks = ranks
        self._rank = rank
        self._prefix = f"{key:x}"
        self._me = os.urandom(8).hex()
        self._called = ""  # the token with which this member was called
        self._answered = ""
        self._token = ""  # the token with which this member, as the leader, has called the others
        self._members: list[bytes] = []
        self._polls = 0
        self.place: Place | None = None
        """The place of this member, once it was called; None in groups that are not large."""
        self.requests = 0
        """How many requests it has sent to the store."""
        self._set(self._name(rank), f"{self._me} {machine}" if len(ranks) > NODES_FROM else self._me)

    @property
    def token(self) -> str:
        """The token of the group that was formed; the same on all members. Empty before."""
        return self._answered

    def poll(self, held_from: int | None) -> int | None:
        """Returns the first step whose waits all members keep pending; None while that is not known.

        ``held_from``: the first step whose waits this rank keeps pending; None if it does not do so yet.
        """
        if self._rank == self._ranks[0]:
            self._lead()
        if not self._called or self._called == self._answered:
            self._listen()
        if self._called and self._called != self._answered and held_from is not None:
            self._set(f"{self._name(self._rank)}/{self._called}", str(held_from))
            self._answered = self._called
        if self._answered and self._check([f"{self._prefix}/{self._answered}"]):
            return int(self._get(f"{self._prefix}/{self._answered}"))
        return None

    @property
    def called(self) -> bool:
        """Whether this rank was called and has not answered yet."""
        return bool(self._called) and self._called != self._answered

    def _lead(self) -> None:
        names = [self._name(rank) for rank in self._ranks]
        if not self._token:
            if self._check(names):
                self._call(self._get_all(names))
            return
        answers = [f"{name}/{self._token}" for name in names]
        if self._check(answers):
            self._set(f"{self._prefix}/{self._token}", str(max(map(int, self._get_all(answers)))))
            return
        self._polls += 1
        if self._polls % _LOOK_AGAIN == 0:
            members = self._get_all(names)
            if members != self._members:
                self._call(members)

    def _call(self, members: list[bytes]) -> None:
        self._members = members
        self._token = os.urandom(8).hex()
        names, machines = zip(*[member.decode().partition(" ")[::2] for member in members], strict=True)
        places = places_of(machines) if len(members) > NODES_FROM else [()] * len(members)
        self.requests += 1
        self._store.multi_set(
            [f"{self._name(rank)}/call" for rank in self._ranks],
            [" ".join(map(str, (name, self._token, *place))) for name, place in zip(names, places, strict=True)],
        )

    def _listen(self) -> None:
        key = f"{self._name(self._rank)}/call"
        if self._check([key]):
            name, token, *place = self._get(key).decode().split()
            if name == self._me:
                self._called = token
                self.place = Place(*map(int, place)) if place else None

    def _name(self, rank: int) -> str:
        return f"{self._prefix}/{rank}"

    def _check(self, keys: list[str]) -> bool:
        self.requests += 1
        return self._store.check(keys)

    def _get(self, key: str) -> bytes:
        self.requests += 1
        return self._store.get(key)

    def _get_all(self, keys: list[str]) -> list[bytes]:
        self.requests += 1
        return self._store.multi_get(keys)

    def _set(self, key: str, value: str) -> None:
        self.requests += 1
        self._store.set(key, value)

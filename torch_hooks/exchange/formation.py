"""How the members of a group find each other: through keys in the store of torch.distributed, without a deadline.

Every member writes who it is. When all have, the leader, which is the lowest rank, calls them together under a token.
A member that was called by its own name answers with the step from which it holds its waits back; when all have
answered, the leader says from which step all do. Members of an earlier attempt, whose keys are still there, do not
answer; the leader looks again and calls with a new token. A member that never comes is waited for by a background
thread only, and its group stays unsplit.

Each member costs the store some five keys and, while it waits, a question now and then (`Formation.requests` counts).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

_LOOK_AGAIN = 8
"""Polls after which a leader whose members do not answer looks whether they are still the same."""


class Formation:
    """One group, as one of its members sees it. ``poll`` never waits; it raises what the store raises."""

    def __init__(self, store: Any, key: int, ranks: Sequence[int], rank: int):
        self._store = store
        self._ranks = ranks
        self._rank = rank
        self._prefix = f"{key:x}"
        self._me = os.urandom(8).hex()
        self._called = ""  # the token under which this member was called
        self._answered = ""
        self._token = ""  # the leader's
        self._members: list[bytes] = []
        self._polls = 0
        self.requests = 0
        """Questions to the store so far."""
        self._set(self._name(rank), self._me)

    @property
    def token(self) -> str:
        """Names the group that was formed; the same on all members."""
        return self._answered

    def poll(self, held_from: int | None) -> int | None:
        """``held_from``: the first step whose waits this rank holds back, None if it does not yet.

        -> the first step whose waits all members hold back, once that is known.
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
        """Whether the group waits for this rank to hold its waits back."""
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
        self.requests += 1
        self._store.multi_set(
            [f"{self._name(rank)}/call" for rank in self._ranks],
            [f"{member.decode()} {self._token}" for member in members],
        )

    def _listen(self) -> None:
        key = f"{self._name(self._rank)}/call"
        if self._check([key]):
            name, _, token = self._get(key).decode().partition(" ")
            if name == self._me:
                self._called = token

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

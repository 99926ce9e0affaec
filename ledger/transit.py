"""How long the messages of one step of a pipeline were on their way: as measured, and without their transfers. Pure
functions, for ledger/replay.py.

A message is on its way when both of its ends were issued and the one before it on the link has arrived. A receiver's
request for a message may itself be behind a message: one that was already on its way in the other direction. Each of
the two counts for at most MOST_TRANSFERS of the link's median transfers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .messages import Link, queued

MOST_TRANSFERS = 2
"""The most transfers that a message may take, and as many for what is ahead of it. Anything longer is mostly a thread
that got no CPU: with four ranks on two cores and nothing slow, a replay found 1.5 points more `network` with a limit of
2, and 2.6 points more with 3."""
WAITED = 10
"""Anything shorter does not count as a wait, µs."""

Way = tuple[int, int]
"""The stages between which messages go: source and target. With the lower one first, both directions of a link."""
Links = Mapping[Way, Link]


class Entry(NamedTuple):
    """A message as seen by one of its ends. Times in µs of that rank's clock."""

    issued: int
    begin: int
    end: int
    queue: int
    peer: int
    """The stage at the other end."""
    sent: bool


class Times(NamedTuple):
    """An entry per message. Times in µs."""

    before: list[int]
    """The number of the message before this one on the same link, or -1."""
    bound: list[bool]
    """Whether the send may have ended only after its receive was issued."""
    arrive: tuple[list[int], list[int]]
    """How long the message takes to arrive: with its transfer, and without."""
    leave: tuple[list[int], list[int]]
    """How long it takes until its send ends: with the transfer, and without."""
    taken: dict[Way, int]
    """For the two stages of each link, how long its transfers took."""


class _Measured(NamedTuple):
    number: int
    transfer: int
    leave: int
    behind: int
    """The part of the transfer in which another message was ahead of the request, if there was one. An upper bound,
    because that one may have arrived before its receiver waited for it."""
    queue: int
    link: Link
    ends: Way


def times_of(ends: Sequence[tuple[Entry, Entry]], links: Links) -> Times:
    """The times of messages, given both ends of each. Messages of a way are neighbours, in the order of issue.

    A message on an unknown link takes no time.
    """
    count = len(ends)
    least = {_both(way): link.transfer for way, link in links.items()}
    arrive, leave = ([0] * count, [0] * count), ([0] * count, [0] * count)
    times = Times([-1] * count, [False] * count, arrive, leave, dict.fromkeys(least, 0))
    for number, transfer, left, behind, queue, link, both in _measure(ends, links, times, least):
        shortest = least[both]
        behind = max(0, min(behind, transfer - shortest))
        most = MOST_TRANSFERS * link.transfer
        most += min(behind, most)
        busy = shortest + min(behind, MOST_TRANSFERS * shortest)
        for took, (with_it, without) in ((transfer, arrive), (left, leave)):
            with_it[number] = max(0, min(took, most))
            if queue:
                without[number] = min(with_it[number], queued(queue, took, busy))
        times.taken[both] += arrive[0][number] - arrive[1][number]
    return times


def _both(way: Way) -> Way:
    return min(way), max(way)


def _measure(ends: Sequence[tuple[Entry, Entry]], links: Links, times: Times, least: dict[Way, int]) -> list[_Measured]:
    """Measures each message. Also sets `before` and `bound`, and the shortest transfer of each link."""
    found: list[_Measured] = []
    on_their_way = _on_their_way(ends, links)
    way, link, both, came, left = None, None, (0, 0), 0, 0
    begins: list[int] = []
    arrivals: list[int] = []
    for number, (send, receive) in enumerate(ends):
        here = receive.peer, send.peer
        first = here != way
        if first:
            way, link, both = here, links.get(here), _both(here)
            begins, arrivals = on_their_way.get((send.peer, receive.peer), ([], []))
        if link is None:
            continue
        issued, sent = send.issued + link.offset, send.end + link.offset
        if first:
            came, left = issued, issued
        else:
            times.before[number] = number - 1
        begun = both_issued = max(issued, receive.issued)
        if came > begun:
            begun = came
        transfer, leave = receive.end - begun, 0
        if receive.end - receive.begin < WAITED:  # it had arrived before the receiver began to wait
            transfer = min(transfer, link.transfer)
        elif transfer < least[both]:
            least[both] = max(0, transfer)
        if send.end - send.begin >= WAITED:
            times.bound[number] = sent >= receive.issued
            leave = sent - max(both_issued if times.bound[number] else issued, left)
        ahead = bisect_right(begins, receive.issued)
        behind = arrivals[ahead - 1] + link.offset - begun if ahead else 0
        found.append(_Measured(number, transfer, leave, behind, send.queue + receive.queue, link, both))
        came, left = receive.end, sent
    return found


def _on_their_way(ends: Sequence[tuple[Entry, Entry]], links: Links) -> dict[Way, tuple[list[int], list[int]]]:
    """When each message of a way began it, on the sender's clock, and when it arrived, on the receiver's."""
    found: dict[Way, tuple[list[int], list[int]]] = {}
    for send, receive in ends:
        way = receive.peer, send.peer
        link = links.get(way)
        if link is None:
            continue
        begins, arrivals = found.setdefault(way, ([], []))
        begins.append(max(send.issued, receive.issued - link.offset, *begins[-1:]))
        arrivals.append(receive.end)
    return found

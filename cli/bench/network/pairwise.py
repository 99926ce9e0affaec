"""Measures how fast pairs of ranks send to each other, in both directions. Disjoint pairs are measured at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from ....advisor.bench.network.pairs import Pair, judge, number_of_pairs, one_at_a_time, rounds
from .start import BenchError, first_line
from .world import World

AT_ONCE, ONE_AT_A_TIME, NONE = "at-once", "one-at-a-time", "none"
MODES = {AT_ONCE: rounds, ONE_AT_A_TIME: one_at_a_time}
Rates = dict[Pair, tuple[float, float]]
_MOST_AGAIN = 8
_FIRST_MESSAGE, _LARGEST_MESSAGE, _MOST_MESSAGES = 64 << 10, 4 << 20, 64
_GROWTH, _LEAST_GROWTH = 4.0, 1.25
_AIM = 0.6
"""The block that counts should take this share of the time of a direction."""


@dataclass
class Pairs:
    """The results. Members are given by their index in the list of members."""

    rates: Rates = field(default_factory=dict)
    """Pair -> bytes/s from the first to the second member, and back."""
    rounds: int = 0
    again: int = 0
    """The number of pairs that seemed slow and were measured again, alone. The better result counts."""
    seconds: float = 0.0
    of: int = 0
    """The number of all pairs."""


def measure(
    world: World,
    members: Sequence[int],
    mode: str,
    direction_seconds: float,
    most_seconds: float,
    say: Callable[[str, str], None],
) -> Pairs:
    """Measures the pairs of these ranks until all are measured or ``most_seconds`` are over. Raises BenchError.

    Each direction takes about ``direction_seconds``. In a round, each member is in at most one pair. So if the time is
    over early, all members have been measured with about the same number of others.
    """
    found = Pairs(of=number_of_pairs(len(members)))
    begun = time.monotonic()
    for pairs in MODES[mode](len(members)):
        if found.rounds and world.largest(time.monotonic() - begun) > most_seconds:
            break
        say("pairs", f"{len(found.rates):,} of {found.of:,} measured")
        found.rates.update(_round(world, members, pairs, direction_seconds))
        found.rounds += 1
    for pair in _suspects(found.rates):
        say("slow pairs once more", "")
        ((_, again),) = _round(world, members, [pair], direction_seconds).items()
        there, back = found.rates[pair]
        found.rates[pair] = max(there, again[0]), max(back, again[1])
        found.again += 1
    found.seconds = time.monotonic() - begun
    return found


def _suspects(rates: Rates) -> list[Pair]:
    """Pairs that seem slow, perhaps only because a machine was busy at that moment. All ranks find the same pairs."""
    verdict = judge({pair: min(both) for pair, both in rates.items()})
    if verdict is None:
        return []
    of_nodes = [pair for pair in rates if not verdict.nodes.keys().isdisjoint(pair)]
    return [*verdict.links, *of_nodes][:_MOST_AGAIN]


def _round(world: World, members: Sequence[int], pairs: Sequence[Pair], seconds: float) -> Rates:
    """Measures disjoint pairs at once. Raises BenchError."""
    place = members.index(world.rank) if world.rank in members else -1
    mine = next((pair for pair in pairs if place in pair), None)
    peer, sent = -1, 0.0
    try:
        world.barrier()
        if mine is not None:
            first, second = (members[number] for number in mine)
            peer = second if world.rank == first else first
            for sender in (first, second):
                if sender == world.rank:
                    sent = _send(world, peer, seconds)
                else:
                    _receive(world, peer)
        told = world.gather([sent])
    except RuntimeError as error:
        where = f"with rank {peer}" if mine is not None else "between other ranks"
        raise BenchError(f"sending {where}: {first_line(error)}") from error
    return {(one, other): (told[members[one]][0], told[members[other]][0]) for one, other in pairs}


def _send(world: World, peer: int, seconds: float) -> float:
    """Sends to a peer and returns the bytes/s, from the first byte to the answer that everything has arrived.

    Blocks of messages grow until one takes at least half of ``seconds``, because a short burst may be faster than the
    link.
    """
    size, count = _FIRST_MESSAGE, 1
    message = torch.zeros(_LARGEST_MESSAGE, dtype=torch.uint8, device=world.device)
    answer = torch.zeros(2, dtype=torch.int64, device=world.device)
    while True:
        order = torch.tensor([size, count], dtype=torch.int64, device=world.device)
        _exchange(world, [dist.P2POp(dist.isend, order, peer)])
        _exchange(world, [dist.P2POp(dist.irecv, answer, peer)])
        begun = time.perf_counter()
        _exchange(world, [dist.P2POp(dist.isend, message[:size], peer)] * count)
        _exchange(world, [dist.P2POp(dist.irecv, answer, peer)])
        took = time.perf_counter() - begun
        if took >= seconds / 2 or size * count >= _LARGEST_MESSAGE * _MOST_MESSAGES:
            _exchange(world, [dist.P2POp(dist.isend, torch.zeros_like(order), peer)])
            return size * count / took
        total = size * count * min(_GROWTH, max(_LEAST_GROWTH, _AIM * seconds / took))
        size = min(_LARGEST_MESSAGE, round(total))
        count = min(_MOST_MESSAGES, math.ceil(total / size))


def _receive(world: World, peer: int) -> None:
    """Receives what the peer sends with `_send`."""
    message = torch.zeros(_LARGEST_MESSAGE, dtype=torch.uint8, device=world.device)
    order = torch.zeros(2, dtype=torch.int64, device=world.device)
    while True:
        _exchange(world, [dist.P2POp(dist.irecv, order, peer)])
        size, count = map(int, order.tolist())
        if not count:
            return
        _exchange(world, [dist.P2POp(dist.isend, order, peer)])
        _exchange(world, [dist.P2POp(dist.irecv, message[:size], peer)] * count)
        _exchange(world, [dist.P2POp(dist.isend, order, peer)])


def _exchange(world: World, operations: list[dist.P2POp]) -> None:
    """Runs operations as a batch. Without a batch, NCCL would create a communicator for each pair."""
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    world.finish()

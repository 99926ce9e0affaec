"""Splits the waits of one group of ranks into network and straggler, a block of steps at a time. Pure functions.

In a collective, the last rank to arrive waits least, and its wait is the transfer. So, for each call,

    network = the minimum over the ranks of the group,   straggler = own wait - that minimum,

and the rank with the minimum was late. What made it late is its own time beyond the least of any rank. Members of a
group make their calls in the same order, so call i of a step is the same collective on all of them.

Each member writes a block of words (`pack`). Then the minimum of each word over all members is taken, and each member
compares the result with its own waits (`split`). The hooks take the minimum with an all-reduce. A report, which can
read all ledgers of a node, computes it. AMD's TraceLens compares collectives offline in the same way, by call and
group.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import add, sub
from typing import NamedTuple

from .causes import LATE_FAMILIES
from .layout import SLOTS

MOST_WIDTH = 512
"""The most words per step for its calls. In a step with more calls, neighbouring calls share a word."""
RANK_BITS = 20
RANK_MASK = (1 << RANK_BITS) - 1
NOTHING = (1 << 63) - 1
"""A word that never becomes the minimum."""

HEADER = 7  # first step, -first step, steps, -mean step time, -most calls, rank, -rank
_PER_STEP = 2 + len(LATE_FAMILIES) + SLOTS  # calls, -calls, own time per family, waits elsewhere per slot
US = 1000  # ns
LATE_STEP = 0.05
"""A rank counts as late in a step if its own time made it late by at least this share of the step."""
_STEP_SIZE = 64
_NETWORK = LATE_FAMILIES.index("network")
_UNATTRIBUTED = LATE_FAMILIES.index("unattributed")


class Message(NamedTuple):
    """One send or receive that this rank waited for. Times in ns of its CLOCK_MONOTONIC."""

    peer: int
    """The global rank at the other end; -1 if it is not known."""
    sent: bool
    issued: int
    end: int
    """The end of the wait for this message."""
    ns: int
    """The length of that wait."""
    queue: int = 0
    """The part of the wait in which this rank's own threads got no CPU."""


class StepWaits(NamedTuple):
    """The waits of one rank in one group during one step. Times in ns.

    ``own`` is the rank's own time per LATE_FAMILIES, and ``elsewhere`` its waits per slot. Both cover the time from the
    end of the rank's last wait in this group in an earlier step to the end of its last one in this step. So they
    contain everything that can have made the rank late in this group.
    """

    number: int
    """The number of the step in this process, from 1."""
    wall: int
    calls: Sequence[int]
    """The waits, in order."""
    own: Sequence[int] = ()
    elsewhere: Sequence[int] = ()
    peers: Sequence[int] = ()
    """For each wait, the rank at the other end, or -1; only in groups whose ranks send to each other."""
    messages: Sequence[Message] = ()
    """For each wait, the send or receive; only in groups whose ranks send to each other."""
    complete: bool = True
    """Whether each wait was seen and measured. Otherwise the calls of the step cannot be compared."""
    queues: Sequence[int] = ()
    """For each wait, the time in which this rank's own threads got no CPU; empty if that is not known."""

    @property
    def size(self) -> int:
        """The memory that this takes, as a count of numbers."""
        return _STEP_SIZE + len(self.calls) + 7 * len(self.messages)

    @property
    def total(self) -> int:
        """The sum of the waits, in ns."""
        return sum(self.calls)


@dataclass(slots=True)
class Settled:
    """How the waits of one rank in a block were split. Times in ns; lists per LATE_FAMILIES or per slot."""

    through: int
    """The number of the last step in the block."""
    step_ns: int
    """The mean step time of the slowest member."""
    most_calls: int
    """The largest number of calls in a step of any member."""
    network: int = 0
    straggler: int = 0
    pipeline: int = 0
    unsplit: int = 0
    queue: int = 0
    """The time in transfers in which a CPU rank's own threads got no CPU. It would be `network` otherwise. In a wait
    for a late rank, such a thread delays nobody, so that time stays `straggler`."""
    schedule: int = 0
    """Part of `pipeline`: the least that the schedule itself costs."""
    latency: int = 0
    """Part of `pipeline`: what transfers cost beyond the waits for this rank's own messages."""
    link: tuple[int, int] | None = None
    """The two ranks of the slowest link, if `latency` is known."""
    behind: dict[int, int] = field(default_factory=dict)
    """Late rank -> the part of `straggler` or `pipeline` that it caused."""
    late_own: list[int] = field(default_factory=lambda: [0] * len(LATE_FAMILIES))
    """How late this rank was through its own time, by family."""
    late_elsewhere: list[int] = field(default_factory=lambda: [0] * SLOTS)
    """How late this rank was through its waits in other groups, by slot."""
    late_steps: int = 0
    """Steps in which its own time made it late by at least LATE_STEP of the step."""
    late_by: dict[int, int] = field(default_factory=dict)
    """Rank -> by how much it was late; the same on all members."""

    @classmethod
    def empty(cls, result: Sequence[int], steps: Sequence[StepWaits]) -> Settled:
        return cls(steps[-1].number, -result[3], -result[4])

    def leave_unsplit(self, step: StepWaits) -> None:
        queue = min(sum(step.queues), step.total)
        self.queue += queue
        self.unsplit += step.total - queue


class BlockMismatch(Exception):
    """The minimum was taken over blocks that do not have the same steps."""


def words_of(length: int, width: int) -> int:
    """The number of words in a block of ``length`` steps, with ``width`` words for the calls of each step."""
    return HEADER + length * (_PER_STEP + 2 * width)


def width_for(most_calls: int) -> int:
    """The words per step for steps with up to ``most_calls`` calls: a power of two, at most MOST_WIDTH."""
    return min(MOST_WIDTH, 1 << max(0, most_calls - 1).bit_length())


def pack(buffer: array[int], rank: int, steps: Sequence[StepWaits], length: int, width: int) -> None:
    """Writes a block to the start of the buffer, so that the minimum over all members can be taken of it.

    At the end of a run there may be fewer steps than ``length``, but at least one.
    """
    words = header(rank, steps)
    for step in steps:
        calls = step.calls
        # For an incomplete step: a count that no other member has, so that nobody compares the calls of this step.
        count = len(calls) if step.complete else -1 - rank
        words += (count, -count, *step.own, *step.elsewhere)
        waits = [wait // US for wait in _runs(calls, width)]
        padding = [NOTHING] * (width - len(waits))
        words += [wait << RANK_BITS | rank for wait in waits]
        words += padding
        words += [-wait for wait in waits]
        words += padding
    words += [NOTHING] * (words_of(length, width) - len(words))
    buffer[: len(words)] = array("q", words)


def split(
    result: Sequence[int],
    rank: int,
    members: Sequence[int],
    steps: Sequence[StepWaits],
    width: int,
    *,
    accelerator: bool = False,
) -> Settled:
    """Splits this rank's waits, given the minimum over all members. Raises BlockMismatch.

    ``members`` are the ranks of the group, in ascending order.

    Lateness that the rank's own time does not explain counts as `network` on a CPU rank: the previous collective ended
    later there than on the others, for example because of retransmissions. On an accelerator it is `unattributed`: the
    host records the events around a wait, and may have been late itself, so the rest may be an error of measurement.
    """
    check(result, rank, members, steps)
    settled = Settled.empty(result, steps)
    behind, late_by = settled.behind, settled.late_by
    rest = _UNATTRIBUTED if accelerator else _NETWORK
    network = straggler = queued = 0
    for index, step in enumerate(steps):
        calls = step.calls
        at = HEADER + index * (_PER_STEP + 2 * width)
        if index >= result[2] or not step.complete or not result[at] == -result[at + 1] == len(calls):
            settled.leave_unsplit(step)
            continue
        late = 0
        waits = _runs(calls, width)
        queues = _runs(step.queues, width) if step.queues else repeat(0)
        keys = at + _PER_STEP
        longest = result[keys + width : keys + width + len(waits)]
        for wait, queue, key, most in zip(waits, queues, result[keys : keys + len(waits)], longest, strict=False):
            least = (key >> RANK_BITS) * US
            transfer = wait if wait - least < US else least  # the words are in whole µs
            network += transfer
            if queue:
                queued += queue if queue < transfer else transfer
            last = key & RANK_MASK
            if transfer < wait:
                straggler += wait - least
                behind[last] = behind.get(last, 0) + wait - least
            lateness = -most * US - least
            if lateness:
                late_by[last] = late_by.get(last, 0) + lateness
                if last == rank:
                    late += lateness
        if late:
            add_lateness(settled, late, step, result[at + 2 : keys], rest)
    settled.network += network - queued
    settled.queue += queued
    settled.straggler += straggler
    return settled


def header(rank: int, steps: Sequence[StepWaits]) -> list[int]:
    """The first words of a block, by which `check` recognizes its steps."""
    first = steps[0].number
    most = max(len(step.calls) for step in steps)
    return [first, -first, len(steps), -(sum(step.wall for step in steps) // len(steps)), -most, rank, -rank]


def check(result: Sequence[int], rank: int, members: Sequence[int], steps: Sequence[StepWaits]) -> None:
    """Raises BlockMismatch if the minimum was not taken over the same steps of every member."""
    first = steps[0].number
    if (result[0], result[1], result[5], result[6]) != (first, -first, members[0], -members[-1]):
        raise BlockMismatch(f"step {first} of rank {rank}: the block is {list(result[:HEADER])}")


def add_lateness(settled: Settled, late_ns: int, step: StepWaits, least: Sequence[int], rest: int) -> None:
    """Adds what made this rank late in a step, as `lateness_of` finds it."""
    excess = list(map(sub, (*step.own, *step.elsewhere), least))
    most = max(excess)
    if most >= late_ns:  # usually: the largest one explains everything
        reason = excess.index(most)
        if reason < len(LATE_FAMILIES):
            settled.late_own[reason] += late_ns
            settled.late_steps += late_ns >= LATE_STEP * step.wall
        else:
            settled.late_elsewhere[reason - len(LATE_FAMILIES)] += late_ns
        return
    own, elsewhere = lateness_of(late_ns, step, least, rest)
    settled.late_steps += sum(own) >= LATE_STEP * step.wall
    settled.late_own = list(map(add, settled.late_own, own))
    settled.late_elsewhere = list(map(add, settled.late_elsewhere, elsewhere))


def lateness_of(late_ns: int, step: StepWaits, least: Sequence[int], rest: int) -> tuple[list[int], list[int]]:
    """What made a rank ``late_ns`` late: its excess over the minimum of all members -> (per family, per slot).

    Each minimum may come from another member. So every rank has some excess in most families, and the excesses may add
    up to more than the lateness. Then the largest ones count first, because they are what made the rank late. Lateness
    that the excesses do not explain goes to the family ``rest``.
    """
    families = len(LATE_FAMILIES)
    excess = [max(0, mine - other) for mine, other in zip((*step.own, *step.elsewhere), least, strict=True)]
    left = late_ns
    if sum(excess) > late_ns:
        for index in sorted(range(len(excess)), key=excess.__getitem__, reverse=True):
            excess[index] = min(excess[index], left)
            left -= excess[index]
    else:
        excess[rest] += late_ns - sum(excess)
    return excess[:families], excess[families:]


def _runs(calls: Sequence[int], width: int) -> Sequence[int]:
    """The calls. If there are more than ``width``, the sums of ``width`` contiguous runs of them."""
    count = len(calls)
    if count <= width:
        return calls
    ends = [count * (run + 1) // width for run in range(width)]
    return [sum(calls[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

"""How the waits of one group of ranks are told apart: the arithmetic of a block of steps. Pure functions.

In one collective the last rank to arrive waits least, and its wait is the transfer. So, call by call,

    network = the minimum over the ranks of the group,   straggler = own wait - that minimum,

and the rank with the minimum was late, by its own time in excess of the least of any rank. Members of a group make
their calls in the same order, so that call i of a step is the same collective on all of them.

Each member writes a block of words (`pack`), the minimum of each word over the members is taken, and each member reads
the result beside its own waits (`split`). The hooks take the minimum with an all-reduce; a report, which can read all
ledgers of a node, takes it itself. AMD's TraceLens compares collectives offline in the same way, per call and group.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .causes import LATE_FAMILIES
from .layout import SLOTS

MOST_WIDTH = 512
"""Words that a step may have for its calls; of more calls, neighbours share a word."""
RANK_BITS = 20
RANK_MASK = (1 << RANK_BITS) - 1
NOTHING = (1 << 63) - 1
"""A word that is never the least."""

HEADER = 7  # first step, -first step, steps, -mean step time, -most calls, rank, -rank
_PER_STEP = 2 + len(LATE_FAMILIES) + SLOTS  # calls, -calls, own time per family, waits elsewhere per slot
US = 1000  # ns
LATE_STEP = 0.05
"""A step counts as late if the rank's own time made it late by this share of the step."""
_STEP_SIZE = 64
_NETWORK = LATE_FAMILIES.index("network")
_UNATTRIBUTED = LATE_FAMILIES.index("unattributed")


class Message(NamedTuple):
    """One send or receive that this rank waited for. Times in ns of its CLOCK_MONOTONIC."""

    peer: int
    """The global rank at the other end; -1 where it is not known."""
    sent: bool
    issued: int
    end: int
    """When the wait for it ended."""
    ns: int
    """How long that wait was."""
    queue: int = 0
    """For how much of it this rank's own threads got no CPU."""


class StepWaits(NamedTuple):
    """The waits of one rank in one group during one step. Times in ns.

    ``own`` is the rank's own time per LATE_FAMILIES, and ``elsewhere`` its waits per slot, from the end of the last
    wait here in an earlier step to the end of the last one in this step: whatever made the rank late here lies there.
    """

    number: int
    """The step's number in this process, from 1."""
    wall: int
    calls: Sequence[int]
    """Each wait, in order."""
    own: Sequence[int] = ()
    elsewhere: Sequence[int] = ()
    peers: Sequence[int] = ()
    """Of each wait the rank at its other end; -1 where there is none."""
    messages: Sequence[Message] = ()
    """Of each wait the send or receive, where ranks meet in pairs."""
    complete: bool = True
    """Whether each wait was seen and measured. The calls of the step cannot be compared otherwise."""
    queues: Sequence[int] = ()
    """Of each wait, for how long this rank's own threads got no CPU; empty where that is not known."""

    @property
    def size(self) -> int:
        """What it takes in memory, in numbers."""
        return _STEP_SIZE + len(self.peers) + 7 * len(self.messages)

    @property
    def total(self) -> int:
        """ns"""
        return sum(self.calls)


@dataclass(slots=True)
class Settled:
    """What the waits of a block turned out to be for one rank. Times in ns; lists per LATE_FAMILIES or per slot."""

    through: int
    """The number of the last step in the block."""
    step_ns: int
    """The mean step time of the slowest member."""
    most_calls: int
    """The most calls that a step of any member had."""
    network: int = 0
    straggler: int = 0
    pipeline: int = 0
    unsplit: int = 0
    queue: int = 0
    """Transfers of a CPU rank in which its own threads got no CPU. They would be `network` otherwise. (While a rank has
    not come, it delays nobody that a thread queues.)"""
    schedule: int = 0
    """Of `pipeline`: what the schedule itself costs, at least."""
    latency: int = 0
    """Of `pipeline`: what transfers cost beyond the waits for this rank's own messages."""
    link: tuple[int, int] | None = None
    """The two ranks of the slowest link, where `latency` is known."""
    behind: dict[int, int] = field(default_factory=dict)
    """Rank that was late -> the part of `straggler` or `pipeline` that is its doing."""
    late_own: list[int] = field(default_factory=lambda: [0] * len(LATE_FAMILIES))
    """By what this rank made the others wait: its own time."""
    late_elsewhere: list[int] = field(default_factory=lambda: [0] * SLOTS)
    """The same: its waits in other groups."""
    late_steps: int = 0
    """Steps in which its own time made it late by more than a trifle, LATE_STEP."""
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
    """The minimum was not taken of the same steps of every member."""


def words_of(length: int, width: int) -> int:
    """How many words a block of ``length`` steps has, with up to ``width`` words for the calls of each."""
    return HEADER + length * (_PER_STEP + 2 * width)


def width_for(most_calls: int) -> int:
    """The words per step that serve steps with up to so many calls: a power of two."""
    return min(MOST_WIDTH, 1 << max(0, most_calls - 1).bit_length())


def pack(buffer: array[int], rank: int, steps: Sequence[StepWaits], length: int, width: int) -> None:
    """Writes a block, to the start of the buffer, as what a minimum over the members is taken of.

    There may be fewer steps than ``length``, at the end of a run, but not none.
    """
    words = header(rank, steps)
    for step in steps:
        calls = step.calls
        # A count that no other member has: the calls of this step cannot be compared.
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
    """Reads the minimum over all members beside this rank's own steps. Raises BlockMismatch.

    ``members`` are the ranks of the group, in ascending order.

    Lateness that no time of the rank's own explains is the network's on a CPU rank: the collective before ended later
    there than on the others (retransmissions do that). On an accelerator it stays `unattributed`: the events that
    bracket a wait are recorded by a host that may itself have been late, so the rest may be ours.
    """
    check(result, rank, members, steps)
    settled = Settled.empty(result, steps)
    rest = _UNATTRIBUTED if accelerator else _NETWORK
    for index, step in enumerate(steps):
        calls = step.calls
        at = HEADER + index * (_PER_STEP + 2 * width)
        if index >= result[2] or not step.complete or not result[at] == -result[at + 1] == len(calls):
            settled.leave_unsplit(step)
            continue
        late = 0
        queues = _runs(step.queues, width) if step.queues else [0] * min(len(calls), width)
        keys = at + _PER_STEP
        for run, wait in enumerate(_runs(calls, width)):
            key = result[keys + run]
            least, last = (key >> RANK_BITS) * US, key & RANK_MASK
            lateness = -result[keys + width + run] * US - least
            transfer = wait if wait - least < US else least  # the words are whole µs
            queue = min(queues[run], transfer)
            settled.queue += queue
            settled.network += transfer - queue
            if transfer < wait:
                settled.straggler += wait - least
                settled.behind[last] = settled.behind.get(last, 0) + wait - least
            if lateness:
                settled.late_by[last] = settled.late_by.get(last, 0) + lateness
                if last == rank:
                    late += lateness
        if late:
            own, elsewhere = lateness_of(late, step, result[at + 2 : at + _PER_STEP], rest)
            settled.late_steps += sum(own) >= LATE_STEP * step.wall
            settled.late_own = [a + b for a, b in zip(settled.late_own, own, strict=True)]
            settled.late_elsewhere = [a + b for a, b in zip(settled.late_elsewhere, elsewhere, strict=True)]
    return settled


def header(rank: int, steps: Sequence[StepWaits]) -> list[int]:
    """The words by which a block is known."""
    first = steps[0].number
    most = max(len(step.calls) for step in steps)
    return [first, -first, len(steps), -(sum(step.wall for step in steps) // len(steps)), -most, rank, -rank]


def check(result: Sequence[int], rank: int, members: Sequence[int], steps: Sequence[StepWaits]) -> None:
    """Raises BlockMismatch where the minimum is not one of the same steps of every member."""
    first = steps[0].number
    if (result[0], result[1], result[5], result[6]) != (first, -first, members[0], -members[-1]):
        raise BlockMismatch(f"step {first} of rank {rank}: the block is {list(result[:HEADER])}")


def lateness_of(late_ns: int, step: StepWaits, least: Sequence[int], rest: int) -> tuple[list[int], list[int]]:
    """By what a rank was ``late_ns`` late: its excess over the least of any member -> (per family, per slot).

    Each minimum may be of another member, so that every rank has some excess in most families, and excesses may add up
    to more than the lateness. The largest ones are then believed first: what made the rank late stands out.
    What they do not explain goes to the family ``rest``.
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
    """The calls, or, of more than ``width``, the sums of as many contiguous runs of them."""
    count = len(calls)
    if count <= width:
        return calls
    ends = [count * (run + 1) // width for run in range(width)]
    return [sum(calls[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

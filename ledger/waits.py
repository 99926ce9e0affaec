"""Splits the waits of one group of ranks into network and straggler, a block of steps at a time. Pure functions.

In a collective, the last rank to arrive waits least, and its wait is the transfer. So, for each call,

    network = the minimum over the ranks of the group,   straggler = own wait - that minimum,

and the rank with the minimum was late. What made it late is its own time beyond the least of any rank. Members of a
group make their calls in the same order, so call i of a step is the same collective on all of them.

Often several ranks hide a collective completely, and their waits differ only by the clock's error. So all ranks within
CLOCK_ERROR of the minimum may have been late. The late one is the rank among them that spent most time in the step
outside this group. If several ranks spent about the same time, a different one of them is chosen in each step.

On CPU ranks, a transfer also takes long while a thread of a member gets no CPU. Each rank knows that of its own threads
only. So two ranks say for which share of their waits their threads got no CPU: the last one, whose whole wait is the
transfer, and the first one, which waited longest.

Each member writes a block of words (`pack`). Then the minimum of each word over all members is taken, and each member
compares the result with its own waits (`split`). The hooks take the minimum with an all-reduce. A report, which can
read all ledgers of a node, computes it. AMD's TraceLens compares collectives offline in the same way, by call and
group.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, repeat
from math import log2
from operator import sub
from typing import NamedTuple

from .causes import LATE_FAMILIES
from .layout import SLOTS

MOST_WIDTH = 512
"""The most words per step for its calls. In a step with more calls, neighbouring calls share a word."""
RANK_BITS = 20
RANK_MASK = (1 << RANK_BITS) - 1
_SHARE_BITS = 6
_WHOLE = (1 << _SHARE_BITS) - 1
CLOCK_ERROR = 8
"""µs. Ranks that wait at most this much longer than the minimum count as equally late. The waits are compared in units
of twice this time. They are compared twice, the second time with the units shifted by half, because two waits that
differ by less than CLOCK_ERROR may be in two units. If the minimum is in the first half of a unit, that unit has them
all; if it is in the second half, the shifted one has."""
_UNIT_BITS = 4
assert 1 << _UNIT_BITS == 2 * CLOCK_ERROR
_LEVEL_BITS = 10
_MOST_LEVEL = (1 << _LEVEL_BITS) - 1
_LEVELS = 32
"""Times that differ by a factor of less than about 2 ** (1 / _LEVELS), which is 2 %, have the same level."""
_LEVEL_FROM = 16
"""log2 of the ns below which all times have level 0. The highest level begins at 77 hours."""
_DITHER = 0.6180339887
"""Shifts the bounds between levels from step to step. So a small difference counts in a small part of the steps."""
_RANKED_AT = _LEVEL_BITS + RANK_BITS
_RANKED = (1 << _RANKED_AT) - 1
_IN_SECOND_HALF = CLOCK_ERROR << _SHARE_BITS
_LONGEST = (1 << 63 - _RANKED_AT + _UNIT_BITS) - 2 * CLOCK_ERROR
"""µs, which is 38 hours. A step with a longer wait, for example of a job that stood still for days, stays unsplit."""
NOTHING = (1 << 63) - 1
"""A word that never becomes the minimum."""

HEADER = 7  # first step, -first step, steps, -mean step time, -most calls, rank, -rank
_FAMILIES = len(LATE_FAMILIES)
_SPENT = _FAMILIES + SLOTS
_NO_CALL = -1
US = 1000  # ns
LATE_STEP = 0.05
"""A rank counts as late in a step if its own time made it late by at least this share of the step."""
_STEP_SIZE = 64
_ENOUGH = 4
"""The shortest of this many transfers is what the link needs."""
_NETWORK = LATE_FAMILIES.index("network")
_UNATTRIBUTED = LATE_FAMILIES.index("unattributed")
_CPU = LATE_FAMILIES.index("cpu")


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
    """The least that the schedule of a pipeline costs. The part that is not in `pipeline` is waited in collectives."""
    latency: int = 0
    """Part of `pipeline`: what transfers cost beyond the waits for this rank's own messages."""
    link: tuple[int, int] | None = None
    """The two ranks of the slowest link, if `latency` is known."""
    behind: dict[int, int] = field(default_factory=dict)
    """Late rank -> the part of `straggler` or `pipeline` that it caused."""
    late: list[int] = field(default_factory=lambda: [0] * _SPENT)
    """How late this rank was: through its own time, by family, and then through its waits in other groups, by slot."""
    late_steps: int = 0
    """Steps in which its own time made it late by at least LATE_STEP of the step."""
    late_by: dict[int, int] = field(default_factory=dict)
    """Rank -> by how much it was late; the same on all members."""
    steps: int = 1
    """The number of steps in the block."""

    @property
    def late_own(self) -> list[int]:
        """How late this rank was through its own time, by family."""
        return self.late[:_FAMILIES]

    @property
    def late_elsewhere(self) -> list[int]:
        """How late this rank was through its waits in other groups, by slot."""
        return self.late[_FAMILIES:]

    @classmethod
    def empty(cls, result: Sequence[int], steps: Sequence[StepWaits]) -> Settled:
        return cls(steps[-1].number, -result[3], -result[4], steps=len(steps))

    @property
    def bubble(self) -> int:
        """Part of `pipeline`: the waits for other stages that no late stage and no transfer has caused."""
        return max(0, self.pipeline - self.latency - max(0, sum(self.behind.values()) - self.straggler))

    def leave_unsplit(self, step: StepWaits) -> None:
        queue = min(sum(step.queues), step.total)
        self.queue += queue
        self.unsplit += step.total - queue


def size_of(steps: Sequence[StepWaits]) -> int:
    """The memory that steps take, as a count of numbers."""
    return sum([_STEP_SIZE + len(step.calls) + 7 * len(step.messages) for step in steps])


class BlockMismatch(Exception):
    """The minimum was taken over blocks that do not have the same steps."""


def words_of(length: int, width: int) -> int:
    """The number of words in a block of ``length`` steps, with ``width`` words for the calls of each step."""
    return _Places.of(length, width).end


class _Places(NamedTuple):
    """Where the parts of a block begin. Each part has its words for all steps, one step after the other."""

    counts: int
    """Calls of each step."""
    less_counts: int
    """The same, negative."""
    spent: int
    """Own time per family, and waits elsewhere per slot."""
    waits: int
    """The wait of each call in µs, with the share of it in which the rank's own threads got no CPU."""
    less_waits: int
    """The same, negative."""
    late: int
    """Who was late in each call: the wait in units of CLOCK_ERROR, and `_rank_word`."""
    late_shifted: int
    """The same, with shifted units."""
    end: int

    @classmethod
    def of(cls, length: int, width: int) -> _Places:
        sizes = (length, length, length * _SPENT, *[length * width] * 4)
        return cls(*accumulate(sizes, initial=HEADER))


def width_for(most_calls: int) -> int:
    """The words per step for steps with up to ``most_calls`` calls: at most MOST_WIDTH."""
    return min(MOST_WIDTH, max(1, most_calls))


def pack(buffer: array[int], rank: int, steps: Sequence[StepWaits], length: int, width: int) -> None:
    """Writes a block to the start of the buffer, so that the minimum over all members can be taken of it.

    At the end of a run there may be fewer steps than ``length``, but at least one.
    """
    places = _Places.of(length, width)
    counts: list[int] = []
    spent: list[int] = []
    waits: list[int] = []
    for step in steps:
        calls = step.calls
        # For an incomplete step: a count that no other member has, so that nobody compares the calls of this step.
        counts.append(len(calls) if step.complete else -1 - rank)
        spent += step.own
        spent += step.elsewhere
        if len(calls) == width:
            waits += calls
        else:
            runs = _runs(calls, width)
            waits += runs
            waits += [_NO_CALL] * (width - len(runs))
    if max(waits, default=0) > _LONGEST * US:
        counts = [
            -1 - rank if max(step.calls, default=0) > _LONGEST * US else count
            for step, count in zip(steps, counts, strict=True)
        ]
        waits = [min(wait, _LONGEST * US) for wait in waits]
    words = header(rank, steps)
    words += counts
    words += [NOTHING] * (places.less_counts - len(words))
    words += [-count for count in counts]
    words += [NOTHING] * (places.spent - len(words))
    words += spent
    words += [NOTHING] * (places.waits - len(words))
    queued = any(any(step.queues) for step in steps)
    shares = [share for step in steps for share in _shares(step, width)] if queued else repeat(0)
    micros = [wait // US for wait in waits]
    both = [
        micro << _SHARE_BITS | share if micro >= 0 else NOTHING for micro, share in zip(micros, shares, strict=False)
    ]
    words += both
    words += [NOTHING] * (places.less_waits - len(words))
    words += [-word if word != NOTHING else NOTHING for word in both]
    lows = [_rank_word(rank, step) for step in steps]
    for place, shift in ((places.late, 0), (places.late_shifted, CLOCK_ERROR)):
        words += [NOTHING] * (place - len(words))
        for at, low in enumerate(lows):
            words += [
                micro + shift >> _UNIT_BITS << _RANKED_AT | low if micro >= 0 else NOTHING
                for micro in micros[at * width : (at + 1) * width]
            ]
    words += [NOTHING] * (places.end - len(words))
    buffer[: len(words)] = array("q", words)


def _rank_word(rank: int, step: StepWaits) -> int:
    """The level of the time that a rank spent in a step outside the group, inverted, and then the rank.

    The rank is mixed with the number of the step, so that ranks of the same level take turns at being the minimum.
    """
    spent = max(sum(step.own) + sum(step.elsewhere), 1 << _LEVEL_FROM)
    level = int(_LEVELS * (log2(spent) - _LEVEL_FROM) + step.number * _DITHER % 1)
    return max(0, _MOST_LEVEL - level) << RANK_BITS | (rank ^ step.number) & RANK_MASK


def split(
    result: Sequence[int],
    rank: int,
    members: Sequence[int],
    steps: Sequence[StepWaits],
    length: int,
    width: int,
    *,
    accelerator: bool = False,
) -> Settled:
    """Splits this rank's waits, given the minimum over all members. Raises BlockMismatch.

    ``members`` are the ranks of the group, in ascending order. ``length`` and ``width`` are those of `pack`.

    Lateness that the rank's own time does not explain counts as `network` on a CPU rank: the previous collective ended
    later there than on the others, for example because of retransmissions. On an accelerator it is `unattributed`: the
    host records the events around a wait, and may have been late itself, so the rest may be an error of measurement.
    """
    check(result, rank, members, steps)
    settled = Settled.empty(result, steps)
    behind, late_by = settled.behind, settled.late_by
    network = straggler = queued = 0
    late: dict[int, int] = {}  # index of a step -> by how much this rank was late in it, ns
    tied: dict[int, int] = {}  # the same, where another rank was chosen among those that were as late
    places = _Places.of(length, width)
    lows = [_rank_word(rank, step) for step in steps]
    for index, wait, queue, key, most, one, other, floor in _compared(result, places, steps, width, settled):
        least = (key >> _SHARE_BITS) * US
        who = (other if key & _IN_SECOND_HALF else one) & _RANKED
        last = (who ^ steps[index].number) & RANK_MASK
        # The words are in whole µs, and the last rank waits only for the transfer.
        transfer = wait if wait - least < US or last == rank else least
        network += transfer
        share, longest = key & _WHOLE, -most
        if queue or share or longest & _WHOLE:
            alone = least == (longest >> _SHARE_BITS) * US  # both words may come from one rank
            either = max(share, longest & _WHOLE) * _WHOLE if alone else _either(share, longest & _WHOLE)
            most_queued = min(transfer, max(queue, transfer * either // (_WHOLE * _WHOLE)))
            queued += most_queued * (transfer - floor) // transfer if floor < transfer else 0
        if transfer < wait:
            straggler += wait - least
            behind[last] = behind.get(last, 0) + wait - least
        lateness = (longest >> _SHARE_BITS) * US - least
        if lateness:
            late_by[last] = late_by.get(last, 0) + lateness
            if last == rank:
                late[index] = late.get(index, 0) + lateness
            elif wait - least < CLOCK_ERROR * US and who >> RANK_BITS == lows[index] >> RANK_BITS:
                tied[index] = tied.get(index, 0) + lateness
    rest = _UNATTRIBUTED if accelerator else _NETWORK
    for index in {**late, **tied}:
        at = places.spent + index * _SPENT
        least = result[at : at + _SPENT]
        add_lateness(settled, late.get(index, 0), steps[index], least, rest, tied.get(index, 0))
    settled.network += network - queued
    settled.queue += queued
    settled.straggler += straggler
    return settled


def _compared(
    result: Sequence[int], places: _Places, steps: Sequence[StepWaits], width: int, settled: Settled
) -> Iterable[tuple[int, ...]]:
    """For each call of the steps that can be compared: index of the step, wait, queue, its words of the result, floor.

    The floor is the shortest transfer of the same call in any step, in ns; 0 if it is not known. A link that needs this
    time is busy meanwhile. While threads get no CPU, data on a slow link continues to arrive, so this does not make the
    transfer longer. The waits of all other steps are left unsplit.
    """
    count = len(steps)
    counts = [len(step.calls) if step.complete else -1 for step in steps]
    others = result[places.counts : places.counts + count]
    less = result[places.less_counts : places.less_counts + count]
    keys, most = result[places.waits : places.less_waits], result[places.less_waits : places.late]
    late, shifted = result[places.late : places.late_shifted], result[places.late_shifted : places.end]
    if count <= result[2] and counts.count(width) == others.count(width) == less.count(-width) == count:
        # Usually: all steps have the same calls on all members.
        waits = chain.from_iterable([step.calls for step in steps])
        queues = chain.from_iterable([step.queues or (0,) * width for step in steps])
        indices = [index for index in range(count) for _ in range(width)]
        end = count * width
        floors = [(min(keys[call:end:width]) >> _SHARE_BITS) * US if count >= _ENOUGH else 0 for call in range(width)]
        return zip(indices, waits, queues, keys, most, late, shifted, floors * count, strict=False)
    found: list[Iterable[tuple[int, ...]]] = []
    for index, step in enumerate(steps):
        if index >= result[2] or not counts[index] == others[index] == -less[index]:
            settled.leave_unsplit(step)
            continue
        waits, at = _runs(step.calls, width), index * width
        queues = _runs(step.queues, width) if step.queues else repeat(0)
        words = [part[at : at + width] for part in (keys, most, late, shifted)]
        found.append(zip(repeat(index), waits, queues, *words, repeat(0), strict=False))
    return chain.from_iterable(found)


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


def add_lateness(
    settled: Settled, late_ns: int, step: StepWaits, least: Sequence[int], rest: int, tied_ns: int = 0
) -> None:
    """Adds what made this rank ``late_ns`` late in a step. ``least`` is the minimum of all members.

    ``tied_ns``: how late it was in calls for which another rank was chosen among those that were as late. In this step
    it was late all the same.
    """
    reasons, own = _reasons(late_ns, step, least, rest)
    for index, ns in reasons:
        settled.late[index] += ns
    if tied_ns:
        _, own = _reasons(late_ns + tied_ns, step, least, rest)
    settled.late_steps += own >= LATE_STEP * step.wall


def _reasons(late_ns: int, step: StepWaits, least: Sequence[int], rest: int) -> tuple[list[tuple[int, int]], int]:
    """(what made a rank late, by index of `Settled.late`, and for how long; how much of it was its own time).

    Each minimum may come from another member. So every rank has some excess in most families, and the excesses may add
    up to more than the lateness. The largest ones count first, because they are what made the rank late. If they do not
    explain all of it, a collective ended later here than elsewhere. What is left goes to `cpu` for the share of the
    rank's waits in which its own threads got no CPU, and to the family ``rest`` otherwise.
    """
    excesses = [(ns, -index) for index, ns in enumerate(map(sub, (*step.own, *step.elsewhere), least)) if ns > 0]
    excesses.sort(reverse=True)
    found, left, own = [], late_ns, 0
    for excess, index in excesses:
        excess = min(excess, left)
        found.append((-index, excess))
        if -index < _FAMILIES:
            own += excess
        left -= excess
        if not left:
            return found, own
    queued = min(left, left * sum(step.queues) // max(1, step.total))
    return [*found, (_CPU, queued), (rest, left - queued)], own + left


def _share(queue: int, wait: int) -> int:
    """The share of a wait in units of 1 / _WHOLE, rounded down."""
    return min(_WHOLE, queue * _WHOLE // wait) if wait > 0 else 0


def _shares(step: StepWaits, width: int) -> list[int]:
    """For each word of a step, the share of the wait in which this rank's own threads got no CPU."""
    shares = [*map(_share, _runs(step.queues, width), _runs(step.calls, width))]
    return shares + [0] * (width - len(shares))


def _either(last: int, first: int) -> int:
    """The share of a transfer in which threads of either of two ranks get no CPU, in units of 1 / _WHOLE².

    The threads of two ranks wake each other over the network, like those of one rank (`meters.collective.in_line`), so
    this assumes that their queues are independent.
    """
    return (last + first) * _WHOLE - last * first


def _runs(calls: Sequence[int], width: int) -> Sequence[int]:
    """The calls. If there are more than ``width``, the sums of ``width`` contiguous runs of them."""
    count = len(calls)
    if count <= width:
        return calls
    ends = [count * (run + 1) // width for run in range(width)]
    return [sum(calls[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

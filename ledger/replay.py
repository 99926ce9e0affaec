"""What transfers cost a pipeline beyond the waits for them: replays a step with and without transfers. Pure functions.

A slow link between two stages delays every round trip through it, and all stages wait longer. To each stage, these look
like waits for other stages. How much of them the link causes is found by simulating the step without transfers.

In each block, each stage publishes the sequences of some steps: which messages it sent and received, when each was
issued, and when the wait for it began and ended, on its own clock (`sequence_words`). From all sequences, every stage
computes the same result (`replayed`) under these rules:

* Between two waits, a stage spends the time that was measured there.
* A message is on its way when both of its ends were issued and the one before it on the link has arrived. It takes the
  time that was measured, within limits (ledger/transit.py). The end of a send follows the same rule.
* Without transfers, a message arrives at once, except for the time in which its two ranks got no CPU for it
  (`messages.queued`).

Each step is replayed until it repeats itself, because the end of a step is the start of the next one. With transfers,
the replayed waits must be NEAR the measured ones. What stages wait less without transfers is what transfers cost in a
step. A send is assumed to end only after its receive is issued, unless the clocks show otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .messages import Link
from .transit import Entry, Times, times_of
from .waits import NOTHING, US, Message, StepWaits

MOST_MESSAGES = 512
"""The most messages, sent and received, that all stages together publish of a block. A pipeline with more in one step
is not replayed. This limits the cost of replays on a training thread: about 10 µs per message, once per block."""
MOST_STEPS = 4
"""The most steps of a block that are replayed. In 13 runs of four ranks with a slow link, of three blocks each, the
share of `network` was off by 1.5 points with one step, and by 1.2 with four, compared with a replay of all steps. With
one, a step that another program disturbed stands for all."""
FIRST_CAPACITY = 32
"""Messages that a stage may publish in the first block."""
NEAR = 0.25
"""How much the replayed waits may differ from the measured ones, as a share of them. In steps of four real ranks with a
slow link, slow reads or slow compute they differed by 0.01 to 0.15; on overloaded cores by up to 0.36."""
_ROUNDS = 4
"""The most replays of a step. It usually repeats itself in the second or third."""
_HEAD = 4  # messages, base, wall, waits in collectives of the whole pipeline
_PER_MESSAGE = 2  # issued << 32 | begin, both relative to the base; wait << 35 | queue << 7 | stage << 1 | sent
_WAIT_BITS = 28
_AT_BITS = 31
_SEND, _RECEIVE, _AFTER_SEND, _AFTER_RECEIVE = range(4)


class Replayed(NamedTuple):
    """The result of a replay."""

    cost: tuple[int, ...]
    """For each stage, how much less it would have waited in a step without transfers, ns. The mean of the steps whose
    replay is near the measured waits."""
    link: tuple[int, int]
    """The two ranks of the link whose transfers took longest."""


class _Stage(NamedTuple):
    entries: list[Entry]
    wall: int
    together: int


_Op = tuple[int, int, int]
"""(own time before the operation in µs, operation, number of the message)."""


class _Plan(NamedTuple):
    """A step of all stages. The first four fields have an entry per stage."""

    programs: list[list[_Op]]
    begins: list[int]
    """When the stage began the step, on the clock of the first stage."""
    rests: list[int]
    """Own time from the stage's last wait of the step to the start of the next step's sequence."""
    waited: list[int]
    """The measured waits of the stage."""
    together: bool
    """Whether the stages meet in a collective between two steps."""
    times: Times
    """How long each message is on its way."""


# -- what a stage publishes


def first_capacity(stages: int) -> int:
    return min(FIRST_CAPACITY, MOST_MESSAGES // stages)


def steps_to_replay(length: int, stages: int, capacity: int) -> list[int]:
    """The indices of the steps of a block that are published, evenly spaced. The same on all stages."""
    most = MOST_MESSAGES // (stages * capacity) if capacity else 1
    count = max(1, min(MOST_STEPS, length, most))
    return [(2 * number + 1) * length // (2 * count) for number in range(count)]


def sequence_size(stages: int, capacity: int) -> int:
    """The number of words that all stages publish of a step."""
    return stages * (_HEAD + capacity * _PER_MESSAGE)


def sequence_words(
    rank: int, ranks: Sequence[int], step: StepWaits | None, together: Sequence[int], capacity: int
) -> list[int]:
    """The sequence of one stage in a step, at its position among those of all stages.

    ``together``: slots of collectives in which the whole pipeline takes part.
    """
    words = [NOTHING] * sequence_size(len(ranks), capacity)
    if step is None or not step.complete or not step.messages:
        return words
    base = min(min(message.issued, message.end - message.ns) for message in step.messages) // US
    said = [len(step.messages), base, step.wall // US, sum(step.elsewhere[slot] for slot in together) // US]
    if len(step.messages) <= capacity:
        places = {peer: place for place, peer in enumerate(ranks)}
        for message in step.messages:
            word = _words_of(message, base, places)
            if word is None:
                return words
            said += word
    at = ranks.index(rank) * (_HEAD + capacity * _PER_MESSAGE)
    words[at : at + len(said)] = said
    return words


def _words_of(message: Message, base: int, places: Mapping[int, int]) -> tuple[int, int] | None:
    """Encodes a message; None if a time is out of range or the other end is not known."""
    issued, begin = message.issued // US - base, (message.end - message.ns) // US - base
    wait, queue, peer = message.ns // US, message.queue // US, places.get(message.peer)
    if peer is None or max(issued, begin) >> _AT_BITS or max(wait, queue) >> _WAIT_BITS or min(wait, queue) < 0:
        return None
    return issued << 32 | begin, wait << 35 | queue << 7 | peer << 1 | message.sent


def capacity_of(result: Sequence[int], stages: int, capacity: int, steps: int = 1) -> int:
    """How many messages of a step a stage may publish in the next block: enough for the most of any stage in this one.

    The same on all stages. 0 if that would exceed MOST_MESSAGES.
    """
    heads = result[:: _HEAD + capacity * _PER_MESSAGE]
    counts = [head for head in heads[: stages * steps] if 0 < head < NOTHING]
    if not counts:
        return capacity
    most = 1 << (max(counts) - 1).bit_length()
    return most if most * stages <= MOST_MESSAGES else 0


# -- what all stages compute


def replayed(
    result: Sequence[int], ranks: Sequence[int], links: Mapping[tuple[int, int], Link], capacity: int, steps: int = 1
) -> Replayed | None:
    """Computes from the minimum over all stages' words what transfers cost each; None if that is not known.

    ``steps``: of how many steps the words are. At least half of them must be known, because they stand for all.
    """
    size = sequence_size(len(ranks), capacity)
    costs: list[list[int]] = []
    taken = dict.fromkeys(((min(way), max(way)) for way in links), 0)
    for step in range(steps):
        plan = _plan_of(result[step * size : (step + 1) * size], len(ranks), links, capacity)
        cost = None if plan is None else _cost(plan)
        if plan is None or cost is None:
            continue
        costs.append(cost)
        for link, took in plan.times.taken.items():
            taken[link] += took
    if not costs or 2 * len(costs) < steps:
        return None
    one, other = max(taken, key=taken.__getitem__)
    return Replayed(
        tuple(sum(each) * US // len(costs) for each in zip(*costs, strict=True)), (ranks[one], ranks[other])
    )


def _cost(plan: _Plan) -> list[int] | None:
    """What transfers cost each stage in a step, in µs; None if the replay is not near the measured waits."""
    times = plan.times
    with_them, without = (_waits(plan, arrive, leave) for arrive, leave in zip(times.arrive, times.leave, strict=True))
    if with_them is None or without is None:
        return None
    off = sum(abs(found - waited) for found, waited in zip(with_them, plan.waited, strict=True))
    if off > NEAR * sum(plan.waited):
        return None
    return [max(0, found - less) for found, less in zip(with_them, without, strict=True)]


def _plan_of(words: Sequence[int], stages: int, links: Mapping[tuple[int, int], Link], capacity: int) -> _Plan | None:
    """The plan of one step from the words of all stages; None if they do not have all of it."""
    size = _HEAD + capacity * _PER_MESSAGE
    found = []
    for place in range(stages):
        stage = _stage(words[place * size : (place + 1) * size], stages, capacity)
        if stage is None:
            return None
        found.append(stage)
    return _plan(found, links)


def _stage(words: Sequence[int], stages: int, capacity: int) -> _Stage | None:
    """Decodes the words of one stage; None if it published nothing, or something invalid."""
    count, base, wall, together = words[:_HEAD]
    if not 0 < count <= capacity or NOTHING in words[: _HEAD + count * _PER_MESSAGE]:
        return None
    entries = []
    for at in range(_HEAD, _HEAD + count * _PER_MESSAGE, _PER_MESSAGE):
        times, rest = words[at], words[at + 1]
        if times < 0 or rest < 0:
            return None
        begin = base + (times & (1 << 32) - 1)
        wait, queue, peer = rest >> 35, rest >> 7 & (1 << _WAIT_BITS) - 1, rest >> 1 & 63
        if peer >= stages:
            return None
        entries.append(Entry(base + (times >> 32), begin, begin + wait, queue, peer, bool(rest & 1)))
    return _Stage(entries, wall, together)


def _plan(stages: Sequence[_Stage], links: Mapping[tuple[int, int], Link]) -> _Plan | None:
    """Builds the plan; None if the two ends of a link do not have the same messages, or clocks cannot be compared."""
    numbers, ends = _meet(stages)
    begins = _begins(stages, links)
    together = any(stage.together > 0 for stage in stages)
    if ends is None or not links or (begins is None and together):
        return None
    programs, rests, waited = [], [], []
    for stage, mine in zip(stages, numbers, strict=True):
        program, rest, wait = _program(stage, mine)
        programs.append(program)
        rests.append(rest)
        waited.append(wait)
    return _Plan(programs, begins or [0] * len(stages), rests, waited, together, times_of(ends, links))


def _begins(stages: Sequence[_Stage], links: Mapping[tuple[int, int], Link]) -> list[int] | None:
    """When each stage began the step, on the clock of the first one; None if clocks cannot be compared."""
    ahead = 0
    begins = []
    for place, stage in enumerate(stages):
        if place:
            link = links.get((place - 1, place))
            if link is None:
                return None
            ahead += link.offset
        begins.append(min(min(entry.issued, entry.begin) for entry in stage.entries) - ahead)
    return [begin - min(begins) for begin in begins]


def _meet(stages: Sequence[_Stage]) -> tuple[list[list[int]], list[tuple[Entry, Entry]] | None]:
    """Numbers the messages -> (for each stage the numbers of its messages, for each message its two ends).

    Messages of the same link have consecutive numbers. Message i that one end issued is message i that the other end
    issued. The second value is None if the two ends of a link do not have the same number of messages.
    """
    ways: dict[tuple[int, int, bool], list[tuple[int, int]]] = {}  # source, target, which end -> stage, index
    for place, stage in enumerate(stages):
        for index in sorted(range(len(stage.entries)), key=[entry.issued for entry in stage.entries].__getitem__):
            entry = stage.entries[index]
            way = (place, entry.peer, True) if entry.sent else (entry.peer, place, False)
            ways.setdefault(way, []).append((place, index))
    numbers = [[0] * len(stage.entries) for stage in stages]
    ends: list[tuple[Entry, Entry]] = []
    for (source, target, sent), there in ways.items():
        back = ways.get((source, target, not sent), ())
        if source == target or len(there) != len(back):
            return numbers, None
        if not sent:
            continue
        for one, other in zip(there, back, strict=True):
            for place, index in (one, other):
                numbers[place][index] = len(ends)
            ends.append((stages[one[0]].entries[one[1]], stages[other[0]].entries[other[1]]))
    return numbers, ends


def _program(stage: _Stage, numbers: Sequence[int]) -> tuple[list[_Op], int, int]:
    """The operations of a stage in a step, its own time after the last one, and how long it waited."""
    events = []
    for (issued, begin, end, _, _, sent), number in zip(stage.entries, numbers, strict=True):
        events.append((issued, _SEND if sent else _RECEIVE, number, issued))
        events.append((begin, _AFTER_SEND if sent else _AFTER_RECEIVE, number, end))
    events.sort()
    first = now = events[0][0]
    program, waited = [], 0
    for at, what, number, end in events:
        if at > now:
            program.append((at - now, what, number))
            now = at
        else:
            program.append((0, what, number))
        if end > now:
            waited += end - now
            now = end
    return program, max(0, stage.wall - (now - first) - stage.together), waited


def _waits(plan: _Plan, arrive: Sequence[int], leave: Sequence[int]) -> list[int] | None:
    """How long each stage waits in a step once the step repeats itself; None if the stages block each other."""
    begun = plan.begins
    waits: list[int] = []
    for _ in range(_ROUNDS):
        found = _round(plan, begun, arrive, leave)
        if found is None:
            return None
        ends, waits = found
        if plan.together:
            return waits  # all stages leave a collective together before each step
        ends = [end + rest for end, rest in zip(ends, plan.rests, strict=True)]
        took = {end - start for end, start in zip(ends, begun, strict=True)}
        begun = ends
        if len(took) == 1:
            break
    return waits


def _round(
    plan: _Plan, begun: Sequence[int], arrive: Sequence[int], leave: Sequence[int]
) -> tuple[list[int], list[int]] | None:
    """Replays one step. ``begun``: when each stage begins it.

    Returns (when each stage ends the step, how long each waits); None if the stages block each other. A stage runs
    until it waits for a message whose other end is not issued yet. The stage that issues the other end wakes it.
    """
    before, bound, programs = plan.times.before, plan.times.bound, plan.programs
    sends, receives = [-1] * len(before), [-1] * len(before)
    arrived, left = [0] * len(before), [0] * len(before)
    now, waits, at = [*begun], [0] * len(begun), [0] * len(begun)
    blocked: dict[int, int] = {}
    ready = [*range(len(programs))]
    while ready:
        place = ready.pop()
        program, clock = programs[place], now[place]
        for index in range(at[place], len(program)):
            own, what, number = program[index]
            last = before[number]
            if what <= _RECEIVE:
                clock += own
                if what == _SEND:
                    sends[number] = clock
                    other = receives[number]
                else:
                    receives[number] = clock
                    other = sends[number]
                if other >= 0:
                    both = clock if clock > other else other
                    arrived[number] = (both if last < 0 else max(both, arrived[last])) + arrive[number]
                    if number in blocked:
                        ready.append(blocked.pop(number))
                continue
            if (other := sends[number] if what == _AFTER_RECEIVE else receives[number]) < 0 and (
                what == _AFTER_RECEIVE or bound[number]
            ):
                blocked[number] = place
                at[place] = index
                break
            clock += own
            if what == _AFTER_RECEIVE:
                end = arrived[number]
            else:
                begin = max(sends[number], other) if bound[number] else sends[number]
                end = left[number] = (begin if last < 0 else max(begin, left[last])) + leave[number]
            if end > clock:
                waits[place] += end - clock
                clock = end
        else:
            at[place] = len(program)
        now[place] = clock
    return None if blocked else (now, waits)

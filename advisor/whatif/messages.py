"""Messages of the recorded steps: which send and receive belong together, how long the transfer took, and when it ends
after a change. The i-th send of a step matches the i-th receive of its peer (ledger/replay.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from ...ledger.layout import Call
from ...ledger.transit import MOST_TRANSFERS
from .trace import NoTrace, RankStep, RankTrace, Trace

WAITED = 10_000
"""ns: anything shorter does not count as a wait."""

Place = tuple[int, int, int]
"""(rank, step, index among the calls of the step)"""
Scale = Callable[[float], float]


@dataclass(slots=True)
class _Half:
    """One end of a message: its send or its receive. Moments are of the rank's own clock, ns."""

    issued: int
    begin: int
    end: int
    alone: bool
    """Whether the wait was for this message only."""

    @property
    def waited(self) -> bool:
        return self.end - self.begin >= WAITED


@dataclass(slots=True, eq=False)
class Message:
    """One message, and its moments in a replay. Moments are of the receiver's clock, ns, unless said otherwise."""

    key: int
    """The key of its group."""
    send: _Half
    receive: _Half
    before: Message | None
    """The previous message on the link."""
    ahead: int
    """The receiver's clock minus the sender's, ns."""
    came: float = 0.0
    """When it arrived."""
    transfer: float = 0.0
    """How long it was under way."""
    leave: float = 0.0
    """How long the send went on after it could begin to end (`sendable`)."""
    send_shift: float | None = None
    receive_shift: float | None = None
    came_then: float | None = None

    @property
    def ready(self) -> float:
        """The earliest moment at which the transfer could start: both ends issued, and the link free."""
        came = self.before.came if self.before is not None else 0
        return max(self.send.issued + self.ahead, self.receive.issued, came)

    @property
    def sendable(self) -> float:
        """The earliest moment at which the send could end, by the sender's clock."""
        return max(self.send.issued, self.receive.issued - self.ahead) if self.bound else self.send.issued

    @property
    def bound(self) -> bool:
        """Whether the send may have had to wait until the receive was issued."""
        return self.send.waited and self.send.end + self.ahead >= self.receive.issued

    def issue(self, sent: bool, shift: float, scale: Scale) -> bool:
        """Issues one end with this shift. Returns whether the arrival is known now, because both ends are issued."""
        if sent:
            self.send_shift = shift
        else:
            self.receive_shift = shift
        if self.send_shift is None or self.receive_shift is None:
            return False
        then = max(self.send.issued + self.ahead - self.send_shift, self.receive.issued - self.receive_shift)
        if self.before is not None and self.before.came_then is not None:
            then = max(then, self.before.came_then)
        self.came_then = self.came - (self.ready - then) - (self.transfer - scale(self.transfer))
        return True

    def known(self, sent: bool) -> bool:
        """Whether it is known when the wait of an end is over after the change."""
        return self.came_then is not None or (sent and not self.bound)

    def over(self, sent: bool, scale: Scale) -> float:
        """The earliest moment at which the wait of an end could be over after the change, by the clock of that end."""
        if not sent:
            assert self.came_then is not None
            return self.came_then
        assert self.send_shift is not None
        then = self.send.issued - self.send_shift
        if self.bound and self.receive_shift is not None:
            then = max(then, self.receive.issued - self.ahead - self.receive_shift)
        return then + scale(self.leave)

    def was_over(self, sent: bool) -> float:
        """The same moment as recorded, without the change."""
        return self.sendable + self.leave if sent else self.came


def meet(trace: Trace) -> dict[Place, tuple[Message, bool]]:
    """The message of each send and receive in the trace, and whether that call is the send. Raises NoTrace."""
    halves = _halves(trace)
    boots = {one.rank: one.boot for one in trace.ranks}
    found: dict[Place, tuple[Message, bool]] = {}
    ahead: dict[tuple[int, int], int] = {}
    by_link: dict[tuple[int, int], list[Message]] = {}
    for (source, target, step, sent), ends in halves.items():
        if not sent:
            continue
        others = halves.get((source, target, step, False), [])
        if len(others) != len(ends):
            raise NoTrace(f"step {step}: ranks {source} and {target} do not have the same messages")
        if (source, target) not in ahead:
            ahead[source, target] = _ahead(halves, boots, source, target)
            ahead[target, source] = -ahead[source, target]
        for (place, key, send), (other, _, receive) in zip(ends, others, strict=True):
            link = by_link.setdefault((source, target), [])
            message = Message(key, send, receive, link[-1] if link else None, ahead[source, target])
            link.append(message)
            found[place], found[other] = (message, True), (message, False)
    for link in by_link.values():
        _measure(link)
    return found


_Halves = dict[tuple[int, int, int, bool], list[tuple[Place, int, _Half]]]


def _halves(trace: Trace) -> _Halves:
    """The ends by (source, target, step, whether it is the send), in the order in which they were issued."""
    found: _Halves = {}
    for index in range(len(trace.ranks[0].steps)):
        for one in trace.ranks:
            for place, key, call, half in _ends(one, one.steps[index]):
                way = (one.rank, call.peer) if call.sent else (call.peer, one.rank)
                found.setdefault((*way, one.steps[index].number, call.sent), []).append((place, key, half))
    for ends in found.values():
        ends.sort(key=lambda end: end[2].issued)
    return found


def _ends(one: RankTrace, step: RankStep) -> Iterable[tuple[Place, int, Call, _Half]]:
    now = begin = step.end - step.wall
    last: _Half | None = None
    for place, call in enumerate(step.calls):
        slot = one.slots[call.slot]
        if not call.together:
            begin = now + call.gap_ns
            now = begin + call.ns
        if slot.pairwise:
            half = _Half(begin - call.lead_ns, begin, now, not call.together)
            if call.together and last is not None:
                last.alone = False
            last = half
            yield (one.rank, step.number, place), slot.key, call, half


def _ahead(halves: _Halves, boots: dict[int, str], source: int, target: int) -> int:
    """The target's clock minus the source's, ns: 0 on one machine, otherwise as in NTP (ledger/messages.py)."""
    if boots[source] == boots[target] != "":
        return 0
    least: dict[tuple[int, int], int] = {}
    for (one, other, step, sent), ends in halves.items():
        if sent and {one, other} == {source, target}:
            for (_, _, send), (_, _, receive) in zip(ends, halves.get((one, other, step, False), ()), strict=False):
                if receive.waited:
                    took = receive.end - send.issued
                    least[one, other] = min(took, least.get((one, other), took))
    if len(least) < 2:
        raise NoTrace(
            f"ranks {source} and {target} are on different machines, and their clocks cannot be compared:"
            " no messages go both ways"
        )
    return (least[source, target] - least[target, source]) // 2


def _measure(link: list[Message]) -> None:
    """Sets when the messages of a link arrived, and how long they were under way.

    A wait that began long after the transfer could start was not for that message: each wait takes a moment in any
    case.
    """
    for message in link:
        message.came = message.receive.end if message.receive.waited else message.receive.begin
    seen = [
        message.receive.end - message.ready
        for message in link
        if message.receive.waited and message.receive.alone and message.receive.end > message.ready
    ]
    usual = median(seen) if seen else 0.0
    most = MOST_TRANSFERS * usual
    for message in link:
        receive, ready = message.receive, message.ready
        if not (receive.waited and receive.alone) or ready + most < receive.begin:
            message.came = min(message.came, ready + usual)
        message.transfer = max(0.0, min(message.came - ready, most))
        message.leave = max(0.0, min(message.send.end - message.sendable, most))

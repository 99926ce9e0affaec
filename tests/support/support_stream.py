"""A simulated CUDA stream with a known truth: every nanosecond of its device is recorded.

The truth does not come from boundary events. The device's timeline is a list of busy pieces, each tagged with the host
interval in which it was enqueued. Between pieces the device is idle, because of the host interval that was open at that
time.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field

RECORD_COST_NS = 700
QUERY_COST_NS = 300


def float32_ms(ns: int) -> int:
    """ns after a conversion to CUDA's float32 milliseconds and back."""
    return round(struct.unpack("f", struct.pack("f", ns / 1e6))[0] * 1e6)


@dataclass
class SimEvent:
    passed_ns: int
    """The time at which the device passes it, on the host's clock."""
    released: bool = False


@dataclass
class SimStream:
    """Host, launch queue and device; an EventSource too. Times are ns of the host's clock."""

    now_ns: int = 1_000
    depth: int = 1024
    """Operations that fit into the launch queue: a launch into a full one blocks the host."""
    ring: int = 1024
    drift_ppm: int = 0
    """How much faster the device's clock runs."""
    quantum_ns: int = 1
    """Resolution of elapsed times; coarser than 1 ns also means float32 milliseconds."""
    fail_after: int = -1
    """Calls of the source after which every call raises; -1: never."""
    capturing: bool = False
    stuck: bool = False
    """A hung device, which passes no further event."""
    start_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self.start_ns = self.now_ns
        self.drained_ns = self.now_ns
        self.queue: deque[int] = deque()  # when each queued operation ends
        self.busy: list[tuple[int, int, int]] = []  # from, to, host interval
        self.marks: list[int] = []  # host time at which each host interval ended
        self.free = self.ring
        self.events: list[SimEvent] = []
        self.calls = 0
        self.skipped = 0  # records without an event

    # -- the training loop

    def now(self) -> int:
        return self.now_ns

    def host(self, ns: int) -> None:
        self.now_ns += ns

    def launch(self, ns: int, cost_ns: int = 2_000) -> None:
        """Enqueues a kernel of ``ns``."""
        if not self.capturing:
            self._enqueue(lambda begin: begin + ns)
        self.host(cost_ns)

    def wait_for(self, external_ns: int) -> None:
        """Makes the stream, not the host, wait until a time: a collective that ends then."""
        if not self.capturing:
            self._enqueue(lambda begin: max(begin, external_ns))

    def synchronize(self) -> None:
        """The training loop waits for the device (``.item()``)."""
        self.now_ns = max(self.now_ns, self.drained_ns)

    def boundary(self) -> int:
        """Ends the host's open interval now, and returns the time."""
        self.marks.append(self.now_ns)
        return self.now_ns

    def _enqueue(self, end_of) -> int:
        queue = self.queue
        while queue and queue[0] <= self.now_ns:
            queue.popleft()
        if len(queue) >= self.depth:
            self.now_ns = queue.popleft()
        begin = max(self.drained_ns, self.now_ns)
        end = end_of(begin)
        if end > begin:
            self.busy.append((begin, end, len(self.marks)))
        self.drained_ns = end
        queue.append(end)
        return end

    # -- the event source

    def rehome(self) -> bool:
        return False

    def at_home(self) -> bool:
        return True

    def _call(self) -> None:
        self.calls += 1
        if 0 <= self.fail_after < self.calls:
            raise RuntimeError("CUDA error: device lost")

    def record(self) -> SimEvent | None:
        self._call()
        if self.capturing or self.free == 0:
            self.skipped += 1
            return None
        self.free -= 1
        # The boundary's number is already counted, and an event takes no device time, so it tags nothing.
        event = SimEvent(self._enqueue(lambda begin: begin))
        self.events.append(event)
        self.host(RECORD_COST_NS)
        return event

    def record_here(self) -> SimEvent | None:
        return self.record()

    def awaited(self, event: SimEvent) -> SimEvent:
        return event

    def done(self, event: SimEvent) -> bool | None:
        self._call()
        assert not event.released
        self.host(QUERY_COST_NS)
        return None if self.capturing else self._passed(event)

    def _passed(self, event: SimEvent) -> bool:
        return not self.stuck and event.passed_ns <= self.now_ns

    def elapsed_ns(self, start: SimEvent, end: SimEvent) -> int:
        self._call()
        assert not start.released
        assert not end.released
        assert self._passed(start), "elapsed_time of an unfinished event"
        assert self._passed(end), "elapsed_time of an unfinished event"
        assert not self.capturing
        elapsed = end.passed_ns - start.passed_ns
        elapsed += elapsed * self.drift_ppm // 1_000_000
        if self.quantum_ns == 1:
            return elapsed
        # Rounded down each time, the worst case: in a chain, stamps that are rounded once would cancel out.
        return float32_ms(elapsed // self.quantum_ns * self.quantum_ns)

    def release(self, event: SimEvent) -> None:
        assert not event.released
        event.released = True
        self.free += 1

    # -- the truth

    def truth(self, until_ns: int) -> list[int]:
        """Device ns of each host interval, from the start to ``until_ns``. The last interval is after the last mark."""
        spent = [0] * (len(self.marks) + 1)
        for begin, end, interval in self.busy:
            spent[interval] += max(0, min(end, until_ns) - begin)
        ends = [*self.marks, until_ns]
        at, opened = self.start_ns, 0
        for begin, end, _ in [*self.busy, (until_ns, until_ns, 0)]:
            while at < min(begin, until_ns):  # idle
                while opened < len(self.marks) and ends[opened] <= at:
                    opened += 1
                to = min(begin, until_ns, ends[opened]) if ends[opened] > at else min(begin, until_ns)
                spent[opened] += to - at
                at = to
            at = max(at, end)
        return spent

"""Boundaries in flight: those that the device may not have passed yet. Finds how many it has passed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .books import Parts
    from .wait_codes import Issues, WaitCode

UNMEASURED = -1
"""The phase of an interval whose phase is not known. Its cause is `unattributed`."""


class Launched(NamedTuple):
    """The first part of an interval, in which an idle device waits for its host. In a wait, for example, the host
    launches copies. What the device does after that belongs to the interval's own phase."""

    until_ns: int
    """When the host was done, CLOCK_MONOTONIC."""
    phase: int
    """The phase to which the first part belongs."""


class SideWait(NamedTuple):
    """Another stream than the home stream began to wait at the start of the interval."""

    code: WaitCode
    event: Any
    """On that stream, with timing: the device passes it at the end of the wait."""
    blocked_ns: int
    """How long the host was blocked in the interval. The rank has waited only if its host did."""
    parts: Parts | Launched | None
    """Of the rest of the interval."""


class Lost:
    """Boundaries without an event. They are joined to the next boundary that has one."""

    __slots__ = ("phase", "thens")

    def __init__(self, phase: int):
        self.phase = phase  # the common phase of all of them; UNMEASURED if they differ
        self.thens: list[tuple[int, int]] = []  # (host_ns, then) of those that end a step or open the window


class Boundary(NamedTuple):
    """The end of an interval, marked by an event."""

    event: Any
    host_ns: int
    host_interval_ns: int  # host time since the previous boundary, recorded or not
    phase: int
    parts: Parts | Launched | SideWait | None
    then: int
    lost: Lost | None
    issues: Issues
    awaited: bool = False
    """Whether the event is on another stream. The home stream waited for it since the previous boundary."""


def count_passed(boundaries: Sequence[Boundary], most: int, done: Callable[[Any], bool | None]) -> tuple[int, bool]:
    """Counts the first boundaries that the device has passed: (count, whether the next one was seen unfinished).

    Considers the first ``most`` boundaries; the count is one higher if an awaited one follows them and is passed. All
    boundaries except awaited ones are on one stream, which is first in, first out. So if one is done, all before it are
    done, too, also the awaited ones. The search asks for the newest first. Then it asks from the oldest on with growing
    strides, and finally between the last two. If ``done`` returns None, the search stops.
    """
    low, high = 0, most  # all before `low` are passed; `high` is the first that is known not to be passed
    at, stride = most - 1, 0
    while low < high:
        if boundaries[at].awaited:  # its neighbours are not awaited
            at += -1 if at > low else 1
            if at >= high:
                break
        answer = done(boundaries[at].event)
        if answer is None:
            return low, False
        if answer:
            low, stride = at + 1, 2 * stride
        else:
            stride = 0 if high < most else 1
            high = at
        at = min(low + stride, high) - 1 if stride else (low + high) // 2
    if low < len(boundaries) and boundaries[low].awaited:
        answer = done(boundaries[low].event)
        if not answer:
            return low, answer is False
        low += 1
    return low, low < most


def count_one_by_one(boundaries: Sequence[Boundary], most: int, done: Callable[[Any], bool | None]) -> tuple[int, bool]:
    """Like ``count_passed``, for boundaries on several streams: asks for each one."""
    for number in range(most):
        answer = done(boundaries[number].event)
        if not answer:
            return number, answer is False
    return most, False

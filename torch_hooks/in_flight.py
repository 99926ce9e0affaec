"""Boundaries that the device may not have passed yet, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .books import Parts
    from .wait_codes import Issues

UNMEASURED = -1
"""As the phase of an interval: device time of which no phase can be told. Its cause is `unattributed`."""


class Lost:
    """Boundaries without an event, joined to the next one that has one."""

    __slots__ = ("phase", "thens")

    def __init__(self, phase: int):
        self.phase = phase  # of all of them, else UNMEASURED
        self.thens: list[tuple[int, int]] = []  # (host_ns, then), where something was to happen


class Boundary(NamedTuple):
    """The end of an interval, at an event."""

    event: Any
    host_ns: int
    host_interval_ns: int  # since the boundary before, recorded or not
    phase: int
    parts: Parts | None
    then: int
    lost: Lost | None
    issues: Issues
    awaited: bool = False
    """The event is not on the home stream: that waited for it from the boundary before on."""


def count_passed(boundaries: Sequence[Boundary], most: int, done: Callable[[Any], bool | None]) -> tuple[int, bool]:
    """-> (how many of the first ``most`` the device has passed, or one more; whether the next was seen unfinished).

    All but the awaited ones stand on one stream, which is first in, first out: the newest that is done answers for all
    before it, the awaited ones too. So it is asked first; then, from the oldest on, ever further ones, and what lies
    between the last two. ``done`` gives None where it cannot tell, and nothing more is asked then.
    """
    low, high = 0, most  # all before `low` are passed, and `high` is the first that is known not to be
    at, stride = most - 1, 0
    while low < high:
        if boundaries[at].awaited:  # its neighbours are not
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
    """The same for boundaries on several streams."""
    for number in range(most):
        answer = done(boundaries[number].event)
        if not answer:
            return number, answer is False
    return most, False

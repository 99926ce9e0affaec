"""Advice on where files are: another mount of the node that was measured to be faster."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ...verdict import by_mount
from ...verdict.mounts import LEAST_LOOKS, Key, MountAccount, most_of, of_ranks
from ..bench.storage.caches import IN_MEMORY
from ..whatif.changes import NONE, Changes
from .case import Case, Room
from .gains import formula, percent, replayed
from .rule import Found, Gain, Rule

FASTER = 2.0
"""A mount is faster if its rate is at least this many times as high. Rates of a shared server vary by less."""
CAUTIOUS = 2.0
"""For the lower bound, files are read this many times as slowly from the other mount as was measured: it then has both
files to serve."""
_CAUSE = {"data": "data_read", "save": "checkpoint_write"}
_FILES = {"data": "files of the dataset", "save": "checkpoints"}


class _Better(NamedTuple):
    name: str
    rate: float
    room: Room
    how: str


def _mount(case: Case) -> Found | None:
    found = [one for kind in _CAUSE if (one := _moved(case, kind)) is not None]
    return max(found, key=lambda one: one.gain.share, default=None)


def _moved(case: Case, kind: str) -> Found | None:
    slow = next(iter(most_of(case.ranks, kind)), None)
    if slow is None or slow.rate is None or case.share(_CAUSE[kind]) <= 0:
        return None
    better = max(_faster(case, slow, kind), key=lambda one: one.rate, default=None)
    if better is None:
        return None
    whole = sum(one.seconds(kind) for one in of_ranks(case.ranks))
    times, part = better.rate / slow.rate, slow.seconds(kind) / whole
    gain = _gain(case, kind, slow.key, part, times)
    if gain is None:
        return None
    return Found(
        f"Move the {_FILES[kind]} from {by_mount.name(slow)} to {better.name}",
        gain,
        (
            f"{percent(part * case.share(_CAUSE[kind]))} of the time is blocked at {by_mount.name(slow)}, at"
            f" {by_mount.rate_of(slow)}",
            f"{better.name} has {by_mount.size_of(better.room.free)} free, and {better.how}",
        ),
        {"mount": better.room.point},
    )


def _faster(case: Case, slow: MountAccount, kind: str) -> list[_Better]:
    """The other mounts with room that were measured to be faster: by the run itself, or by a bench."""
    assert slow.rate is not None
    found = []
    for other in of_ranks(case.ranks):
        room = case.counters.rooms.get(other.key)
        measured = other.rate is not None and other.counted and other.looks >= LEAST_LOOKS
        if room and measured and other.key != slow.key and {*slow.nodes} <= {*other.nodes}:
            how = f"the run itself moved {by_mount.rate_of(other)} there"
            found.append(_Better(by_mount.name(other), other.rate or 0.0, room, how))
    for (point, fstype, source), room in case.counters.rooms.items():
        rate = room.read if kind == "data" else room.write
        lasts = fstype not in IN_MEMORY or kind == "data"
        if rate and lasts and (point, fstype, source) != slow.key and case.nodes == 1:
            verb = "read" if kind == "data" else "wrote"
            how = f"`whyidle bench storage` {verb} {by_mount.size_of(rate)}/s there"
            found.append(_Better(by_mount.name_of(point, "", fstype, source), rate, room, how))
    return [one for one in found if one.rate >= FASTER * slow.rate and one.room.free >= slow.sums["bytes"]]


def _gain(case: Case, kind: str, slow: Key, part: float, times: float) -> Gain | None:
    """``part`` of the blocked time is at the slow mount, and the other is ``times`` as fast."""
    left = [1 / times, 1 / max(1.0, times / CAUTIOUS)]
    if kind == "save":
        share, least = (part * (1 - each) * case.share("checkpoint_write") for each in left)
        return formula(share, least, part * case.share("checkpoint_write"))
    gain, cautious, ideal = (replayed(case, Changes(reads=each, mounts=(slow,))) for each in (*left, NONE))
    if gain is None or cautious is None or ideal is None:
        return None
    return replace(gain, least=cautious.least, most=max(gain.most, ideal.most))


RULES: tuple[Rule, ...] = (
    Rule(
        "storage.mount",
        ("storage",),
        "The loop is blocked at one mount, and another mount of the node with room for the files was at least twice as"
        " fast: when the run itself read or wrote there, or in a `whyidle bench storage --save` on this node",
        "Move the files to the faster mount",
        "Replay with reads at the rate of the faster mount; of saves, the share of the time. Lower bound: at half that"
        " rate. Upper bound: without this time",
        "the report names another mount, or none",
        _mount,
    ),
)

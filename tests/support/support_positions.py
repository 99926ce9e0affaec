"""Ledgers that were never in a file: only the positions of ranks, for pure functions over ledgers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whyidle.ledger.causes import PHASE
from whyidle.ledger.layout import STRINGS, WORD_AT, WORDS
from whyidle.ledger.reader import Ledger

SECOND = 1_000_000_000
NOW = 1_000_000 * SECOND
WORLD, PAIR, MESSAGES = 11, 22, 33
SLOTS = {WORLD: 0, PAIR: 1, MESSAGES: 2}
LABELS = {WORLD: "world", PAIR: "dp", MESSAGES: "world p2p"}


@dataclass(frozen=True)
class Group:
    """How many calls a rank has entered in a group."""

    key: int
    calls: int
    size: int = 4


def position(
    rank: int,
    phase: str = "compute",
    seconds: float = 0.0,
    *groups: Group,
    within: int = 0,
    world: int = 4,
    alive: bool = True,
    now: int = NOW,
    **words: Any,
) -> Ledger:
    """A rank that has been in a phase for some seconds; ``within``: the group in which it waits."""
    values: dict[str, list[int]] = {name: [0] * count for name, count in WORDS.items()}
    values["rank"][0], values["world_size"][0] = rank, world
    values["phase"][0], values["phase_since_ns"][0] = PHASE[phase], now - int(seconds * SECOND)
    values["window_ns"][0] = 0 if phase == "startup" else 1
    values["open_slot"][0] = SLOTS[within] if within else -1
    strings = dict.fromkeys(STRINGS, "") | {"run": "r1", "owner": "lab"}
    for group in groups:
        slot = SLOTS[group.key]
        values["slot_key"][slot], values["slot_size"][slot] = group.key, group.size
        values["slot_calls"][slot], values["slot_pairwise"][slot] = group.calls, int(group.key == MESSAGES)
        values["collectives"][0] += group.calls
        strings[f"group{slot}"] = LABELS[group.key]
    for name, value in words.items():
        if name in STRINGS:
            strings[name] = value
        else:
            values[name] = list(value) if isinstance(value, (list, tuple)) else [value] * WORD_AT[name][1]
    return Ledger("", alive, False, strings, {name: tuple(each) for name, each in values.items()})

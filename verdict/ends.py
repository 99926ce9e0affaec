"""How the ranks of a run ended: whether they failed or were killed, and which of them was first."""

from __future__ import annotations

from collections.abc import Collection

from ..ledger.layout import CLEAN, FAILED
from ..ledger.reader import Ledger

FIRST_SECONDS = 0.05
"""A rank is named as the first to end if the next one ended at least this much later."""


def state_of(newest: Collection[Ledger]) -> str:
    """One word for a run: `live`, `2 live`, `ended`, `failed` (a rank ended with an error) or `killed`.

    ``newest``: the newest ledger of each rank.
    """
    alive = sum(ledger.alive for ledger in newest)
    if alive:
        return "live" if alive == len(newest) else f"{alive} live"
    return max((end_of(ledger) for ledger in newest), key=("ended", "killed", "failed").index, default="ended")


def end_of(ledger: Ledger) -> str:
    """How a rank that is not alive ended: `ended`, `failed` or `killed`."""
    return {CLEAN: "ended", FAILED: "failed"}.get(ledger.ended, "killed")


def end_sentences(newest: Collection[Ledger]) -> list[str]:
    """Which ranks ended with an error, which were killed, and which rank was first. ``newest``: see `state_of`."""
    over = [ledger for ledger in newest if not ledger.alive]
    by_end = {end: [one.rank for one in over if end_of(one) == end] for end in ("failed", "killed")}
    sentences = []
    if failed := by_end["failed"]:
        sentences.append(f"{named(failed)} ended with an error{_first(newest)}")
    if killed := by_end["killed"]:
        said = "" if failed else _first(newest)
        sentences.append(f"{named(killed)} {'was' if len(killed) == 1 else 'were'} killed, or crashed{said}")
    return sentences


def _first(newest: Collection[Ledger]) -> str:
    """Names the rank that ended before the others, if that is known. Clocks of different nodes may differ."""
    if len(newest) < 2 or len({(ledger.node, ledger.attempt) for ledger in newest}) > 1:
        return ""
    if any(ledger.alive for ledger in newest):
        return ""
    first, second = sorted(newest, key=lambda ledger: ledger.last_sign_ns)[:2]
    seconds = (second.last_sign_ns - first.last_sign_ns) / 1e9
    if seconds < FIRST_SECONDS or end_of(first) == "ended":
        return ""
    return f". Rank {first.rank} was the first to end, {seconds:.1f} s before the next one"


def named(numbers: list[int]) -> str:
    """`rank 3`, `ranks 3 and 5`, `ranks 1, 2, 3 and 4 more`."""
    return f"rank{'s' if len(numbers) > 1 else ''} {listed([*map(str, numbers)])}"


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b, c and 4 more`."""
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return " and ".join([*filter(None, [", ".join(names[:-1])]), *names[-1:]])

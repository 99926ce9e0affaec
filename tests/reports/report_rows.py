"""What a row of the table of public reports says: where it comes from, what is true, and what whyidle has to say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Truths = Sequence[Mapping[str, Any]]
"""What the ranks of a run recorded (scripts/truth.py)."""
Share = Callable[[Truths], float]
"""The true share, from 0 to 1, of all ranks' time."""


@dataclass(frozen=True)
class Report:
    name: str
    """Of its script."""
    sources: tuple[str, ...]
    """Issues as `owner/repository#number`, other pages as URLs."""
    pattern: str
    truth: Mapping[str, Share | None]
    """Family that a verdict may name -> its share. None: the script's clock does not know it."""
    ranks: int = 1
    late: int | None = None
    """The rank that the verdict has to name."""
    first_to_end: int | None = None
    status: int = 0
    """Exit status of the launcher."""
    within: float = 3.0
    """Points by which the share may differ on a machine without other work. See report_judge.py."""
    says: tuple[str, ...] = ()
    """Patterns that the text of the report has to match."""
    never: tuple[str, ...] = ()
    """Patterns that it must not match, because they are false."""
    asked_after: float | None = None
    """Ask also during the run, this many seconds after a rank said so."""
    asked_says: tuple[str, ...] = ()
    asked_never: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    """Rules that have to give advice."""
    misleading: tuple[str, ...] = ()
    """Rules that must not: their change does not help here."""
    link: str = ""
    """Rate of the link between the ranks, as tc writes it."""
    env: Mapping[str, str] = field(default_factory=dict)


def of_all(*names: str) -> Share:
    """What all ranks lost under these names, of all ranks' time."""
    return lambda truths: sum(_lost(each, names) for each in truths) / _wall(truths)


def more_than(late: int, name: str, *, waiter: int) -> Share:
    """How much longer one rank waited than a late one, of both ranks' time. The late rank waits only for transfers."""

    def share(truths: Truths) -> float:
        of = {each["rank"]: _lost(each, (name,)) for each in truths}
        return (of[waiter] - of[late]) / _wall(truths)

    return share


def of_both(rank: int, *names: str) -> Share:
    """What one of two ranks lost, if the other waits for it meanwhile."""
    return lambda truths: 2 * sum(_lost(each, names) for each in truths if each["rank"] == rank) / _wall(truths)


def of_one(rank: int, *names: str) -> Share:
    """What one rank lost, of all ranks' time."""
    return lambda truths: sum(_lost(each, names) for each in truths if each["rank"] == rank) / _wall(truths)


def _lost(truth: Mapping[str, Any], names: Sequence[str]) -> float:
    return sum(truth["lost"].get(name, 0.0) for name in names)


def _wall(truths: Truths) -> float:
    return sum(each["wall"] for each in truths)

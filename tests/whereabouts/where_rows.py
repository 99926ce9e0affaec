"""What a row of the table of whereabouts says: what is slow, and what whyidle has to say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from network_nodes import NetworkNode
from support_bottlenecks_nodes import Group


@dataclass
class Lab:
    """What a case has set up for its job. All of it ends with ``stack``."""

    scratch: Path
    stack: ExitStack
    group: Group
    """The disks of the case are slow for its processes."""
    recorded: Path
    """The directory of the ledgers that the report is about."""
    places: dict[str, str] = field(default_factory=dict)
    """The name of a place in the table -> its mount point, its interface, or its address."""
    arguments: dict[str, str] = field(default_factory=dict)
    """The same -> what the job's script is told."""
    nodes: list[NetworkNode] = field(default_factory=list)
    user: int = 0


Setup = Callable[[Lab], None]


@dataclass(frozen=True)
class Change:
    """What a rule advises, and how the job is told. Settings of the advice stand in braces."""

    rule: str
    arguments: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    """The job instead, if more arguments do not tell it."""
    env: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, int | str] = field(default_factory=dict)
    """The settings to try if the rule gives no advice."""
    advised: bool = True
    """False: the change gains nothing, so that no gain may be promised."""


@dataclass(frozen=True)
class Case:
    name: str
    fault: str
    job: tuple[str, ...]
    """A script, and its arguments. Places stand in braces."""
    setup: tuple[Setup, ...] = ()
    ranks: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    rank_job: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The jobs of ranks that differ."""
    rank_env: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    family: tuple[str, ...] = ("storage",)
    """Families that the verdict may have. Empty: any."""
    lost: str = "data"
    """What the job's own clock calls this family."""
    named: Mapping[str, float | None] = field(default_factory=dict)
    """Places that have to be named -> bytes a second that they allow. None: as the job's clock says. 0: no rate."""
    within: float = 0.10
    """By how much a rate may be wrong."""
    may: tuple[str, ...] = ()
    """Places that may be named too."""
    says: tuple[str, ...] = ()
    """Patterns that the text of the report has to match."""
    never: tuple[str, ...] = ()
    """Patterns that it must not match, because they are false."""
    late: int | None = None
    """The rank that has to be named."""
    change: Change | None = None
    usual: bool = False
    """`make test` runs it."""
    tested: bool = True
    """False: only the page has it, because another case shows the same."""

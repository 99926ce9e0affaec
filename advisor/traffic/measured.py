"""The bytes that a run's ranks passed to their collectives, by group, and what that means on the wire. Pure
functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...ledger.causes import CHECKPOINT_KINDS
from ...ledger.reader import Ledger, Slot
from .collectives import OPS, sent

_SAVE = CHECKPOINT_KINDS.index("save")


class NotMeasured(Exception):
    """The traffic of a run cannot be measured. The message says why."""


@dataclass
class Group:
    """All groups with one label. Bytes are per step."""

    label: str
    size: int
    """The ranks of each group."""
    pairwise: bool
    ranks: int = 0
    """The ranks with ledgers here, in all these groups."""
    handed: dict[str, float] = field(default_factory=dict)
    """Operation -> the bytes that a rank passes to it, on average over the ranks with ledgers here."""
    inside: float = 0.0
    """The bytes that all ranks with ledgers here send to ranks on the same node."""
    across: float = 0.0
    """The bytes that they send to ranks on other nodes."""
    unknown: float = 0.0
    """The bytes of which the receiving node is not known: messages between stages, if some stages share a node."""

    @property
    def wire(self) -> float:
        return self.inside + self.across + self.unknown


@dataclass
class Measured:
    """The traffic of one run."""

    run: str
    owner: str
    ranks: int
    """The ranks with ledgers here."""
    world_size: int
    steps: int
    """The steps of the rank with the fewest."""
    seconds: float
    """The time of a step, on the rank on which it takes longest."""
    groups: list[Group]
    elsewhere: float
    """The bytes per rank and step in collectives of groups that are not in the ledger, which has room for few
    groups."""
    node_across: dict[str, float]
    """Node -> the bytes per step that its ranks send to other nodes."""
    saved: float
    """The bytes of checkpoints that the ranks with ledgers here write, per step."""
    since_start: bool
    """Whether everything since the start of the processes is counted, startup included."""


@dataclass(frozen=True)
class _Rank:
    """What one rank did between two readings of its ledger."""

    ledger: Ledger
    steps: int
    seconds: float
    handed: dict[int, dict[str, int]]
    """Index of a slot -> bytes by operation."""
    in_all: int
    saved: int


def measure(after: Sequence[Ledger], before: Sequence[Ledger], way: str) -> Measured:
    """Measures one run from the ledgers of its ranks' newest attempts at two moments. Raises NotMeasured.

    If ``before`` is empty, everything since the start of the processes counts. ``seconds`` are known only if the
    ledgers were read with their steps. ``way``: see collectives.py.
    """
    if not after:
        raise NotMeasured("no rank of the run has a ledger here")
    first = {ledger.rank: ledger for ledger in before}
    if before and any(not _same(first.get(ledger.rank), ledger) for ledger in after):
        raise NotMeasured("a rank restarted during the measurement: try again")
    ranks = [_between(first.get(ledger.rank), ledger) for ledger in after]
    if late := [rank.ledger.rank for rank in ranks if rank.steps < 1]:
        named = ", ".join(map(str, late[:8])) + ("…" if len(late) > 8 else "")
        when = "in that time: measure for longer (--seconds)" if before else "yet"
        raise NotMeasured(f"rank {named} has not finished a step {when}")
    groups, node_across = _groups(ranks, way)
    known = sum(sum(ops.values()) / rank.steps for rank in ranks for ops in rank.handed.values())
    newest = after[0]
    return Measured(
        run=newest.run,
        owner=newest.owner,
        ranks=len(ranks),
        world_size=max(ledger.world_size for ledger in after),
        steps=min(rank.steps for rank in ranks),
        seconds=max(rank.seconds / rank.steps for rank in ranks),
        groups=groups,
        elsewhere=max(0.0, sum(rank.in_all / rank.steps for rank in ranks) - known) / len(ranks),
        node_across=node_across,
        saved=sum(rank.saved / rank.steps for rank in ranks),
        since_start=not before,
    )


def _same(one: Ledger | None, other: Ledger) -> bool:
    return one is not None and (one.pid, one.pid_start_ticks, one.attempt) == (
        other.pid,
        other.pid_start_ticks,
        other.attempt,
    )


def _between(before: Ledger | None, after: Ledger) -> _Rank:
    """The difference between two readings. Without an earlier one, everything since the start counts."""
    slots = {slot.index: slot.bytes for slot in before.slots} if before else {}
    handed = {slot.index: _less(slot.bytes, slots.get(slot.index, {})) for slot in after.slots}
    ns = after.step_ns - (before.step_ns if before else 0)
    return _Rank(
        after,
        after.steps - (before.steps if before else 0),
        ns / 1e9,
        handed,
        sum(after.words["collective_bytes"]) - (sum(before.words["collective_bytes"]) if before else 0),
        after.words["checkpoint_bytes"][_SAVE] - (before.words["checkpoint_bytes"][_SAVE] if before else 0),
    )


def _less(sizes: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {op: size - before.get(op, 0) for op, size in sizes.items() if size > before.get(op, 0)}


def _groups(ranks: Sequence[_Rank], way: str) -> tuple[list[Group], dict[str, float]]:
    members: dict[int, list[tuple[_Rank, Slot]]] = {}
    for rank in ranks:
        for slot in rank.ledger.slots:
            if rank.handed[slot.index]:
                members.setdefault(slot.key, []).append((rank, slot))
    found: dict[tuple[str, int], Group] = {}
    across: defaultdict[str, float] = defaultdict(float)
    for of_key in members.values():
        slot = of_key[0][1]
        group = found.setdefault((slot.label, slot.size), Group(slot.label, slot.size, slot.pairwise))
        group.ranks += len(of_key)
        for rank, of_rank in of_key:
            for op, size in rank.handed[of_rank.index].items():
                group.handed[op] = group.handed.get(op, 0.0) + size / rank.steps
        add = _add_messages if slot.pairwise else _add_collectives
        for node, size in add(group, of_key, way).items():
            across[node] += size
    for group in found.values():
        group.handed = {op: size / group.ranks for op, size in group.handed.items()}
    return sorted(found.values(), key=lambda group: -group.wire), dict(across)


def _add_collectives(group: Group, members: Sequence[tuple[_Rank, Slot]], way: str) -> dict[str, float]:
    """Adds the collectives of a group. Members without a ledger here are assumed to be on other nodes."""
    of_node: Counter[str] = Counter()
    handed: defaultdict[str, float] = defaultdict(float)
    for rank, slot in members:
        of_node[rank.ledger.node] += 1
        for op, size in rank.handed[slot.index].items():
            handed[op] += size / rank.steps
    seen = sum(of_node.values())
    counts = [*of_node.values(), *([group.size - seen] if group.size > seen else [])]
    across: dict[str, float] = {}
    for op, size in handed.items():
        if op not in OPS:  # in a gather or scatter, a rank knows its own part only
            continue
        for node, moved in zip(of_node, sent(way, op, size / seen, counts), strict=False):
            group.inside += moved.inside
            group.across += moved.across
            across[node] = across.get(node, 0.0) + moved.across
    return across


def _add_messages(group: Group, members: Sequence[tuple[_Rank, Slot]], way: str) -> dict[str, float]:
    """Adds the messages of a group, counted at their senders.

    The receiving node is known if all ranks of the group are on one node, or each is on a separate node.
    """
    sizes = {rank.ledger.node: 0.0 for rank, _ in members}
    for rank, slot in members:
        sizes[rank.ledger.node] += rank.handed[slot.index].get("send", 0) / rank.steps
    size = sum(sizes.values())
    if len(sizes) == len(members):
        group.across += size
        return sizes
    if len(sizes) == 1 and len(members) == group.size:
        group.inside += size
    else:
        group.unknown += size
    return {}

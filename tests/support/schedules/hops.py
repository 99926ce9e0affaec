"""Looking through without a place that knows everything: each rank hands on, once a block, who made it late.

With the exchange of a block, rank r puts one *mix* per group into its own word: the shares, by family, of what
made it late there, as far as it knows. It computes the mix as the chain of `whyidle.verdict.lookthrough` does, one hop:

    mix(r, g) = own shares of r's lateness in g
              + for each group h in which r's waits made it late: its waits in h, shared out as there, where a wait
                behind rank q counts as the newest mix(q, h) that r has received.

A mix that was never received counts as `straggler` (or `pipeline`). A wait behind q in block b is charged by q's mix of
block b. With one hop a block, that mix knows from other groups only what was true in the blocks before: exact for
steady faults after as many blocks as the chain has links, wrong where late ranks take turns. With ``rounds`` hops for
the same block it is right for both. This takes no further exchange: a rank keeps the last ``rounds`` blocks open, puts
one word for each of them into every exchange, and charges a block when its last word has come, ``rounds`` blocks later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from whyidle.verdict.lookthrough import LATE_BY, Group, GroupWaits, Members, RankWaits, conclude, followed

from .exchange import measure, split_block
from .replay import Replay

Mix = Mapping[str, float]
MIX_FAMILIES = ("storage", "cpu", "host", "straggler", "network", "pipeline", "communication", "unattributed", "lost")
STEPS_OF_SHARE = 127
"""A word has 63 bits for nine shares."""


def pack_mix(mix: Mix) -> int:
    """A mix in one word of seven bits a family."""
    word = 0
    for family in MIX_FAMILIES:
        word = word << 7 | round(mix.get(family, 0.0) * STEPS_OF_SHARE)
    return word


def read_mix(word: int) -> Mix:
    shares = {}
    for family in reversed(MIX_FAMILIES):
        shares[family] = float(word & 127)
        word >>= 7
    total = sum(shares.values()) or 1.0
    return {family: share / total for family, share in shares.items() if share}


def unknown(group: Group) -> Mix:
    return {"pipeline" if group.p2p else "straggler": 1.0}


def one_hop(rank: RankWaits, waits: GroupWaits, heard: Mapping[tuple[int, Group], Mix], members: Members) -> Mix:
    """The mix of a rank in a group, from what it has received from others."""
    mix: dict[str, float] = {}
    for family, weight in waits.late_own.items():
        add(mix, {LATE_BY.get(family, family): 1.0}, weight)
    add(mix, unknown(waits.group), waits.late_unexplained)
    there = {other.group: other for other in rank.groups}
    for group, weight in waits.late_elsewhere.items():
        if group not in there:
            add(mix, unknown(waits.group), weight)
            continue
        for target, share in followed(rank.rank, waits.group, there[group], weight, members):
            if isinstance(target, int):
                add(mix, heard.get((target, group), unknown(group)), share)
            else:
                add(mix, {target.family: 1.0}, share)
    total = sum(mix.values())
    if total <= 0:
        return {"pipeline": 1.0} if any(weight > 0 for weight in waits.late_elsewhere.values()) else {}
    return {family: share / total for family, share in mix.items()}


def add(total: dict[str, float], mix: Mix, weight: float) -> None:
    for family, share in mix.items():
        if share * weight > 0:
            total[family] = total.get(family, 0.0) + share * weight


def live(blocks: Iterable[list[RankWaits]], rounds: int = 1) -> list[dict[str, float]]:
    """Seconds by family that the counters of all ranks show in total, for each block of steps.

    ``blocks``: what the ranks add to their ledgers with each block. ``rounds``: how often mixes are handed on with one
    block; 1 means together with the block's own words.
    """
    heard: dict[tuple[int, Group], Mix] = {}
    shown = []
    for ledgers in blocks:
        members = Members(ledgers)
        for _ in range(rounds):
            said = {}
            for rank in ledgers:
                for waits in rank.groups:
                    mix = one_hop(rank, waits, heard, members)
                    if mix:
                        said[rank.rank, waits.group] = read_mix(pack_mix(mix))
            heard |= said
        charged: dict[str, float] = {}
        for rank in ledgers:
            add(charged, rank.own, 1.0)
            for waits in rank.groups:
                network = waits.network + waits.latency
                behind = members.behind(rank.rank, waits)
                bubble = waits.bubble + sum(waits.behind.values()) - sum(behind.values())
                add(charged, {"network": network, "pipeline": bubble, "communication": waits.unsplit}, 1.0)
                for late, spent in behind.items():
                    add(charged, heard.get((late, waits.group), unknown(waits.group)), spent)
        shown.append(charged)
    return shown


def blocks_of(replay: Replay, steps: int) -> list[list[RankWaits]]:
    """A run in blocks of this many steps."""
    members = measure(replay)
    return [
        split_block(replay.case, [member.block(slice(begin, begin + steps)) for member in members])
        for begin in range(0, replay.case.steps, steps)
    ]


def errors(replay: Replay, steps: int, several: Iterable[int]) -> dict[int, list[float]]:
    """For each of several numbers of rounds, by block: the largest error of any family against the exact chain, in
    points of the block's wall time."""
    blocks = blocks_of(replay, steps)
    exact = [conclude(ledgers).seconds for ledgers in blocks]
    return {rounds: [*map(_error, live(blocks, rounds), exact)] for rounds in several}


def _error(shown: Mapping[str, float], exact: Mapping[str, float]) -> float:
    off = max(abs(shown.get(family, 0.0) - exact.get(family, 0.0)) for family in {*shown, *exact})
    return 100 * off / sum(exact.values())

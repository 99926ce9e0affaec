"""What a verdict says of links, for people and as JSON. Pure functions.

A link is named only if transfers take a good part of the time. Where waits could not be split, nobody knows that they
are transfers, so a link is named only if something is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from .accounts import RunAccount
from .case import VERDICT_SHARE, Case
from .ends import listed, named
from .links import Carrier, Spare, carriers
from .shortage import CROWDED, TRANSFERS

NOTHING = 0.01
"""A link that carries less than this part of the bytes of the link in use `carries nothing`."""
SHAPERS: dict[str, str] = {"": "something", "police": "a policer"}
"""What limits a link, if its name is not clear."""
INSIDE: dict[str, str] = {"lo": "the loopback interface", "local": "shared memory, NVLink or PCIe"}
"""Link inside a node -> what to call it."""
MISSING: dict[str, str] = {
    "NCCL_IB_DISABLE": "NCCL_IB_DISABLE is set",
    "NCCL_NET": "NCCL_NET chooses another transport",
    "NCCL_IB_HCA": "no active port fits NCCL_IB_HCA",
    "devices": "/dev/infiniband is not in the container",
    "memlock": "the limit of locked memory is too low",
    "libibverbs": "libibverbs is not installed",
    "port": "no port is up",
    "gpudirect": "no kernel module lets the adapter read the GPU's memory",
    "backend": "the backend of the process group cannot use it",
}
"""Name in RDMA_MISSING -> why RDMA is not used."""
_UNITS: dict[str, float] = {"Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3}


def told(case: Case) -> list[Carrier]:
    """The links that a verdict names, the one with most time first."""
    network, unsplit = (case.totals[family] for family in ("network", "communication"))
    if network + unsplit < VERDICT_SHARE * case.window:
        return []
    found = carriers(case.account)
    return found if network >= VERDICT_SHARE * case.window else [one for one in found if one.troubled]


def reason(case: Case, otherwise: str) -> str:
    """The part of a headline on transfers. ``otherwise``: what to say if nothing is known of their link."""
    found = told(case)
    if not found:
        return otherwise
    first = found[0]
    said = text_of(first, case.account)
    if len(found) > 1:
        said = f"{groups_text(first)}: {said}"
    if first.rdma_missing and any(rank.newest.device != "cpu" for rank in case.account.ranks):
        said = f"{said}; {rdma_text(first)}"
    return f"{said}; {CROWDED.removeprefix(f'{TRANSFERS}, and ')}" if otherwise == CROWDED else said


def sentences(case: Case) -> Iterator[str]:
    """The evidence."""
    found = told(case)
    for place, one in enumerate(found):
        if case.family != "network" or place:
            who = f"transfers, {_percent(one.share)} of the time" if len(found) == 1 else groups_text(one)
            yield f"{who}: {text_of(one, case.account)}"
        if details := _details(one):
            yield f"{link_text(one, case.account)}: {', '.join(details)}"
    for one in found:
        if one.rdma_missing:
            yield rdma_text(one)
            return


def text_of(one: Carrier, account: RunAccount) -> str:
    """Such as `0.19 Gbit/s over eth0, which tbf limits to 0.2; eth1 (10 Gbit/s) carries nothing`."""
    parts = [_rate(one, account), *_troubles(one)]
    if one.apart:
        parts.insert(1, _others(one, account))
    if one.spare and not (one.apart and {*one.spare.names.values()} == {*one.others}):
        parts.append(spare_text(one.spare))
    return "; ".join(parts)


def _rate(one: Carrier, account: RunAccount) -> str:
    said = f"{rate_text(one.rate) if one.rate else f'{TRANSFERS},'} over {link_text(one, account)}"
    if one.limit:
        by = SHAPERS.get(one.limited_by or "", one.limited_by)
        return f"{said}, which {by} limits to {rate_text(one.limit, one.rate)}"
    if one.speed and one.at_limit:
        return f"{said}, whose speed is {rate_text(one.speed)}"
    return f"{said} ({rate_text(one.speed)})" if one.speed else said


def link_text(one: Carrier, account: RunAccount) -> str:
    """`eth0`; or `eth0 on node-3` and `eth0 of rank 3` if only these have a slow one."""
    link = listed([INSIDE.get(name, name) for name in one.names] if one.kind == "node" else [*one.names])
    if not one.apart:
        return link
    nodes = {rank.newest.node for rank in account.ranks if rank.rank in one.ranks}
    theirs = [rank.rank for rank in account.ranks if rank.newest.node in nodes]
    alone = nodes != {rank.newest.node for rank in account.ranks} and theirs == [*one.ranks] and all(nodes)
    return f"{link} on {listed(sorted(nodes))}" if alone else f"{link} of {named([*one.ranks])}"


def _others(one: Carrier, account: RunAccount) -> str:
    several = len(account.ranks) - len(one.ranks) > 1
    rate = rate_text(one.others_capacity)
    if one.others == one.names:
        return f"that of the other rank{'s' if several else ''} has {rate}"
    return f"the other rank{'s use' if several else ' uses'} {listed([*one.others])} ({rate})"


def _troubles(one: Carrier) -> list[str]:
    found = [f"its MTU is {one.mtu}"] if one.small_packets else []
    if one.lossy and one.resent:
        found.append(f"{_percent(one.resent)} of the segments were sent again")
    if one.others_share:
        found.append(f"{_percent(one.others_share)} of what it carries is not the run's")
    return found + [f"{what} was full in {_percent(share)} of the time" for what, share in one.full]


def spare_text(spare: Spare) -> str:
    names = sorted({*spare.names.values()})
    carry = "carries" if len(names) == 1 else "carry"
    return f"{listed(names)} ({rate_text(spare.capacity)}) {carry} {'nothing' if spare.carries < NOTHING else 'little'}"


def rdma_text(one: Carrier) -> str:
    unused = "GPUDirect" if one.kind == "rdma" else "RDMA"
    return f"{unused} is not used: {listed([MISSING[name] for name in one.rdma_missing])}"


def groups_text(one: Carrier) -> str:
    """`the group dp`; groups without a name are called by their size."""
    names = [f"of {name}" if name[0].isdigit() else name for name in one.groups]
    return f"the group{'s' if len(names) > 1 else ''} {listed(names)}"


def _details(one: Carrier) -> list[str]:
    """What the headline leaves out."""
    found = []
    if one.best and one.best > (one.rate or 0.0):
        found.append(f"at best {rate_text(one.best)} over some seconds")
    if one.limit and one.speed and one.speed > one.limit:
        found.append(f"its speed without the limit is {rate_text(one.speed)}")
    if one.round_trip:
        least = f" (at least {1e3 * one.least_round_trip:.2g})" if one.least_round_trip else ""
        found.append(f"a round trip takes {1e3 * one.round_trip:.2g} ms{least}")
    return found


def rate_text(bits: float, beside: float | None = None) -> str:
    """Such as `0.19 Gbit/s`; without the unit if it is near ``beside``, which was just said."""
    unit = _unit(beside or bits)
    if bits >= 1000 * _UNITS[unit]:
        beside, unit = None, _unit(bits)
    number = bits / _UNITS[unit]
    said = f"{number:.0f}" if number >= 9.95 else f"{number:.2g}"
    return said if beside else f"{said} {unit}"


def _unit(bits: float) -> str:
    return next((unit for unit, size in _UNITS.items() if bits >= size / 10), "kbit/s")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0095 else f"{100 * share:.1f} %"


def entries(case: Case) -> list[dict[str, object]]:
    """The same as JSON."""
    found = []
    for one in told(case):
        entry = asdict(one)
        del entry["keys"]
        if one.spare:
            entry["spare"] = asdict(one.spare) | {"names": sorted({*one.spare.names.values()})}
        entry["at_limit"] = one.at_limit if one.capacity and one.reached else None
        found.append(entry)
    return found

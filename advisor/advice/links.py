"""Advice on the link that carries the transfers: another interface, a limit on it, or RDMA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

from ...ledger.links import RDMA_MISSING
from ...verdict.ends import listed, named
from ...verdict.link_words import groups_text, link_text, rate_text, rdma_text, text_of
from ...verdict.links import FASTER, REACHED, Carrier, Spare, capacity_of, carriers
from ..whatif.changes import Changes
from .case import Case
from .gains import formula, percent
from .rule import FLOOR, NOT, Found, Gain, Rule

SLOW_TCP = 2.5e9
"""Bits a second. Below this, TCP fills a link. Beyond it, the CPU may be the limit: between two ranks of gloo over a
veth pair of 10 Gbit/s, on two busy cores, it moved 3.3 to 4.3 Gbit/s."""
SLOW_RDMA = 0.5
"""The part of a port's speed that RDMA reaches at least, where transfers are large enough to fill the present link."""
COLD, MANY_TIMES = 1 / 3, 0.1
"""For the upper bound: between long waits, compute takes longer than it would without them (8.9 ms instead of 6.2, with
those ranks). Transfers that take less than MANY_TIMES of their time count as none: interfaces without hardware, such as
veth, claim 10 Gbit/s and may be faster."""
TODO: dict[str, str] = {
    "NCCL_IB_DISABLE": "unset NCCL_IB_DISABLE",
    "NCCL_NET": "unset NCCL_NET",
    "NCCL_IB_HCA": "name an active port in NCCL_IB_HCA, or unset it",
    "devices": "give the container /dev/infiniband (Docker: --device=/dev/infiniband; Kubernetes: a device plugin)",
    "memlock": "raise the limit of locked memory (ulimit -l unlimited; Docker: --ulimit memlock=-1)",
    "libibverbs": "install libibverbs and the provider of the adapter (the packages of rdma-core)",
    "port": "bring a port of the adapter up (cable, switch, subnet manager)",
    "gpudirect": "load the kernel module nvidia_peermem, so that the adapter reads the GPU's memory",
    "backend": "use the backend nccl for these process groups",
}
"""Name in RDMA_MISSING -> what to do."""


def _wrong_link(case: Case) -> Found | None:
    if case.share("network") < FLOOR:
        return None
    known = carriers(case.account)
    found = next((one for one in known if one.spare is not None), None)
    if found is None or found.spare is None:
        return None
    spare = found.spare
    slow = min(REACHED * spare.capacity, max(SLOW_TCP, found.reached))
    # Ranks whose link is fast keep it.
    ranks = [*found.ranks] if found.apart and {*spare.names.values()} <= {*found.others} else sorted(spare.names)
    variables = _variables(case, spare, ranks)
    names = sorted({spare.names[rank] for rank in ranks})
    whose = f" of {groups_text(found)}" if len(known) > 1 else ""
    where = "" if len(ranks) == len(spare.names) else f" for {named(ranks)}"
    return Found(
        f"Let the transfers{whose} use {listed(names)}: set {_said(case, spare, ranks, variables)}{where}",
        _gain(case, found, spare.capacity, slow),
        (f"all ranks wait {percent(case.share('network'))} of the time for transfers: {text_of(found, case.account)}",),
        dict.fromkeys(variables, names[0]) if len(names) == 1 and spare.kind == "tcp" else {},
    )


_LISTS = {"htb": "class", "hfsc": "class", "police": "filter"}
"""What limits an interface -> what `tc` calls it, if it is not the queue itself."""


def _limit(case: Case) -> Found | None:
    if case.share("network") < FLOOR:
        return None
    for one in carriers(case.account):
        speed = min(one.speed or 0, one.others_capacity or one.speed or 0)  # the others go no faster
        if one.kind == "tcp" and one.limit and one.at_limit and speed >= FASTER * one.limit:
            gain = _gain(case, one, speed, min(REACHED * speed, max(SLOW_TCP, one.reached)))
            return Found(
                f"Raise the limit of {rate_text(one.limit)} on {link_text(one, case.account)}, or remove it"
                f" (`tc {_LISTS.get(one.limited_by or '', 'qdisc')} show` lists it)",
                replace(gain, least=0.0),  # nobody knows what is behind the limit: interfaces may claim any speed
                (
                    f"all ranks wait {percent(case.share('network'))} of the time for transfers:"
                    f" {text_of(one, case.account)}",
                ),
            )
    return None


def _variables(case: Case, spare: Spare, ranks: Sequence[int]) -> list[str]:
    """The variables that choose the link, by the backend: gloo on CPU ranks, NCCL on CUDA, and otherwise perhaps
    either."""
    backend = 1 << RDMA_MISSING.index("backend")
    chosen = [rank.newest for rank in case.ranks if rank.rank in ranks]
    if spare.kind == "rdma":
        return ["NCCL_IB_HCA"]
    if all(one.device == "cpu" or one.words["rdma_missing"][0] & backend for one in chosen):
        return ["GLOO_SOCKET_IFNAME"]
    if all(one.device.startswith("cuda") for one in chosen):
        return ["NCCL_SOCKET_IFNAME"]
    return ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]


def _said(case: Case, spare: Spare, ranks: Sequence[int], variables: Sequence[str]) -> str:
    """`GLOO_SOCKET_IFNAME=eth1`; by node if the names differ."""
    nodes: dict[str, list[str]] = {}
    for rank in case.ranks:
        if rank.rank in ranks:
            name = spare.names[rank.rank].replace("/", ":") if spare.kind == "rdma" else spare.names[rank.rank]
            where = nodes.setdefault(name, [])
            if rank.newest.node not in where:
                where.append(rank.newest.node)
    return " and ".join(
        f"{variable}={name}{f' on {listed(where)}' if len(nodes) > 1 else ''}"
        for variable in variables
        for name, where in nodes.items()
    )


def _gain(case: Case, now: Carrier, capacity: int, slow: float) -> Gain:
    """``capacity``: of the other link. ``slow``: what is reached over it at least. All rates are in bits a second."""
    fastest, usual, slowest = (now.reached / rate for rate in (capacity, sqrt(capacity * slow), slow))
    known = now.at_limit  # otherwise it is not known that the link is what takes the time
    found = case.predict(Changes(network=usual, groups=now.keys))
    if found is None or case.basis is None:
        network = case.share("network")
        return formula(network * (1 - usual), network * (1 - slowest) if known else 0.0, network * (1 - fastest))
    least = case.saves(Changes(network=slowest, groups=now.keys, queued=True))
    ranks = case.basis.trace.ranks
    whole = sum(step.wall for rank in ranks for step in rank.steps)
    calls = [(rank.slots[call.slot].key, call.ns) for rank in ranks for step in rank.steps for call in step.calls]
    waited = sum(ns for key, ns in calls if key in (now.keys or (key,))) / whole
    own = 1 - sum(ns for _, ns in calls) / whole
    most = waited * (1 - (fastest if fastest > MANY_TIMES else 0.0)) + COLD * own
    return Gain(found.share, max(0.0, min(found.low, least)) if known else 0.0, max(found.high, most), "replay")


def _rdma(case: Case) -> Found | None:
    if case.share("network") < FLOOR or not case.accelerated:
        return None
    found = next((one for one in carriers(case.account) if one.rdma_missing and one.kind == "tcp"), None)
    capacity = _port(case, found) if found else 0
    if found is None or not 0 < found.reached < capacity:
        return None
    return Found(
        f"Let the transfers use RDMA: {listed([TODO[name] for name in found.rdma_missing])}",
        _gain(case, found, capacity, max(found.reached, SLOW_RDMA * capacity)),
        (
            f"all ranks wait {percent(case.share('network'))} of the time for transfers:"
            f" {text_of(found, case.account)}",
            rdma_text(found),
        ),
    )


def _port(case: Case, now: Carrier) -> int:
    """The rate of an RDMA port that each of these ranks has; 0: not known."""
    ranks = [rank for rank in case.ranks if rank.rank in now.ranks]
    ports = [
        max((capacity_of(one.newest) for one in rank.links.values() if one.newest.kind == "rdma"), default=0)
        for rank in ranks
    ]
    return min(ports, default=0)


RULES: tuple[Rule, ...] = (
    Rule(
        "network.link",
        ("network",),
        "All ranks wait for transfers over a link that is at its limit, loses packets or has an unknown speed. Another"
        " interface is up on every node of the run, is at least twice as fast, and carries less than a tenth of the"
        " bytes",
        "Use that interface: `GLOO_SOCKET_IFNAME` or `NCCL_SOCKET_IFNAME`",
        "Replay with transfers that take (rate now / rate over the other link) of their time. That rate is at most the"
        " speed of the link. It is at least 85 % of that or 2.5 Gbit/s, because beyond this TCP may lack CPU time. The"
        " prediction uses the geometric mean of both. Lower bound: the lower rate, or 0 if the link in use is not at"
        " its limit. Upper bound: all waits for other ranks shrink like that, and compute takes 2/3 of its time",
        "`network` falls, and the verdict names the other link",
        _wrong_link,
    ),
    Rule(
        "network.limit",
        ("network",),
        "All ranks wait for transfers over an interface that is at the limit of a shaper or policer on its node. Its"
        " speed is at least twice that limit",
        "Raise the limit, or remove it",
        "Replay with transfers that take (rate now / rate without the limit) of their time. Rates and bounds: as for"
        " `network.link`, with the speed of this interface. Lower bound: 0",
        "`network` falls, and the verdict names no limit",
        _limit,
    ),
    Rule(
        "network.rdma",
        ("network",),
        "GPUs wait for transfers over TCP. Their nodes have RDMA adapters, and it is known why NCCL does not use them",
        "Let NCCL use RDMA: the rule names what is missing",
        "Replay with transfers that take (rate now / rate of the port) of their time, at half to all of the port's"
        " rate. Bounds: as for `network.link`",
        "`network` falls, and `whyidle_rdma_transmit_bytes_total` grows",
        _rdma,
        f"{NOT}needs RDMA adapters",
    ),
)
FIRST = ("network.link", "network.limit", "network.rdma")
"""The other rules on transfers come after these, because they only make less use of the slow link."""

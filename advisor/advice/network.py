"""Advice on transfers between ranks: how often, in which sizes, and over which links."""

from __future__ import annotations

from math import ceil

from ...ledger.causes import WAIT_CAUSES
from ...ledger.programs import ACCUMULATION
from ...verdict.links import carriers
from ...verdict.where import makes_groups
from ..whatif.changes import Changes
from ..whatif.predict import Basis
from .case import Case
from .gains import formula, percent, replayed
from .options import named, runs_the_loop
from .rule import FLOOR, Found, Gain, Rule

LEFT = 0.1
"""The advised number of batches to accumulate makes transfers take at most this share of the time."""
MOST_ACCUMULATED = 8
LEAST_GRADIENTS = 64_000
"""Fewer bytes a step are losses and metrics, unless DistributedDataParallel or FSDP is known to reduce gradients."""
DEFAULT_BUCKET = 25 << 20
"""The default of DistributedDataParallel's bucket_cap_mb, in bytes. Its first bucket has 1 MiB."""
BUCKETS = 8
LEAST_BUCKET = 1 << 20
BACKWARD = 2 / 3
"""The share of compute that is the backward pass, which has twice the operations of a forward pass (Kaplan et al.,
arXiv 2001.08361, section 2.1)."""
MANY_CALLS = 8
SMALL_CALL = 1 << 20
LEAST_MTU, JUMBO = 1500, 9000
_TCP_IP = 52
"""The bytes of IP and TCP headers with time stamps in a packet."""
_ETHERNET = 38
"""The bytes that Ethernet adds to a packet: preamble, header, checksum, gap."""
FSDP = ("all_gather", "reduce_scatter")
ACTIVATIONS = ("tensor", "sequence", "expert")
"""Dimensions whose groups exchange activations. Each depends on the one before, in each forward and backward pass."""


def _reduces(case: Case) -> float:
    """The bytes of gradients that a rank reduces in a step; 0 if these are not most of its traffic."""
    size = case.bytes("all_reduce", besides=ACTIVATIONS).get("all_reduce", 0.0)
    return size if 2 * size > sum(case.bytes().values()) else 0.0


def _no_sync(case: Case) -> Found | None:
    """The backward passes of a step that reduce gradients, although later passes add to them."""
    network, size = case.share("network"), _reduces(case)
    backwards, reduced, again = (case.a_step(word) for word in ("backwards", "reduced", "reduced_again"))
    # If gradients are set to zero instead of removed, it looks as if they were kept from one step to the next.
    again = min(again, reduced - 1)
    if network < FLOOR or not size or case.pipeline or again < 0.5:
        return None
    left = 1 - again / reduced
    return Found(
        f"Run {again:.0f} of the {backwards:.0f} forward and backward passes of a step in no_sync(). The batch that the"
        " optimizer sees stays the same",
        replayed(case, Changes(network=left)) or formula(network * (1 - left)),
        (
            f"a step has {backwards:.0f} backward passes, and {reduced:.0f} of them reduce gradients,"
            f" {_size(size / reduced)} each time. All ranks wait {percent(network)} of the time for these transfers",
        ),
        {"no_sync_batches": round(again)},
    )


def _accumulation(case: Case) -> Found | None:
    network, size = case.share("network") + (case.basis.trace.late_ends if case.basis else 0.0), _reduces(case)
    if network <= LEFT or not size or case.pipeline or _no_sync(case) is not None:
        return None
    if makes_groups(case.ranks):
        return None  # where groups come and go, their threads slow down the transfers
    if size < LEAST_GRADIENTS and not _parallel(case):
        return None
    # If k times as many batches share one transfer, it takes the share n / (n + k (1 - n)) of the time.
    before = _accumulated(case)
    steps = min(MOST_ACCUMULATED, before * ceil(network * (1 - LEFT) / (LEFT * (1 - network))))
    if steps <= before:
        return None
    left = before / steps
    gain = replayed(case, Changes(network=left)) or formula(network * (1 - left))
    return Found(
        _accumulate(case, steps, before),
        gain,
        (f"all ranks wait {percent(network)} of the time for the transfer of {_size(size)} a step",),
        {"accumulation_steps": steps},
    )


def _accumulate(case: Case, steps: int, before: int) -> str:
    """A framework that accumulates leaves out the all-reduces by itself."""
    more = f"{steps} batches" if before == 1 else f"{steps} batches instead of {before}"
    name = named(case, ACCUMULATION)
    if name is not None:
        return f"Set {name.to(steps)}: accumulate the gradients of {more}"
    once = "with no_sync() in all but the last" if _parallel(case) else "and reduce them after the last one only"
    return f"Accumulate the gradients of {more}, {once}"


def _parallel(case: Case) -> bool:
    """Whether DistributedDataParallel or FSDP is known to reduce gradients."""
    return bool(case.a_step("reduced") or case.bytes("reduce_scatter"))


def _accumulated(case: Case) -> int:
    """How many batches share one all-reduce now. 1 if each backward pass of a step may have its own."""
    backwards = round(case.a_step("backwards"))
    # If fewer all-reduces than backward passes are in a step, some passes do not reduce. Without those that DDP is
    # known to make, they may include others, such as one of the loss or of a metric.
    reduced = case.a_step("reduced") or case.calls("all_reduce")
    return backwards if backwards and reduced <= backwards - 0.5 else 1


def _buckets(case: Case) -> Found | None:
    network, reduced = case.share("network"), max(1.0, case.a_step("reduced"))
    size = _reduces(case) / reduced  # of one backward pass
    ddp = all(rank.newest.words["reduced"][0] for rank in case.ranks)
    if network < FLOOR or not ddp or not 2 * LEAST_BUCKET <= size <= DEFAULT_BUCKET or _no_sync(case) is not None:
        return None
    cap = max(LEAST_BUCKET, size / BUCKETS)
    buckets = max(2, round(size / cap))
    behind = BACKWARD * (case.share("compute", "compute_queue", "host_blocked"))
    exposed = case.share("network", "collective_queue")
    saved = (1 - 1 / buckets) * min(exposed, behind)
    return Found(
        f"Set bucket_cap_mb={cap / (1 << 20):.2g} in DistributedDataParallel (25 unless you have set it)",
        formula(saved, 0.0, max(saved, exposed)),
        (
            f"all ranks wait {percent(network)} of the time for the transfer of {_size(size)} of gradients, which are"
            " one bucket unless its size is set: nearly all of it begins after the backward pass",
        ),
        {"bucket_cap_mb": round(cap / (1 << 20), 2)},
    )


def _coalesce(case: Case) -> Found | None:
    """Small transfers are mostly latency, and in each call the ranks may have to wait for a late rank.

    A framework that has the loop makes its collectives itself: no setting puts them together."""
    if case.basis is None or case.share("network") < FLOOR or case.pipeline or runs_the_loop(case):
        return None
    calls, ddp = case.calls(), case.a_step("reduced")
    size = sum(case.bytes().values())
    if calls - ddp < MANY_CALLS or size / calls > SMALL_CALL:
        return None
    if 2 * sum(case.bytes(besides=ACTIVATIONS).values()) < sum(case.bytes().values()):
        return None
    fewer = max(1, ceil(size / DEFAULT_BUCKET)) + round(ddp)
    saved = (1 - fewer / calls) * _but_the_longest(case.basis)
    how = "flatten the tensors" if _parallel(case) else "flatten the tensors, or use DistributedDataParallel"
    return Found(
        f"Put the {calls:.0f} collectives of a step together into {fewer}: {how}",
        formula(saved, 0.0, max(saved, case.share(*WAIT_CAUSES))),
        (f"a step has {calls:.0f} collectives of {_size(size / calls)}, and ranks wait for each of them",),
        {"collectives": fewer},
    )


def _but_the_longest(basis: Basis) -> float:
    """The share of time that ranks wait in collectives, without the longest wait of each step, which one late rank or
    one transfer would cost in any case."""
    waited = 0
    for one in basis.trace.ranks:
        for step in one.steps:
            waits = [call.ns for call in step.calls]
            waited += sum(waits) - max(waits, default=0)
    return waited / len(basis.trace.ranks) / sum(basis.walls)


def _hierarchy(case: Case) -> Found | None:
    """In a ring over all ranks, a node sends (ranks − 1)/ranks of the bytes of each gather and scatter to the next
    node. With hybrid sharding only the gradients cross nodes, in all-reduces that send 2(nodes − 1)/nodes of them."""
    ranks, nodes = len(case.ranks), case.nodes
    sizes = case.bytes(larger_than=ranks / nodes)  # those of smaller groups may stay inside a node
    gathered, scattered = (sizes.get(op, 0.0) for op in FSDP)
    sharded, network = gathered + scattered, case.share("network")
    if nodes < 2 or ranks <= nodes or network < FLOOR or not sharded or 2 * sharded < sum(sizes.values()):
        return None
    before, after = sharded * (ranks - 1) / ranks, scattered * 2 * (nodes - 1) / nodes
    if after >= before:
        return None
    return Found(
        "Shard inside each node and replicate across nodes (hybrid sharding: a two-dimensional mesh for fully_shard)",
        formula(network * (1 - after / before), 0.0, network),
        (
            f"all ranks wait {percent(network)} of the time for transfers, and {_size(sharded)} a step are gathered or"
            f" scattered across {nodes} nodes; each node would send {percent(1 - after / before)} less",
        ),
    )


def _jumbo(case: Case) -> Found | None:
    network = case.share("network")
    small = {name: mtu for name, mtu in case.counters.mtu.items() if LEAST_MTU <= mtu < JUMBO}
    small |= {name: one.mtu for one in carriers(case.account) if one.mtu and one.small_packets for name in one.names}
    if network < FLOOR or not small:
        return None
    name, mtu = min(small.items(), key=lambda entry: entry[1])
    shorter = _overhead(JUMBO) / _overhead(mtu)
    gain = replayed(case, Changes(network=shorter)) or formula(network * (1 - shorter))
    return Found(
        f"Set an MTU of {JUMBO} on {name} and on the switches between the nodes",
        Gain(gain.share, 0.0, 1 - shorter, gain.how),
        (f"all ranks wait {percent(network)} of the time for transfers over TCP, in packets of {mtu} bytes",),
        {"mtu": JUMBO},
    )


def _overhead(mtu: int) -> float:
    """The bytes on the wire for each byte of payload."""
    return (mtu + _ETHERNET) / (mtu - _TCP_IP)


def _size(size: float) -> str:
    return f"{size / 1e6:.3g} MB" if size >= 1e5 else f"{size / 1e3:.3g} kB"


RULES: tuple[Rule, ...] = (
    Rule(
        "network.no_sync",
        ("network",),
        "DistributedDataParallel reduces gradients in several backward passes of a step, and adds to gradients that it"
        " has reduced before",
        "Call all but the last backward pass of a step in `no_sync()`. The batch stays the same",
        "Replay with transfers that take the share of the time that belongs to the last reduction of each step",
        "`network` falls for the same number of samples",
        _no_sync,
    ),
    Rule(
        "network.accumulation",
        ("network",),
        "All ranks wait more than a tenth of the time for all-reduces that every rank has entered, and fewer than 8"
        " batches share one. They have at least 64 kB a step, or are known to reduce gradients. Not with"
        " `network.no_sync`",
        "Accumulate the gradients of more batches, at most 8, until transfers take a tenth of the time",
        "Replay with transfers that take 1/k of the time if k times as many batches share them, for the same number of"
        " batches. The batch that the optimizer sees becomes k times larger: you have to decide whether the training"
        " allows this",
        "`network` falls for the same number of samples",
        _accumulation,
    ),
    Rule(
        "network.buckets",
        ("network",),
        "All ranks wait for all-reduces that every rank has entered. DistributedDataParallel reduces 2 to 25 MiB of"
        " gradients in a backward pass, which are one bucket unless its size is set",
        "Set a bucket size that makes eight buckets",
        "(1 − 1/buckets) × the smaller of exposed transfers and backward pass. The transfers include the time in which"
        " their threads get no CPU. The backward pass is 2/3 of compute. Upper bound: all transfers",
        "`network` falls for the same number of bytes",
        _buckets,
    ),
    Rule(
        "network.coalesce",
        ("network",),
        "A step has at least 8 collectives besides those of DistributedDataParallel, outside of evaluations, rollouts"
        " and loggers. All of them have at most 1 MiB on average",
        "Merge many collectives into one",
        "(1 − calls after / calls before) × waits in collectives, without the longest wait of each step. Upper bound:"
        " all waits for other ranks",
        "`network` falls for the same number of bytes in fewer calls",
        _coalesce,
    ),
    Rule(
        "network.hierarchy",
        ("network",),
        "All ranks wait for gathers and scatters in groups that are larger than a node, and nodes have several ranks",
        "Use hybrid sharding",
        "`network` × the share of bytes that a node no longer sends. In a ring, it sends (R − 1)/R of all gathered and"
        " scattered bytes with R ranks, and then 2(N − 1)/N of the scattered bytes with N nodes. This needs more"
        " memory",
        "`network` falls",
        _hierarchy,
    ),
    Rule(
        "network.jumbo",
        ("network",),
        "All ranks wait for transfers over an interface whose MTU is from 1500 to below 9000 (read on this node), or"
        " below 1280 (read by the ranks)",
        "Use jumbo frames",
        "Replay with shorter transfers, because larger frames need fewer bytes for headers. Lower bound: 0,"
        " because the link may not be the limit. Upper bound: as if all of the time were transfers",
        "`network` falls, `whyidle_nic_mtu_bytes` is 9000",
        _jumbo,
    ),
)

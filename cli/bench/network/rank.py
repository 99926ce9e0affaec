"""What each rank does: it joins the others, measures with them, and on rank 0 makes the report."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ....advisor.bench.network.job import JobGroup, Record, groups_of, records_of, sizes_of
from ....advisor.bench.network.operations import buffer_bytes
from ....agent.files import Roots
from ....ledger.directory import Run, read_directory
from ... import choice
from ...progress import open_progress
from ...quantities import in_bytes
from ...traffic.live import newest
from . import pairwise, places, report, tools
from .collectives import Group
from .measure import CHECKS, Bench, Limits, needed_bytes
from .places import Place
from .start import BenchError, Started, first_line
from .world import World

WORLD = "world"
_MEMORY_SHARE = 0.5
"""The largest share of free memory that buffers may take."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of the ranks."""

    places: list[Place]
    ranks: list[list[int]]
    """The ranks of each node."""
    names: list[str]

    @property
    def of_rank(self) -> dict[int, int]:
        return {rank: node for node, ranks in enumerate(self.ranks) for rank in ranks}


def backend_of(args: argparse.Namespace) -> str:
    """The backend that was chosen, or the default. Raises BenchError."""
    if not dist.is_available():
        raise BenchError("this torch has no torch.distributed", 2)
    wanted: str = args.backend or ("nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo")
    if wanted == "nccl" and not (torch.cuda.is_available() and dist.is_nccl_available()):
        raise BenchError("there is no GPU here for nccl, or this torch was built without it: use --backend gloo", 2)
    return wanted


def run(args: argparse.Namespace, start: Started) -> dict[str, Any]:
    """Measures and returns the report, which is complete on rank 0 only. Raises BenchError."""
    world = World(start, backend_of(args), args.join_timeout, args.timeout)
    try:
        return _measure(args, world, start)
    except RuntimeError as error:  # outside of measurements, while ranks send each other numbers
        raise BenchError(f"another rank is gone, or cannot be reached: {first_line(error)}") from error


def _measure(args: argparse.Namespace, world: World, start: Started) -> dict[str, Any]:
    nodes = _nodes(world, start)
    ways = world.objects(_way_out(world, nodes))
    link = args.link or _slowest([ways[ranks[0]].rate for ranks in nodes.ranks] if len(nodes.ranks) > 1 else [])
    run, job = _job(args, world, nodes)
    formed, notes = _groups(job, world.size)
    wanted = _sizes(args, job)
    _refuse_too_large(world, nodes, wanted, args.dtype)
    limits = Limits(args.dtype, args.size_time, time.monotonic() + args.time, CHECKS[args.check])
    with open_progress("bench network") as progress:
        say = _saying(progress.show if world.rank == 0 else None, limits.end - time.monotonic())
        benches = [Bench(world, WORLD, Group(tuple(range(world.size))), limits, say)]
        rows = benches[0].run(wanted)
        for group in formed:
            mine = Group(*_new_groups(world, group))
            benches.append(Bench(world, group.label, mine, limits, say))
            rows += benches[-1].run(sizes_of([group], args.bucket, _largest(args)))
        pairs, measured = _pairs(args, world, nodes, link, say)
        checked = _tools(args, world, nodes, pairs)
        world.close()
    members = {group.label: [[nodes.of_rank[rank] for rank in ranks] for ranks in group.members] for group in formed}
    members[WORLD] = [[nodes.of_rank[rank] for rank in range(world.size)]]
    report.add_link_shares(rows, world.backend, members, link)
    return {
        "ranks": world.size,
        "nodes": [{"name": name, "ranks": ranks} for name, ranks in zip(nodes.names, nodes.ranks, strict=True)],
        "backend": world.backend,
        "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu",
        "dtype": args.dtype,
        "torch": torch.__version__,
        "link": {
            "bytes_per_second": link,
            "given": args.link is not None,
            "adapters": ways[0].adapters if len(nodes.ranks) > 1 else "",
        },
        "collectives": rows,
        "skipped": [size for bench in benches for size in bench.skipped],
        "pairs": measured,
        "tools": checked,
        "job": report.of_job(choice.name_of(run), job, rows) if run else None,
        "notes": notes,
    }


def _saying(show: Callable[[str, float, str], None] | None, seconds: float) -> Callable[[str, str], None]:
    begun = time.monotonic()

    def say(part: str, note: str) -> None:
        if show is not None:
            show(part, min(1.0, (time.monotonic() - begun) / seconds), note)

    return say


def _nodes(world: World, start: Started) -> Nodes:
    found: list[Place] = world.objects(places.place(os.environ, start.address, tools.installed()))
    ranks = places.nodes_of(found)
    return Nodes(found, ranks, places.labels_of(found, ranks))


def _way_out(world: World, nodes: Nodes) -> places.Way:
    """The way to the first other node, because the way from rank 0 to its own address leads through no adapter."""
    mine = nodes.of_rank[world.rank]
    for node, ranks in enumerate(nodes.ranks):
        address = nodes.places[ranks[0]].address
        if node != mine and address:
            return places.way_out(world.backend, os.environ, address, Roots())
    return places.Way("", None)


def _slowest(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return min(known) if known and len(known) == len(rates) else None


def _job(args: argparse.Namespace, world: World, nodes: Nodes) -> tuple[Run | None, list[JobGroup]]:
    """The run to compare with, and its groups, from the ledgers of all nodes. Raises BenchError."""
    if not args.run_name:
        return None, []
    chosen = choice.choose("bench network", args) if world.rank == 0 else None
    run: Run | None = world.decide(chosen.run if chosen else None)
    if run is None:
        raise BenchError("there is no run to compare with")
    mine: list[Record] = []
    if world.rank in [ranks[0] for ranks in nodes.ranks]:  # the ranks of a node share its ledgers
        ledgers = chosen.ledgers if chosen else read_directory(args.dir)[0]
        mine = records_of(newest(run, ledgers))
    records = {(one.rank, one.key): one for of_rank in world.objects(mine) for one in of_rank}
    if not records:
        raise BenchError(f"run {choice.name_of(run)} has finished no step with a collective that is measured here")
    return run, groups_of([records[key] for key in sorted(records)])


def _groups(job: Sequence[JobGroup], size: int) -> tuple[list[JobGroup], list[str]]:
    """Returns the groups of the job that are smaller than the world and can be formed here, and notes about the
    others."""
    formed, notes = [], []
    for group in job:
        ranks = sorted(rank for members in group.members for rank in members)
        if group.size == size:
            continue  # the world
        if group.complete and ranks == list(range(size)):
            formed.append(group)
        else:
            notes.append(
                f"group {group.label} of {group.size} ranks is compared with the world of {size}: to measure its own "
                "groups, start as many ranks as the job has, on its nodes"
            )
    return formed, notes


def _new_groups(world: World, group: JobGroup) -> tuple[tuple[int, ...], Any]:
    """Creates the groups on all ranks in the same order. Returns the members and the handle of this rank's group."""
    handles = {members: dist.new_group(list(members), backend=world.backend) for members in group.members}
    mine = next(members for members in handles if world.rank in members)
    return mine, handles[mine]


def _sizes(args: argparse.Namespace, job: Sequence[JobGroup]) -> dict[str, list[int]]:
    """Operation -> sizes to measure in the world: the requested ones, and those of the job's calls."""
    of_job = sizes_of(job, args.bucket, _largest(args))
    return {op: sorted({*args.sizes, *of_job.get(op, [])}) for op in args.operations}


def _largest(args: argparse.Namespace) -> int:
    """The largest size to measure. Larger calls of a job are measured at this size."""
    return max(*args.sizes, args.bucket)


def _refuse_too_large(world: World, nodes: Nodes, wanted: Mapping[str, Sequence[int]], dtype: str) -> None:
    """Raises BenchError on all ranks if one of them does not have enough memory."""
    needed = needed_bytes(wanted, world.size, dtype, buffer_bytes)
    if world.device.type == "cuda":
        free = torch.cuda.mem_get_info(world.device)[0]
    else:
        free = _available() // len(nodes.ranks[nodes.of_rank[world.rank]])
    least = -world.largest(-float(free))
    if needed > _MEMORY_SHARE * least:
        raise BenchError(
            f"the largest size needs {in_bytes(needed)} of each rank, and {in_bytes(least)} are free for one: "
            "choose smaller --sizes",
            2,
        )


def _available() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))


def _pairs(
    args: argparse.Namespace, world: World, nodes: Nodes, link: float | None, say: Callable[[str, str], None]
) -> tuple[pairwise.Pairs | None, dict[str, Any] | None]:
    """Measures pairs of the first ranks of nodes, or with a single node all pairs of ranks. Returns results and
    report."""
    if args.pairs == pairwise.NONE:
        return None, None
    if len(nodes.ranks) > 1:
        ranks, names = [of_node[0] for of_node in nodes.ranks], nodes.names
    else:
        ranks, names = list(range(world.size)), [f"rank {rank}" for rank in range(world.size)]
    found = pairwise.measure(world, ranks, args.pairs, args.pair_time / 2, args.pairs_time, say)
    return found, report.of_pairs(found, names, ranks, link)


def _tools(args: argparse.Namespace, world: World, nodes: Nodes, pairs: pairwise.Pairs | None) -> list[dict[str, Any]]:
    """Runs the installed tools between the slowest pair of nodes, or the first two nodes."""
    if args.no_tools or len(nodes.ranks) < 2:
        return []
    slowest = min(pairs.rates, key=lambda pair: min(pairs.rates[pair])) if pairs and pairs.rates else (0, 1)
    one, other = (nodes.ranks[node][0] for node in slowest)
    address = nodes.places[one].address
    if one == 0:  # its address on the way to itself differs from that on the way to other nodes
        address = world.objects(places.local_address(nodes.places[other].address))[0]
    found = []
    for tool in tools.TOOLS:
        if all(tool in nodes.places[rank].tools for rank in (one, other)):
            row = tools.measure(world, tool, one, other, address)
            found.append(row | {"from": nodes.names[slowest[1]], "to": nodes.names[slowest[0]]})
    return found


def end(status: int) -> None:
    """Ends the process at once, because torch's gloo threads sometimes abort it while the interpreter shuts down."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

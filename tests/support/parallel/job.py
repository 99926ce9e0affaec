"""The ranks of a run, each from its network namespace to its last step: `job.py SPEC PORT`.

They are forks of this process, so that they share a session, as under torchrun.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import whyidle
from parallel.cases import SHAPES
from parallel.shapes import BUILDERS, Worker
from parallel.spec import COMPUTE, RANKS, READS, Spec
from parallel.stamps import Stamps, cable_bytes
from parallel.work import BURN_SECONDS, Samples, batches

CLONE_NEWNET = 0x40000000


def enter_network(name: str) -> None:
    """Moves this thread, and those that it will start, to a network namespace; Python 3.11 has no os.setns."""
    with open(f"/run/netns/{name}") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {name}")


def prepare(spec: Spec, rank: int, port: int) -> None:
    """Gives this process the environment and the network of a rank."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(RANKS),
        MASTER_ADDR=spec.address,
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME=spec.interface,
        WHYIDLE_DIR=str(spec.ledgers),
        WHYIDLE_RUN=spec.name,
    )
    if spec.namespaces:
        enter_network(spec.namespaces[rank])


def train(spec: Spec, rank: int) -> None:
    """Trains all steps and writes this rank's log."""
    if spec.recorded:
        assert whyidle.attach()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    stamps = Stamps(rank)
    with (Path(spec.folder) / f"losses-{rank}.txt").open("w") as losses:
        try:
            _steps(spec, rank, stamps, losses)
        finally:
            whyidle.detach()  # here and not at exit, because torch takes 0.2 s there to unload its libraries
            stamps.write(spec.log(rank))
            _wait_for_all(spec, rank)


def _wait_for_all(spec: Spec, rank: int) -> None:
    """Rank 0 has the store, which a launcher keeps while any rank trains."""
    (Path(spec.folder) / f"done-{rank}").touch()
    deadline = time.monotonic() + DONE_SECONDS
    while len(list(Path(spec.folder).glob("done-*"))) < RANKS and time.monotonic() < deadline:
        time.sleep(0.01)


DONE_SECONDS = 20.0
_kept: list[object] = []


CALLS = ("all_gather_single", "reduce_scatter_single", "all_reduce", "all_to_all_single")
"""Functions that the script, or FSDP2 for it, calls by these names of torch.distributed. All of them return when they
are done."""


def stamp_calls(stamps: Stamps) -> None:
    """Records when each of CALLS starts and ends. For DTensor's all-reduces, which are awaited later, only the start.

    The shapes themselves record what DDP does inside a backward pass. Sends and receives of pipelines are not recorded.
    """
    for name in CALLS:
        setattr(dist, name, _stamped(stamps, name, getattr(dist, name), dist.group))
    functional.all_reduce = _stamped(stamps, "functional", functional.all_reduce)


def _stamped(stamps: Stamps, name: str, original: Callable[..., Any], default: Any = None) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        group = signature.bind(*args, **kwargs).arguments.get("group") or default.WORLD
        with stamps.interval("call", op=name, group=_ranks(group)):
            return original(*args, **kwargs)

    return call


def _ranks(group: Any) -> list[int]:
    """The ranks of a process group, or of the mesh dimension that DTensor passes instead."""
    found = group if isinstance(group, dist.ProcessGroup) else functional._resolve_group(group)
    found = dist.distributed_c10d._resolve_process_group(found) if isinstance(found, str) else found
    return sorted(dist.get_process_group_ranks(found))


def _steps(spec: Spec, rank: int, stamps: Stamps, losses: object) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    stamp_calls(stamps)
    shape = SHAPES[spec.shape]
    burn = BURN_SECONDS if spec.fault == COMPUTE and shape.compute == rank else 0.0
    net, step = BUILDERS[spec.shape](Worker(rank, stamps, burn))
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    slow = spec.fault == READS and shape.reads == rank
    data = batches(Samples(stamps, shape.rows, 1_000_000 * shape.reader_of(rank), slow))
    dist.barrier()  # the starts of steps can be compared, also those of the first step
    for stamps.step in range(spec.steps):
        with stamps.interval("step", bytes=cable_bytes()):
            x, y = next(data)
            loss = step(x, y)
            optimizer.step()
            optimizer.zero_grad()
        if loss is not None:
            print(loss.item().hex(), file=losses)  # type: ignore[call-overload]
    stamps.note("cable", bytes=cable_bytes())
    _kept.append(dist.distributed_c10d._get_default_store())
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
    stamps.note("end")


def _fork(spec: Spec, rank: int, port: int) -> None:
    if os.fork():
        return
    status = 1
    try:
        prepare(spec, rank, port)
        train(spec, rank)
        status = 0
    except BaseException:
        print(f"rank {rank}: {traceback.format_exc()}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)  # skip the destructors of C++: in one of about 25 runs, torch aborts in those of gloo


if __name__ == "__main__":
    for number in range(RANKS):
        _fork(Spec.load(sys.argv[1]), number, int(sys.argv[2]))
    for _ in range(RANKS):
        if os.wait()[1]:
            sys.exit(1)

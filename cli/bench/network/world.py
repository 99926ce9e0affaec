"""The ranks of a bench: how they connect, exchange numbers, and end if one of them is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .start import BenchError, Started, first_line, ranks_named

gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
_HERE, _GO = "here", "go"
_ASK_SECONDS = 0.05
_POLL_SECONDS = 50e-6


class World:
    """This rank and its connection to the others. All ranks must call each method, except `seconds` and `finish`."""

    def __init__(self, start: Started, backend: str, join_seconds: float, deadline_seconds: float):
        """Connects to the other ranks. Raises BenchError, which names ranks that are missing after ``join_seconds``.

        ``deadline_seconds``: the longest time for one collective.
        """
        self.rank, self.size, self.backend = start.rank, start.size, backend
        self.deadline_seconds = deadline_seconds
        self.device = torch.device("cpu")
        if backend == "nccl":
            self.device = torch.device("cuda", start.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        self.store = _meet(start, join_seconds)
        try:
            dist.init_process_group(
                backend,
                store=dist.PrefixStore("group", self.store),
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=deadline_seconds),
            )
            self.barrier()
        except RuntimeError as error:
            raise BenchError(f"{backend} cannot connect the ranks: {first_line(error)}") from error

    def barrier(self) -> None:
        if self.backend == "gloo":
            dist.barrier()
        else:
            self.largest(0.0)

    def largest(self, value: float) -> float:
        """The largest value of all ranks."""
        found = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        self.finish()
        return float(found.item())

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of each rank. All ranks must pass the same number of values."""
        mine = torch.tensor(values, dtype=torch.float64, device=self.device)
        found = torch.empty(self.size * len(values), dtype=torch.float64, device=self.device)
        gather(found, mine)
        self.finish()
        return [list(row) for row in found.view(self.size, len(values)).tolist()]

    def objects(self, mine: Any) -> list[Any]:
        """The objects of all ranks, in the order of ranks."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine)
        return found

    def decide(self, choice: Any) -> Any:
        """The value of rank 0."""
        found = [choice]
        dist.broadcast_object_list(found, src=0)
        return found[0]

    def seconds(self, call: Callable[[], object], calls: int) -> float:
        """The seconds that ``calls`` calls take on this rank. On a GPU, its events measure them and not the host's
        clock."""
        if self.device.type == "cpu":
            begun = time.perf_counter()
            for _ in range(calls):
                call()
            return time.perf_counter() - begun
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(calls):
            call()
        last.record()
        self._until_done(last)
        return first.elapsed_time(last) / 1000

    def finish(self) -> None:
        """Waits for the device. Raises BenchError after the deadline, because a lost peer would make it wait
        forever."""
        if self.device.type != "cpu":
            event = torch.cuda.Event()
            event.record()
            self._until_done(event)

    def _until_done(self, event: torch.cuda.Event) -> None:
        end = time.monotonic() + self.deadline_seconds
        while not event.query():
            if time.monotonic() > end:
                raise BenchError(f"a collective has not ended within {self.deadline_seconds:g} s")
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        self.barrier()
        dist.destroy_process_group()


def _meet(start: Started, seconds: float) -> dist.Store:
    """The store, after all ranks have connected. Raises BenchError on the ranks that have."""
    within = timedelta(seconds=seconds)
    try:
        store: dist.Store = dist.TCPStore(
            start.address,
            start.port,
            start.size,
            is_master=start.rank == 0 and not start.has_store,
            timeout=within,
            wait_for_workers=False,
        )
    except RuntimeError as error:
        where = f"{start.address}:{start.port}"
        if start.rank == 0 and not start.has_store:
            raise BenchError(f"rank 0 cannot listen at {where}: {first_line(error)}") from error
        raise BenchError(f"rank {start.rank} cannot reach rank 0 at {where} within {seconds:g} s") from error
    store = dist.PrefixStore("whyidle-bench", store)
    try:
        store.set(f"{_HERE}{start.rank}", "")
        if start.rank == 0:
            store.set(_GO, _missing(store, start.size, seconds))
        else:  # rank 0 may have connected last, and then it waits as long as we do
            store.set_timeout(2 * within)
        problem = store.get(_GO).decode()
    except RuntimeError as error:
        raise BenchError(f"rank {start.rank} has lost rank 0 before the start: {first_line(error)}") from error
    if problem:
        raise BenchError(problem)
    return store


def _missing(store: dist.Store, size: int, seconds: float) -> str:
    """Waits for all ranks. Returns a sentence about missing ranks; empty if all have connected."""
    absent = list(range(size))
    end = time.monotonic() + seconds
    while absent:
        absent = [rank for rank in absent if not store.check([f"{_HERE}{rank}"])]
        if absent and time.monotonic() > end:
            return f"{len(absent)} of {size} ranks have not connected within {seconds:g} s: {ranks_named(absent)}"
        if absent:
            time.sleep(_ASK_SECONDS)
    return ""

"""How often torch's allocator gave device memory back to the driver. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .accounts import RankAccount

EACH_STEP = 0.5
"""Cached memory is given back in each step if it is so in this many steps of all."""
LEAST_STEPS = 20
CAUSE_OF = "host_allocator"
EMPTIES = "torch.cuda.empty_cache() in each step: the device waits for torch's allocator"
RETRIES = "torch's allocator runs out of memory in each step and frees its cache: the device waits for it"
_GIB = 1 << 30


def empties_each_step(rank: RankAccount) -> bool:
    """Whether the program itself gives cached memory back in most steps."""
    ledger = rank.newest
    own = ledger.alloc_flushes - ledger.alloc_retries
    return ledger.alloc_steps >= LEAST_STEPS and own >= EACH_STEP * ledger.alloc_steps


def retries_each_step(rank: RankAccount) -> bool:
    """Whether the allocator itself gives cached memory back in most steps, because memory is short."""
    ledger = rank.newest
    return ledger.alloc_steps >= LEAST_STEPS and ledger.alloc_retries >= EACH_STEP * ledger.alloc_steps


def reason(ranks: Sequence[RankAccount], cause: str) -> str:
    """The reason in a headline on `host_allocator`, or on idle time in compute (`host`); empty if it is another one."""
    if any(map(empties_each_step, ranks)):
        return EMPTIES
    return RETRIES if cause != CAUSE_OF and any(map(retries_each_step, ranks)) else ""


def sentences(ranks: Sequence[RankAccount]) -> Iterator[str]:
    for rank in ranks:
        who = f"rank {rank.rank}: " if len(ranks) > 1 else ""
        ledger = rank.newest
        if empties_each_step(rank):
            yield (
                f"{who}cached device memory was given back {ledger.alloc_flushes} times in {ledger.alloc_steps} steps "
                f"(torch.cuda.empty_cache): the device was idle in it for {_share(rank)} of the time, and then the "
                "allocator has to ask the driver for memory again"
            )
        if ledger.alloc_retries:
            yield (
                f"{who}torch's allocator ran out of memory {ledger.alloc_retries} times and freed its cache "
                f"(num_alloc_retries): it had reserved {_gib(ledger.memory_reserved)} of {_gib(ledger.memory_total)}, "
                f"of which tensors took at most {_gib(ledger.memory_peak)}"
            )


def _share(rank: RankAccount) -> str:
    return f"{100 * rank.seconds[CAUSE_OF] / rank.wall:.0f} %" if rank.wall > 0 else "0 %"


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"

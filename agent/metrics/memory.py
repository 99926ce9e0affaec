"""The metrics of the collector `memory`."""

from __future__ import annotations

import os

from .metric import Metric

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _level(key: str, name: str, text: str) -> Metric:
    return Metric(f"whyidle_memory_{name}_bytes", "gauge", "bytes", (), text, f"meminfo, {key}", times=1024)


def _count(key: str, name: str, unit: str, text: str, times: int = 1) -> Metric:
    return Metric(f"whyidle_memory_{name}_total", "counter", unit, (), text, f"vmstat, {key}", times=times)


MEMINFO: dict[bytes, Metric] = {
    b"MemTotal": _level("MemTotal", "total", "Memory of the node."),
    b"MemAvailable": _level(
        "MemAvailable",
        "available",
        "Memory that is available to processes without swapping, including page cache that the kernel can free.",
    ),
    b"MemFree": _level("MemFree", "free", "Memory that is not used at all."),
    b"Cached": _level(
        "Cached",
        "cached",
        "Page cache, shared memory included. A dataset that fits into the cache is read from disk only once.",
    ),
    b"Dirty": _level("Dirty", "dirty", "Page cache that still has to be written to disk, such as a checkpoint."),
    b"Writeback": _level("Writeback", "writeback", "Page cache that is being written to disk now."),
    b"Shmem": _level(
        "Shmem",
        "shared",
        "Shared memory and tmpfs. Data loaders hand over their batches in /dev/shm, which is part of it.",
    ),
    b"AnonPages": _level("AnonPages", "anonymous", "Memory of processes that does not belong to a file."),
    b"SwapTotal": _level("SwapTotal", "swap_total", "Swap space of the node."),
    b"SwapFree": _level("SwapFree", "swap_free", "Swap space that is free."),
}
VMSTAT: dict[bytes, Metric] = {
    b"pgmajfault": _count(
        "pgmajfault",
        "major_faults",
        "faults",
        "Page faults that had to wait for a disk: reads of memory-mapped datasets, and swap.",
    ),
    b"oom_kill": _count("oom_kill", "oom_kills", "kills", "Processes that the kernel killed because memory ran out."),
    b"pswpin": _count("pswpin", "swapped_in_bytes", "bytes", "Bytes that were moved back from swap.", PAGE_BYTES),
    b"pswpout": _count("pswpout", "swapped_out_bytes", "bytes", "Bytes that were moved to swap.", PAGE_BYTES),
    b"workingset_refault_file": _count(
        "workingset_refault_file",
        "refaulted_bytes",
        "bytes",
        "Bytes of files that were read again soon after they left the page cache. If it grows, the page cache is "
        "too small.",
        PAGE_BYTES,
    ),
    b"pgscan_direct": _count(
        "pgscan_direct",
        "direct_scanned_bytes",
        "bytes",
        "Memory that allocations had to scan for free pages.",
        PAGE_BYTES,
    ),
}
STALLS = Metric(
    "whyidle_memory_allocation_stalls_total",
    "counter",
    "stalls",
    (),
    "Allocations that had to free memory first, and so waited.",
    "vmstat, allocstall_<zone>",
)

METRICS: tuple[Metric, ...] = (*MEMINFO.values(), *VMSTAT.values(), STALLS)

"""The simulated node with growing counters, so that rates, ratios of rates and mean times are numbers.

The node has many problems: the first adapter sends at its line rate, tasks stall on I/O, a container is throttled, and
a GPU reports XID 79.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from glob import glob
from pathlib import Path

from .rdma import NARROW
from .whole import Whole

N = r"(\d+)"
PER_SECOND: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    # files, the place of their counters, by how much each grows in a second
    ("proc/stat", rf"^cpu\d* +{N} {N} {N} {N} {N} ", (60, 1, 20, 10, 9)),
    ("proc/diskstats", rf"nvme0n1 {N} \d+ {N} {N} {N} \d+ {N} {N} \d+ {N} ", (900, 9000, 900, 90, 900, 90, 950)),
    ("proc/pressure/*", rf"total={N}", (300_000,)),
    ("sys/fs/cgroup/**/*.pressure", rf"total={N}", (300_000,)),
    ("sys/fs/cgroup/**/cpu.stat", rf"usage_usec {N}", (700_000,)),
    ("sys/fs/cgroup/**/cpu.stat", rf"nr_periods {N}\nnr_throttled {N}\nthrottled_usec {N}", (10, 5, 400_000)),
    ("proc/*/schedstat", rf"^{N} {N} ", (600_000_000, 300_000_000)),
    ("proc/*/io", rf"rchar: {N}\nwchar: {N}", (9_000_000, 900_000)),
    ("proc/*/io", rf"\nread_bytes: {N}\nwrite_bytes: {N}", (8_000_000, 800_000)),
    (
        "proc/1/mountstats",
        rf"(?:READ|WRITE): {N} {N} \d+ {N} {N} {N} {N} {N}",
        (50, 50, 9000, 90_000, 500, 4000, 4500),
    ),
    ("proc/1/mountstats", rf"\tbytes:\t{N} {N} 0 0 {N} {N} ", (9_000_000, 900_000, 8_000_000, 800_000)),
    ("proc/1/mountstats", rf"xprt:\ttcp \d+ \d+ \d+ \d+ \d+ {N} {N} \d+ {N} {N} ", (60, 60, 900, 90)),
    ("sys/kernel/debug/lustre/llite/*/stats", rf"_bytes +{N} samples \[bytes\] \d+ \d+ {N} ", (50, 9_000_000)),
    ("sys/kernel/debug/lustre/llite/*/stats", rf"(?:read|write) +{N} samples \[usecs\] \d+ \d+ {N} ", (50, 400_000)),
    ("proc/1/net/dev", rf": *{N} +{N} +\d+ +\d+ +\d+ +\d+ +\d+ +\d+ +{N} +{N} ", (9_000_000, 9000, 8_000_000, 8000)),
    ("proc/1/net/snmp", rf" 213 {N} {N} {N} ", (9000, 8000, 200)),
)
"""Pressure and throttling are in microseconds, schedstat in nanoseconds, the CPU's time in ticks of 10 ms."""

SENT = 12_000_000_000
"""Words of four bytes that the first adapter sends in a second: nearly 400 Gbit."""

XID_FIRST, XID_EVERY = 10, 30
"""Seconds."""


@contextlib.contextmanager
def moving(whole: Whole) -> Iterator[None]:
    """The node's clock advances by a second each second, until the end of the block."""
    folder = Path(whole.roots.procfs).parent
    stop = threading.Event()

    def run() -> None:
        seconds = 0
        while not stop.wait(1.0):
            seconds += 1
            whole.gpus.advance(1)
            if seconds % XID_EVERY == XID_FIRST:
                whole.gpus.xid(2, 79)
            for pattern, where, steps in PER_SECOND:
                for path in glob(str(folder / pattern), recursive=True):
                    _grow(path, where, steps)
            for path in glob(str(folder / "sys/class/infiniband/*/ports/*/*counters/*")):
                _count(path)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _grow(path: str, where: str, steps: tuple[int, ...]) -> None:
    def grown(match: re.Match[str]) -> str:
        text, start = match[0], match.start()
        for group in range(len(steps), 0, -1):
            first, last = match.start(group) - start, match.end(group) - start
            text = f"{text[:first]}{int(match[group]) + steps[group - 1]}{text[last:]}"
        return text

    text = Path(path).read_text()
    _overwrite(path, re.sub(where, grown, text, flags=re.MULTILINE))


def _count(path: str) -> None:
    name, text = os.path.basename(path), Path(path).read_text().strip()
    if name in NARROW or name == "lifespan" or not text.isdigit():
        return
    step = SENT if "/mlx5_0/" in path and name == "port_xmit_data" else 9_000_000 if "bytes" in name else 20
    _overwrite(path, f"{int(text) + step}\n")


def _overwrite(path: str, text: str) -> None:
    """Atomically, like the kernel: no reader may find the file empty or half written."""
    number = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(number, text.encode(), 0)
    finally:
        os.close(number)

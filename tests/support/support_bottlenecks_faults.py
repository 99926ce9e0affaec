"""The disturbances as a table: slow links, disks and CPUs, and faults that only look like one of these."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from support_bottlenecks import Case, Disturb, Place
from support_bottlenecks_disks import slow_disk, slow_folder
from support_bottlenecks_nodes import Node

CONFIRMED, NONE_NEEDED = "confirmed", "none_needed"
DISK_BYTES_PER_SECOND = 2 << 20
NETWORK, STORAGE, CPU = "WhyidleLostTo/network", "WhyidleLostTo/storage", "WhyidleLostTo/cpu"

_SHAPED = "tbf rate 50mbit burst 256kb latency 50ms"
_LOST = "INPUT -i eth0 -p tcp -m statistic --mode random --probability 0.04 -j DROP"
_UNANSWERED = "INPUT -i eth0 -p tcp --dport 9 -j DROP"
# A client that connects to a missing host once a second, and keeps its attempts for a while.
_CALLING = """
import socket, sys, time
held = []
while True:
    held.append(socket.socket())
    held[-1].setblocking(False)
    held[-1].connect_ex((sys.argv[1], 9))
    del held[:-8]
    time.sleep(1)
"""
# Writes of another program, to a disk that the training does not use.
_WRITING = "while :; do dd if=/dev/zero of=$0 bs=256k count=16 oflag=direct conv=fsync 2>&-; sleep 0.01; done"


@contextlib.contextmanager
def nothing(place: Place) -> Iterator[Place]:
    yield place


@contextlib.contextmanager
def shaped(place: Place) -> Iterator[Place]:
    """50 Mbit/s, on links that report 10 Gbit/s. TCP adapts, so no packet is lost."""
    queue = ("tc", "qdisc", "{}", "dev", "eth0", "root")
    with contextlib.ExitStack() as stack:
        for node in place.nodes:
            _for_a_while(stack, node, queue, "add", "del", *_SHAPED.split())
        yield place


@contextlib.contextmanager
def lossy(place: Place) -> Iterator[Place]:
    """One segment in 25 is lost, in both directions."""
    with contextlib.ExitStack() as stack:
        for node in place.nodes:
            _for_a_while(stack, node, ("iptables", "{}", *_LOST.split()), "-A", "-D")
        yield place


@contextlib.contextmanager
def shaped_and_calling(place: Place) -> Iterator[Place]:
    """A slow link that TCP's counters do not show, and a separate daemon that connects to a missing host."""
    caller, called = place.nodes
    words = caller.inside([sys.executable, "-c", _CALLING, called.address])
    with contextlib.ExitStack() as stack:
        _for_a_while(stack, called, ("iptables", "{}", *_UNANSWERED.split()), "-A", "-D")
        stack.enter_context(shaped(place))
        stack.callback(stack.enter_context(subprocess.Popen(words)).kill)
        yield place


def _for_a_while(stack: contextlib.ExitStack, node: Node, words: Sequence[str], do: str, undo: str, *how: str) -> None:
    """Runs a command on a node, with ``do`` in its braces now, and with ``undo`` when the stack ends."""
    node.command(*(word.format(do) for word in words), *how)
    stack.callback(node.command, *(word.format(undo) for word in words))


def folder(read_ms: int, cached: bool) -> Disturb:
    """Data on a file system on which each read takes this long."""

    @contextlib.contextmanager
    def disturb(place: Place) -> Iterator[Place]:
        with slow_folder(place.data, place.scratch / "slow", read_ms=read_ms, cached=cached) as data:
            yield replace(place, data=data)

    return disturb


@contextlib.contextmanager
def folder_and_neighbour(place: Place) -> Iterator[Place]:
    """The same, without the page cache, while another program writes to another disk."""
    words = ["sh", "-c", _WRITING, str(place.scratch / "neighbour")]
    with contextlib.ExitStack() as stack:
        slow = stack.enter_context(folder(150, cached=False)(place))
        stack.callback(stack.enter_context(subprocess.Popen(words)).kill)
        yield slow


@contextlib.contextmanager
def data_disk(place: Place) -> Iterator[Place]:
    """Data on a disk of 2 MiB/s."""
    with slow_disk(place.scratch / "disk", [node.group for node in place.nodes], DISK_BYTES_PER_SECOND) as at:
        shutil.copytree(place.data, at / "data")
        subprocess.run(["sync", "--file-system", str(at)], check=True)
        yield replace(place, data=at / "data")


@contextlib.contextmanager
def checkpoint_disk(place: Place) -> Iterator[Place]:
    """Checkpoints on a disk of 2 MiB/s."""
    with slow_disk(place.scratch / "disk", [node.group for node in place.nodes], DISK_BYTES_PER_SECOND) as at:
        yield replace(place, checkpoints=at)


@contextlib.contextmanager
def limited(place: Place) -> Iterator[Place]:
    """0.6 CPUs for each node's job."""
    with contextlib.ExitStack() as stack:
        for node in place.nodes:
            stack.enter_context(node.group.cpu_limit(0.6))
        yield place


@contextlib.contextmanager
def two_cpus(place: Place) -> Iterator[Place]:
    """Two CPUs for both jobs, which their processes inherit from here."""
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_of_them)[:2])
    try:
        yield place
    finally:
        os.sched_setaffinity(0, all_of_them)


BUSY_WORKERS = ("--packings", "12")
"""Data workers that need more time for a batch than the training needs for a step."""

CASES = (
    Case("nothing", nothing, "compute", NONE_NEEDED),
    # 0.5 % of the reported speed of the links, no loss, no timeout: only traffic control itself shows it.
    Case("shaped-link", shaped, "network", CONFIRMED, frozenset({"qdisc_overlimits"}), NETWORK),
    Case("lossy-link", lossy, "network", CONFIRMED, frozenset({"tcp_retransmits"}), NETWORK),
    # Through the page cache the worker waits as for a disk: uninterruptible, and counted by pressure.
    Case(
        "slow-fuse",
        folder(60, cached=True),
        "storage",
        CONFIRMED,
        frozenset({"blocked_workers", "cgroup_io_pressure"}),
        STORAGE,
    ),
    # Without it, a wait for FUSE looks like a wait for a socket: only the unanswered requests of its daemon show it.
    Case("slow-fuse-direct", folder(150, cached=False), "storage", CONFIRMED, frozenset({"fuse_waiting"}), STORAGE),
    Case(
        "slow-disk",
        data_disk,
        "storage",
        CONFIRMED,
        frozenset({"blocked_workers", "cgroup_io_pressure"}),
        STORAGE,
    ),
    Case(
        "slow-checkpoints",
        checkpoint_disk,
        "storage",
        CONFIRMED,
        frozenset({"cgroup_io_pressure"}),
        STORAGE,
        ("--save-every", "10"),
    ),
    Case("cpu-limit", limited, "cpu", CONFIRMED, frozenset({"throttled", "workers_queued"}), CPU, BUSY_WORKERS),
    Case("few-cpus", two_cpus, "cpu", CONFIRMED, frozenset({"workers_queued"}), CPU, BUSY_WORKERS),
    # Neither slows the training, and what they count must not be attributed to the training.
    Case(
        "shaped-link-and-a-caller",
        shaped_and_calling,
        "network",
        CONFIRMED,
        frozenset({"qdisc_overlimits"}),
        NETWORK,
        deaf=frozenset({"tcp_timeouts", "tcp_retransmits"}),
    ),
    Case(
        "slow-fuse-direct-and-a-neighbour",
        folder_and_neighbour,
        "storage",
        CONFIRMED,
        frozenset({"fuse_waiting"}),
        STORAGE,
        deaf=frozenset({"disk_busy", "io_pressure", "cgroup_io_pressure"}),
    ),
)

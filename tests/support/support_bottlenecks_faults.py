"""What the proofs do to the machine, as a table: links, disks and CPUs that are slow, and what looks like it."""

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
# A client that tries a host which is gone, once a second, and holds on to its attempts for a while.
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
# Somebody else's writes, to a disk that the training does not use.
_WRITING = "while :; do dd if=/dev/zero of=$0 bs=256k count=16 oflag=direct conv=fsync 2>&-; sleep 0.01; done"


@contextlib.contextmanager
def nothing(place: Place) -> Iterator[Place]:
    yield place


@contextlib.contextmanager
def shaped(place: Place) -> Iterator[Place]:
    """50 Mbit/s, on links that say 10 Gbit/s of themselves. TCP fits itself in: no packet is lost."""
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
    """A slow link that TCP's counters do not show, and a daemon beside the training that calls where nobody answers."""
    caller, called = place.nodes
    words = caller.inside([sys.executable, "-c", _CALLING, called.address])
    with contextlib.ExitStack() as stack:
        _for_a_while(stack, called, ("iptables", "{}", *_UNANSWERED.split()), "-A", "-D")
        stack.enter_context(shaped(place))
        stack.callback(stack.enter_context(subprocess.Popen(words)).kill)
        yield place


def _for_a_while(stack: contextlib.ExitStack, node: Node, words: Sequence[str], do: str, undo: str, *how: str) -> None:
    """Runs a command on a node, with ``do`` for its braces now, and with ``undo`` when the stack ends."""
    node.command(*(word.format(do) for word in words), *how)
    stack.callback(node.command, *(word.format(undo) for word in words))


def folder(read_ms: int, cached: bool) -> Disturb:
    """Data on a file system where each read takes so long."""

    @contextlib.contextmanager
    def disturb(place: Place) -> Iterator[Place]:
        with slow_folder(place.data, place.scratch / "slow", read_ms=read_ms, cached=cached) as data:
            yield replace(place, data=data)

    return disturb


@contextlib.contextmanager
def folder_and_neighbour(place: Place) -> Iterator[Place]:
    """The same, past the page cache, while somebody else writes to another disk."""
    words = ["sh", "-c", _WRITING, str(place.scratch / "neighbour")]
    with contextlib.ExitStack() as stack:
        slow = stack.enter_context(folder(150, cached=False)(place))
        stack.callback(stack.enter_context(subprocess.Popen(words)).kill)
        yield slow


@contextlib.contextmanager
def data_disk(place: Place) -> Iterator[Place]:
    """Data on a disk of 2 MiB/s."""
    with slow_disk(place.scratch / "disk", place.nodes, DISK_BYTES_PER_SECOND) as at:
        shutil.copytree(place.data, at / "data")
        subprocess.run(["sync", "--file-system", str(at)], check=True)
        yield replace(place, data=at / "data")


@contextlib.contextmanager
def checkpoint_disk(place: Place) -> Iterator[Place]:
    """Checkpoints on a disk of 2 MiB/s."""
    with slow_disk(place.scratch / "disk", place.nodes, DISK_BYTES_PER_SECOND) as at:
        yield replace(place, checkpoints=at)


@contextlib.contextmanager
def limited(place: Place) -> Iterator[Place]:
    """Six tenths of a CPU for each node's job."""
    with contextlib.ExitStack() as stack:
        for node in place.nodes:
            stack.enter_context(node.group.cpu_limit(0.6))
        yield place


@contextlib.contextmanager
def two_cpus(place: Place) -> Iterator[Place]:
    """Two CPUs for both jobs: what they start inherits it from here."""
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_of_them)[:2])
    try:
        yield place
    finally:
        os.sched_setaffinity(0, all_of_them)


BUSY_WORKERS = ("--packings", "12")
"""Data workers with more to do for a batch than the training takes for a step."""

CASES = (
    Case("nothing", nothing, "compute", NONE_NEEDED),
    # 0.5 % of what the links say they carry, no loss, no timeout: only traffic control itself tells.
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
    # Past it, FUSE waits as one waits for a socket: only the requests that its daemon owes an answer to tell.
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
    # Neither slows the training, and what they make others count must not be taken for the training's.
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

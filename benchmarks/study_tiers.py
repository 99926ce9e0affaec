"""The storage tiers of benchmarks/study.py: real file systems, mounted for one training at a time. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))  # for the slow file systems

from slow_mounts import missing as lacks_disk
from study_nfs import MBIT, lacks_nfs, nfs
from support_bottlenecks_disks import missing as lacks_fuse
from support_bottlenecks_disks import slow_disk, slow_folder
from support_bottlenecks_nodes import Group
from support_ledgers import until

DISK_BYTES_PER_SECOND = 100_000_000
OBJECT_MS, OBJECT_BYTES_PER_SECOND = 20, 40_000_000
# The flags with which SkyPilot 0.14 mounts a bucket in the mode MOUNT_CACHED (sky/data/mounting_utils.py).
CACHED_FLAGS = (
    "--vfs-cache-mode=full",
    "--dir-cache-time=10s",
    "--vfs-cache-poll-interval=10s",
    "--vfs-fast-fingerprint",
    "--vfs-cache-max-size=10G",
    "--vfs-write-back=1s",
)
GONE_SECONDS = 30.0


@dataclass(frozen=True)
class Node:
    """What a tier needs to know of the nodes, and where it may write."""

    memory: Path
    """A folder on tmpfs that is new for each training. The files are in its folder `files`."""
    disk: Path
    """A new folder on a disk."""
    group: Group
    names: tuple[str, ...]
    """The nodes' network namespaces. The last one is not a rank's: it serves."""

    @property
    def files(self) -> Path:
        return self.memory / "files"

    @property
    def disk_groups(self) -> tuple[Path, ...]:
        """The control groups that limit disks. With version 1, the group does not also share out CPUs."""
        limits = ("blkio.throttle.read_bps_device", "io.max")
        return tuple(one for one in self.group.folders if any((one / limit).exists() for limit in limits))


Mounted = contextlib.AbstractContextManager[tuple[Path, ...]]
"""Yields the mount's path on each rank's node."""


KEPT = {
    "yes": "its checkpoints survive the loss of a node",
    "no": "its checkpoints are lost with the node",
    "after the upload": "a checkpoint survives the loss of a node when its upload has ended",
}


@dataclass(frozen=True)
class Tier:
    name: str
    what: str
    survives: str
    """Whether the files survive the loss of a node: a key of KEPT."""
    mount: Callable[[Node], Mounted]
    lacks: Callable[[], str | None]
    """What this machine lacks for it, or None."""


def _everywhere(node: Node, path: Path) -> tuple[Path, ...]:
    return (path,) * (len(node.names) - 1)


@contextlib.contextmanager
def _memory(node: Node) -> Iterator[tuple[Path, ...]]:
    yield _everywhere(node, node.files)


@contextlib.contextmanager
def _disk(node: Node) -> Iterator[tuple[Path, ...]]:
    with slow_disk(node.disk / "disk", [node.group], DISK_BYTES_PER_SECOND) as at:
        shutil.copytree(node.files, at, dirs_exist_ok=True)
        os.sync()
        yield _everywhere(node, at)


@contextlib.contextmanager
def _object(node: Node) -> Iterator[tuple[Path, ...]]:
    slow = slow_folder(
        node.files,
        node.memory / "object",
        read_ms=OBJECT_MS,
        open_ms=OBJECT_MS,
        cached=True,
        bytes_per_second=OBJECT_BYTES_PER_SECOND,
        rate_per_file=True,
    )
    with slow as at:
        yield _everywhere(node, at)


@contextlib.contextmanager
def _cached(node: Node) -> Iterator[tuple[Path, ...]]:
    """rclone keeps what it read on the disk, and uploads what was written later."""
    with _object(node) as [store, *_]:
        at = node.memory / "cached"
        at.mkdir()
        words = ["rclone", "mount", str(store), str(at), "--config=", f"--cache-dir={node.disk / 'cache'}"]
        with open(node.memory / "rclone.log", "wb") as log:
            server = subprocess.Popen([*words, *CACHED_FLAGS], stdout=log, stderr=log, start_new_session=True)
        try:
            until(lambda: os.path.ismount(at))
            yield _everywhere(node, at)
        finally:
            subprocess.run(["fusermount3", "-u", "-z", str(at)], check=False, capture_output=True)
            try:
                server.wait(GONE_SECONDS)  # it may still upload
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _lacks_disk() -> str | None:
    lacking = [tool for tool in ("losetup", "mkfs.ext4") if not shutil.which(tool)]
    return f"needs {' and '.join(lacking)}" if lacking else lacks_disk()


def _lacks_rclone() -> str | None:
    return lacks_fuse() or (None if shutil.which("rclone") else "needs rclone")


TIERS = {
    tier.name: tier
    for tier in (
        Tier("memory", "tmpfs", "no", _memory, lambda: None),
        Tier(
            "disk",
            f"ext4 on a loop device, {DISK_BYTES_PER_SECOND // 10**6} MB/s (control group)",
            "no",
            _disk,
            _lacks_disk,
        ),
        Tier("nfs", f"NFS from a server on a separate node, with a link of {MBIT} Mbit/s", "yes", nfs, lacks_nfs),
        Tier(
            "object",
            f"FUSE: {OBJECT_MS} ms for each request, {OBJECT_BYTES_PER_SECOND // 10**6} MB/s for each connection",
            "yes",
            _object,
            lacks_fuse,
        ),
        Tier(
            "cached",
            "rclone with a cache on disk before `object`, with the flags of SkyPilot's MOUNT_CACHED",
            "after the upload",
            _cached,
            _lacks_rclone,
        ),
    )
}

"""Disks that are slow for the processes of a control group. Needs root.

    with throttled(tmp_path / "slow", 8 << 20) as slow:
        (slow.point / "shard").write_bytes(...)
        forget(slow.point)
        forks.start(("reads.py",), folder, {GROUPS: slow.groups})  # it joins them
        subprocess.run([*slow.inside, sys.executable, "train.py"])  # any other program

`support_bottlenecks_disks.slow_folder` is a mount that is slow for everybody: with latency, with a rate, or both.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support_bottlenecks_disks import slow_disk
from support_bottlenecks_nodes import Group

GROUPS = "WHYIDLE_TEST_GROUPS"
"""The variable that tells tests/support/scripts/mounts.py which groups to join."""
_numbers = itertools.count()
_JOIN = 'for group in $GROUPS; do echo $$ > "$group/cgroup.procs" || exit 126; done; unset GROUPS; exec "$@"'


@dataclass(frozen=True)
class Slow:
    """An ext4 file system on a loop device."""

    point: Path
    group: Group
    """The processes in it read and write the device at the limited rate. Others do so at full speed."""

    @property
    def groups(self) -> str:
        return " ".join(map(str, self.group.folders))

    @property
    def inside(self) -> list[str]:
        """The prefix that runs a command in the group."""
        return ["env", f"GROUPS={self.groups}", "sh", "-c", _JOIN, "sh"]


def missing() -> str | None:
    """What this machine lacks, or None."""
    if os.geteuid() or not os.path.exists("/dev/loop-control"):
        return "needs root and loop devices"
    if not any((folder / "blkio.throttle.read_bps_device").exists() for folder in Group("").folders):
        controllers = Path("/sys/fs/cgroup/cgroup.controllers")
        if not controllers.exists() or "io" not in controllers.read_text().split():
            return "needs a control group that limits disks"
    return None


@contextlib.contextmanager
def throttled(at: Path, bytes_per_second: int, group: Group | None = None) -> Iterator[Slow]:
    """Mounts a new disk at ``at``. It is slow for a new group, or for this ``group``, which may have several."""
    with contextlib.ExitStack() as stack:
        if group is None:
            group = Group(f"whyidle-slow-{os.getpid()}-{next(_numbers)}")
            group.make()
            stack.callback(group.remove)
        yield Slow(stack.enter_context(slow_disk(at, [group], bytes_per_second)), group)


def forget(below: Path) -> None:
    """Drops the cached pages of all files below a directory, so that they are read from the disk."""
    for path in below.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

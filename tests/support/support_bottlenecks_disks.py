"""Storage that is really slow: a file system of the tests that waits, and a disk with a limit on bytes per second."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from fake_node.kernel import COMPILER
from support_bottlenecks_nodes import Group
from support_ledgers import until

SOURCE = Path(__file__).with_name("slow_fs.c")
DISK_BYTES = 256 << 20


def missing() -> str | None:
    """What this machine lacks, or None."""
    if lacking := [tool for tool in ("fusermount3", "losetup", "mkfs.ext4", "pkg-config") if not shutil.which(tool)]:
        return f"needs {', '.join(lacking)}"
    if not COMPILER or subprocess.run(["pkg-config", "--exists", "fuse3"]).returncode:
        return "needs a C compiler and libfuse3-dev"
    return None if os.path.exists("/dev/fuse") else "needs /dev/fuse"


@contextlib.contextmanager
def slow_folder(
    below: Path,
    at: Path,
    *,
    read_ms: int,
    cached: bool,
    bytes_per_second: int = 0,
    open_ms: int = 0,
    rate_per_file: bool = False,
) -> Iterator[Path]:
    """Mounts a directory again at ``at``: each read takes this much longer, and with a rate, writes too.

    The rate is that of all files together, or of each open file.
    """
    at.mkdir()
    program = at.with_name(f"{at.name}-slow_fs")
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=True)
    assert COMPILER
    subprocess.run([COMPILER, "-O1", str(SOURCE), "-o", str(program), *flags.stdout.split()], check=True)
    words = [str(program), str(below), *map(str, (read_ms, int(not cached), bytes_per_second, open_ms))]
    words += [str(int(rate_per_file)), str(at)]
    # In a separate session: Ctrl-C is for its user, and ends it through the lines below.
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True) as server:
        try:
            until(lambda: os.path.ismount(at))
            yield at
        finally:
            subprocess.run(["fusermount3", "-u", str(at)], check=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(10)
            server.kill()  # mount namespaces that others made meanwhile may keep the mount


@contextlib.contextmanager
def slow_disk(at: Path, groups: Iterable[Group], bytes_per_second: int) -> Iterator[Path]:
    """A new disk, mounted at ``at``, which the processes of each group read and write at this many bytes per second."""
    at.mkdir()
    image = at.with_name(f"{at.name}.img")
    with open(image, "wb") as file:
        file.truncate(DISK_BYTES)
    with contextlib.ExitStack() as stack:
        device = _said("losetup", "--find", "--show", "--direct-io=on", str(image))
        try:
            _said("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
            _said("mount", device, str(at))
            stack.callback(_said, "umount", str(at))
        finally:
            _said("losetup", "--detach", device)  # it goes with the mount, also if this program is killed
        for group in groups:
            stack.enter_context(group.disk_limit(_numbers(device), bytes_per_second))
        yield at


def _numbers(device: str) -> str:
    number = os.stat(device).st_rdev
    return f"{os.major(number)}:{os.minor(number)}"


def _said(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

"""Two nodes on one machine: network namespaces joined by a cable, each with a separate link for scrapes.

They share the kernel, so both report the values of the whole machine (pressure, CPU, disks). Each node has its own
interfaces, TCP counters, control group of its job, ledgers and agent. Needs root.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support_ledgers import until

TOOLS = ("ip", "tc", "iptables", "nsenter", "unshare")
CGROUPS = Path("/sys/fs/cgroup")
PORT = 9838
# The node's own view of /sys, with its interfaces, and the machine's FUSE and control groups in it. It ends with the
# process.
_INSIDE = """
mount -t sysfs none /mnt && mount -t fusectl none /mnt/fs/fuse/connections || exit 124
mount --rbind /sys/fs/cgroup /mnt/fs/cgroup && mount --rbind /mnt /sys || exit 125
for group in $GROUPS; do echo $$ > $group/cgroup.procs || exit 126; done
unset GROUPS
exec "$@"
"""


def missing() -> str | None:
    """What this machine lacks, or None."""
    if lacking := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"needs {', '.join(lacking)}"
    try:
        with nodes(1) as [node]:
            node.command("true")
            words = ["nsenter", f"--net=/run/netns/{node.name}", "unshare", "--mount", "mount", "-t", "sysfs"]
            subprocess.run([*words, "none", "/mnt"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"needs root, and the right to make namespaces, mounts and control groups: {error}"
    return None


@dataclass(frozen=True)
class Group:
    """A control group, in every hierarchy that is used here: version 2, or also version 1."""

    name: str

    @property
    def folders(self) -> list[Path]:
        roots = [CGROUPS, CGROUPS / "unified", CGROUPS / "cpu", CGROUPS / "blkio"]
        return [root / self.name for root in roots if (root / "cgroup.procs").exists()]

    def make(self) -> None:
        self.remove()  # remains of a test run that was killed
        for folder in self.folders:
            folder.mkdir()

    def remove(self) -> None:
        """Waits for the processes that were killed in it, because the kernel needs a while to remove them."""
        until(lambda: all(_gone(folder) for folder in self.folders))

    @contextlib.contextmanager
    def cpu_limit(self, cpus: float) -> Iterator[None]:
        """CPU time per time, in periods of 100 ms."""
        quota = f"{cpus * 100_000:.0f}"
        self._write({"cpu.cfs_quota_us": quota, "cpu.max": f"{quota} 100000"})
        try:
            yield
        finally:
            self._write({"cpu.cfs_quota_us": "-1", "cpu.max": "max"})

    @contextlib.contextmanager
    def disk_limit(self, device: str, bytes_per_second: int) -> Iterator[None]:
        """Limits reads and writes of a block device with these numbers."""
        self._limit_disk(device, str(bytes_per_second), str(bytes_per_second))
        try:
            yield
        finally:
            self._limit_disk(device, "0", "max")

    def _limit_disk(self, device: str, version_1: str, version_2: str) -> None:
        self._write(
            {
                "blkio.throttle.read_bps_device": f"{device} {version_1}",
                "blkio.throttle.write_bps_device": f"{device} {version_1}",
                "io.max": f"{device} rbps={version_2} wbps={version_2}",
            }
        )

    def _write(self, values: dict[str, str]) -> None:
        files = [folder / name for folder in self.folders for name in values if (folder / name).exists()]
        assert files, f"no control group here has any of {', '.join(values)}"
        for file in files:
            file.write_text(values[file.name])


@dataclass(frozen=True)
class Node:
    number: int

    @property
    def name(self) -> str:
        return f"whyidle-b{self.number}"

    @property
    def group(self) -> Group:
        return Group(self.name)

    @property
    def address(self) -> str:
        """The address on the network that the ranks use."""
        return f"10.217.0.{self.number + 1}"

    @property
    def scraped(self) -> str:
        """The address of its agent, on a network without disturbance."""
        return f"10.217.{self.number + 1}.2:{PORT}"

    def inside(self, words: Sequence[str], *, in_group: bool = False) -> list[str]:
        """The prefix that runs a command on this node."""
        groups = " ".join(str(folder) for folder in self.group.folders) if in_group else ""
        enter = ["nsenter", f"--net=/run/netns/{self.name}", "unshare", "--mount"]
        return [*enter, "env", f"GROUPS={groups}", "sh", "-c", _INSIDE, "sh", *words]

    def command(self, *words: str) -> None:
        """Runs a command in its network, and waits for its end."""
        _run("ip", "netns", "exec", self.name, *words)


def _gone(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


@contextlib.contextmanager
def nodes(count: int = 2) -> Iterator[list[Node]]:
    """New nodes without disturbance of their network. A cable joins the first two."""
    made = [Node(number) for number in range(count)]
    with contextlib.ExitStack() as stack:
        for node in made:
            _run("ip", "netns", "add", node.name)
            stack.callback(_run, "ip", "netns", "del", node.name)
            node.group.make()
            stack.callback(node.group.remove)
            _management(node)
            stack.callback(_run, "ip", "link", "del", f"whyidle-m{node.number}")
        if count > 1:
            _cable(made[0], made[1])
        yield made


def _management(node: Node) -> None:
    outside, net = f"whyidle-m{node.number}", f"10.217.{node.number + 1}"
    _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth1", "netns", node.name)
    _run("ip", "addr", "add", f"{net}.1/30", "dev", outside)
    _run("ip", "link", "set", outside, "up")
    node.command("ip", "addr", "add", f"{net}.2/30", "dev", "eth1")
    for device in ("lo", "eth1"):
        node.command("ip", "link", "set", device, "up")
    # Every kernel has Reno, which slows down for a lost segment like Cubic. BBR, the default of some kernels, does not.
    node.command("sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control")


def _cable(one: Node, other: Node) -> None:
    words = ("ip", "link", "add", "eth0", "netns", one.name, "type", "veth", "peer", "name", "eth0")
    _run(*words, "netns", other.name)
    for node in (one, other):
        node.command("ip", "addr", "add", f"{node.address}/24", "dev", "eth0")
        node.command("ip", "link", "set", "eth0", "up")

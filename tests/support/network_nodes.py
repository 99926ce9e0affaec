"""Nodes with several links: network namespaces on one machine, each with interfaces `eth0`, `eth1`, ... on bridges.

All interfaces with the same name are on one bridge, which nothing slows. Needs root, ip and tc. There may be several
sets of nodes at the same time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TOOLS = ("ip", "tc", "iptables")
PORT = 29400
_sets = itertools.count()


def missing() -> str | None:
    """What this machine lacks, or None."""
    if lacking := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"needs {', '.join(lacking)}"
    try:
        with network_nodes(1, 1) as nodes, limited(nodes, 0, 1_000_000):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"needs root, and the right to make network namespaces: {getattr(error, 'stderr', '') or error}"


@dataclass(frozen=True)
class NetworkNode:
    number: int
    name: str
    """The name of its namespace."""

    def address(self, link: int = 0) -> str:
        return f"10.{230 + link}.0.{self.number + 1}"

    def inside(self, *words: str) -> list[str]:
        """The command that runs another one on this node, with the node's own interfaces in /sys."""
        return ["ip", "netns", "exec", self.name, *words]

    def run(self, *words: str) -> str:
        """Runs a command on this node. Returns its output."""
        return subprocess.run(self.inside(*words), check=True, capture_output=True, text=True).stdout

    def environment(self, first: NetworkNode, ranks: int, link: int = 0) -> dict[str, str]:
        """The variables for one rank on this node, with the store on the node ``first``."""
        return {
            "RANK": str(self.number),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": first.address(link),
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": interface(link),
        }


def interface(link: int) -> str:
    return f"eth{link}"


@contextlib.contextmanager
def network_nodes(count: int = 2, links: int = 2) -> Iterator[list[NetworkNode]]:
    """New nodes, joined by this number of links. All of it is removed afterwards."""
    prefix = f"whyidle-n{os.getpid()}-{next(_sets)}"
    nodes = [NetworkNode(number, f"{prefix}-{number}") for number in range(count)]
    bridges = f"{prefix}-b"
    with contextlib.ExitStack() as stack:
        for name in (bridges, *(node.name for node in nodes)):
            _run("ip", "netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False, capture_output=True)
        for node in nodes:
            _ip(node.name, "link set lo up")
        for link in range(links):
            _ip(bridges, f"link add b{link} type bridge", f"link set b{link} up")
            for node in nodes:
                end, name = f"p{link}-{node.number}", interface(link)
                _ip(
                    bridges,
                    f"link add {end} type veth peer name {name} netns {node.name}",
                    f"link set {end} master b{link} up",
                )
                _ip(node.name, f"addr add {node.address(link)}/24 dev {name}", f"link set {name} up")
        yield nodes


@contextlib.contextmanager
def limited(
    nodes: Sequence[NetworkNode], link: int, bits_per_second: int, burst_bytes: int = 64 << 10
) -> Iterator[None]:
    """A token bucket (tbf) lets these nodes send at that rate over a link."""
    shape = f"root tbf rate {bits_per_second} burst {burst_bytes} latency 50ms".split()
    with contextlib.ExitStack() as stack:
        for node in nodes:
            node.run("tc", "qdisc", "add", "dev", interface(link), *shape)
            stack.callback(node.run, "tc", "qdisc", "del", "dev", interface(link), "root")
        yield


@contextlib.contextmanager
def lossy(nodes: Sequence[NetworkNode], link: int, probability: float) -> Iterator[None]:
    """These nodes lose that part of the packets that arrive over a link."""
    rule = ["INPUT", "-i", interface(link), "-m", "statistic", "--mode", "random", "--probability", str(probability)]
    with contextlib.ExitStack() as stack:
        for node in nodes:
            node.run("iptables", "-A", *rule, "-j", "DROP")
            stack.callback(node.run, "iptables", "-D", *rule, "-j", "DROP")
        yield


def small_window(nodes: Sequence[NetworkNode], most_bytes: int) -> None:
    """Connections that these nodes make from now on have receive windows of at most about this size."""
    for node in nodes:
        node.run("sysctl", "-qw", f"net.ipv4.tcp_rmem=4096 {most_bytes} {most_bytes}")


def packet_size(nodes: Sequence[NetworkNode], link: int, mtu: int) -> None:
    for node in nodes:
        node.run("ip", "link", "set", interface(link), "mtu", str(mtu))


def _ip(name: str, *commands: str) -> None:
    _run("ip", "-n", name, "-batch", "-", text="\n".join(commands) + "\n")


def _run(*words: str, text: str = "") -> None:
    subprocess.run(words, input=text, check=True, capture_output=True, text=True)

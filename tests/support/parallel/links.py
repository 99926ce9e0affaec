"""A network of four namespaces with slow cables.

Each rank has a namespace with an interface on one common bridge, which nothing slows. A slow link between two ranks is
a second cable that joins only these two: host routes send the traffic between them, and nothing else, over it, and a
token bucket at both ends limits its rate. So no packet classifier is needed. Needs root, ip and tc.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from parallel.spec import RANKS
from parallel.stamps import CABLE

BRIDGE = "whyidle-pb"
INTERFACE = "eth0"
BURST = 4 << 10
"""Bytes that may pass at once on a link that was idle."""
SEND_BUFFER, USUAL_BUFFER = 8 << 10, 4 << 20
"""The most bytes that a socket accepts before they are sent. With megabytes, a sender would not notice a slow link."""


def namespace(rank: int) -> str:
    return f"whyidle-p{rank}"


def address(rank: int) -> str:
    return f"10.218.0.{rank + 1}"


def missing() -> str | None:
    """Why this machine cannot have such a network, or None if it can."""
    if lacking := [tool for tool in ("ip", "tc") if not shutil.which(tool)]:
        return f"needs {' and '.join(lacking)}"
    if os.geteuid() != 0:
        return "needs root"
    try:
        with network(), slow_cable((0, 1), 1_000_000):
            return None
    except subprocess.CalledProcessError as error:
        return f"needs the right to make network namespaces and to shape links: {error.stderr}"


@contextlib.contextmanager
def network() -> Iterator[tuple[str, ...]]:
    """The four namespaces, joined by a bridge. All of it is removed afterwards."""
    names = tuple(namespace(rank) for rank in range(RANKS))
    _remove((*names, BRIDGE))  # remains of a test run that was killed
    with contextlib.ExitStack() as stack:
        for name in (BRIDGE, *names):
            _run("ip", "netns", "add", name)
            stack.callback(_remove, (name,))
        _ip(BRIDGE, "link add b0 type bridge", "link set b0 up")
        for rank, name in enumerate(names):
            _ip(
                BRIDGE,
                f"link add p{rank} type veth peer name {INTERFACE} netns {name}",
                f"link set p{rank} master b0 up",
            )
            _ip(name, "link set lo up", f"addr add {address(rank)}/24 dev {INTERFACE}", f"link set {INTERFACE} up")
        yield names


@contextlib.contextmanager
def slow_cable(ranks: tuple[int, int], bits_per_second: int) -> Iterator[None]:
    """Two ranks reach each other over a separate cable, with that rate in each direction."""
    one, other = ranks
    ends = (f"link add {CABLE} type veth peer name {CABLE} netns {namespace(other)}", f"link set {CABLE} up")
    _ip(namespace(one), ends[0])
    try:
        for mine, theirs in ((one, other), (other, one)):
            _send_buffers(mine, SEND_BUFFER)
            shape = f"root tbf rate {bits_per_second} burst {BURST} limit 4mb"
            _ip(namespace(mine), ends[1])
            _inside(namespace(mine), "tc", "qdisc", "add", "dev", CABLE, *shape.split())
            _ip(namespace(mine), f"route add {address(theirs)}/32 dev {CABLE} src {address(mine)}")
        yield
    finally:
        _ip(namespace(one), f"link del {CABLE}")
        for rank in ranks:
            _send_buffers(rank, USUAL_BUFFER)


@contextlib.contextmanager
def shaped(ranks: Sequence[int], bits_per_second: int) -> Iterator[None]:
    """These ranks send to the bridge at that rate."""
    try:
        for rank in ranks:
            shape = f"root tbf rate {bits_per_second} burst {4 * BURST} limit 4mb"
            _inside(namespace(rank), "tc", "qdisc", "add", "dev", INTERFACE, *shape.split())
        yield
    finally:
        for rank in ranks:
            _inside(namespace(rank), "tc", "qdisc", "del", "dev", INTERFACE, "root")


def _send_buffers(rank: int, largest: int) -> None:
    default = min(16 << 10, largest)
    _inside(namespace(rank), "sh", "-c", f"echo 4096 {default} {largest} > /proc/sys/net/ipv4/tcp_wmem")


def _ip(name: str, *commands: str) -> None:
    _run("ip", "-n", name, "-batch", "-", text="\n".join(commands) + "\n")


def _inside(name: str, *words: str) -> None:
    _run("ip", "netns", "exec", name, *words)


def _remove(names: Sequence[str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _run(*words: str, text: str = "") -> None:
    subprocess.run(words, input=text, check=True, capture_output=True, text=True)

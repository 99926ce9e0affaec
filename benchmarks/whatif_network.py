"""Network namespaces on two bridges, with or without shaped links on the first. Needs root, ip and tc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

INTERFACE, SPARE = "eth0", "eth1"
MTU, JUMBO = 1500, 9000
_PREFIX = "whyidle-w"
"""The prefix of the namespaces' names. The pid of their creator follows, so that two programs do not share them."""
_CLONE_NEWNET = 0x40000000


def address(rank: int, link: int = 0) -> str:
    return f"10.{219 + link}.0.{rank + 1}"


def missing() -> str | None:
    """A sentence that says why this machine cannot have such a network, or None."""
    if lacking := [tool for tool in ("ip", "tc") if not shutil.which(tool)]:
        return f"needs {' and '.join(lacking)}"
    try:
        with network(1) as names, shaped(names, 100):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"needs the right to make network namespaces and to shape links: {error}"


@contextlib.contextmanager
def network(count: int) -> Iterator[tuple[str, ...]]:
    """Makes the network, and removes it at the end of the block. Yields the names of the namespaces."""
    _remove_left()
    bridge, *names = (f"{_PREFIX}{os.getpid()}-{end}" for end in ("bridge", *range(count)))
    with contextlib.ExitStack() as stack:
        for name in (bridge, *names):
            stack.callback(_remove, name)
            _run("ip", "netns", "add", name)
        for link, interface in enumerate((INTERFACE, SPARE)):
            _ip(bridge, f"link add b{link} type bridge", f"link set b{link} up")
            for rank, name in enumerate(names):
                end, peer = f"p{link}-{rank}", f"type veth peer name {interface} netns {name}"
                _ip(bridge, f"link add {end} mtu {JUMBO} {peer} mtu {MTU}", f"link set {end} master b{link} up")
                _ip(name, f"addr add {address(rank, link)}/24 dev {interface}", f"link set {interface} up")
        for name in names:
            _ip(name, "link set lo up")
        yield tuple(names)


def _remove_left() -> None:
    """Removes networks that killed programs left behind."""
    for path in Path("/run/netns").glob(f"{_PREFIX}*-*"):
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            _remove(path.name)


def _remove(name: str) -> None:
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextlib.contextmanager
def jumbo(names: tuple[str, ...], mtu: int) -> Iterator[None]:
    """Sets the MTU with which each namespace sends, until the end of the block. The bridge passes all on."""
    try:
        for name in names:
            _ip(name, f"link set {INTERFACE} mtu {mtu}")
        yield
    finally:
        for name in names:
            _ip(name, f"link set {INTERFACE} mtu {MTU}")


@contextlib.contextmanager
def shaped(names: tuple[str, ...], mbit: int, interface: str = INTERFACE) -> Iterator[None]:
    """Limits the rate at which each namespace sends, until the end of the block. 0 means no limit."""
    device = ["dev", interface, "root"]
    shape = ["tbf", "rate", f"{mbit}mbit", "burst", "64kb", "limit", "4mb"]
    done: list[str] = []
    try:
        for name in names if mbit else ():
            _run("ip", "netns", "exec", name, "tc", "qdisc", "add", *device, *shape)
            done.append(name)
        yield
    finally:
        for name in done:
            _run("ip", "netns", "exec", name, "tc", "qdisc", "del", *device)


def enter(name: str) -> None:
    """Moves this thread, and threads that it starts later, to a namespace. Python 3.11 has no os.setns."""
    with open(f"/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {name}")


def _ip(name: str, *commands: str) -> None:
    subprocess.run(
        ["ip", "-n", name, "-batch", "-"], input="\n".join(commands) + "\n", check=True, capture_output=True, text=True
    )


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)

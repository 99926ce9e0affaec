"""Network namespaces on one bridge, whose links are shaped or not. Needs root, ip and tc."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
from collections.abc import Iterator

INTERFACE = "eth0"
_CLONE_NEWNET = 0x40000000


def address(rank: int) -> str:
    return f"10.219.0.{rank + 1}"


def missing(prefix: str = "whyidle-w") -> str | None:
    """Why this machine cannot have such a network; None if it can."""
    if lacking := [tool for tool in ("ip", "tc") if not shutil.which(tool)]:
        return f"needs {' and '.join(lacking)}"
    try:
        with network(1, prefix) as names, shaped(names, 100):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"needs the right to make network namespaces and to shape links: {error}"


@contextlib.contextmanager
def network(count: int, prefix: str = "whyidle-w") -> Iterator[tuple[str, ...]]:
    """The names of the namespaces, which begin with ``prefix``; all of it is gone afterwards."""
    bridge = f"{prefix}b"
    names = tuple(f"{prefix}{rank}" for rank in range(count))
    with contextlib.ExitStack() as stack:
        for name in (bridge, *names):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)  # a killed run has left it
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
        _ip(bridge, "link add b0 type bridge", "link set b0 up")
        for rank, name in enumerate(names):
            peer = f"type veth peer name {INTERFACE} netns {name}"
            _ip(bridge, f"link add p{rank} {peer}", f"link set p{rank} master b0 up")
            _ip(name, "link set lo up", f"addr add {address(rank)}/24 dev {INTERFACE}", f"link set {INTERFACE} up")
        yield names


@contextlib.contextmanager
def shaped(names: tuple[str, ...], mbit: int) -> Iterator[None]:
    """Each namespace sends no more than that; 0: as fast as it can."""
    device = ["dev", INTERFACE, "root"]
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
    """Moves this thread, and those that it will start, to a namespace; Python 3.11 has no os.setns."""
    with open(f"/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {name}")


def _ip(name: str, *commands: str) -> None:
    subprocess.run(
        ["ip", "-n", name, "-batch", "-"], input="\n".join(commands) + "\n", check=True, capture_output=True, text=True
    )


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)

"""Ranks that hang (scripts/hangs.py), and what `whyidle hang` says about them."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from support_forks import Forked, Forks
from support_training import command, kill_all, meeting, recorded, start, until

LIMIT_SECONDS = 240.0
WITHIN_SECONDS = 60.0
"""How long after the ranks hang it must be known which one is the reason."""
HANG = [sys.executable, "-m", "whyidle.cli.main", "hang"]


@contextlib.contextmanager
def hanging(
    forks: Forks, kind: str, folder: Path, ranks: int, env: Mapping[str, str] | None = None, *, hooks: bool = True
) -> Iterator[list[Forked]]:
    """Ranks of which the last one hangs. They are killed at the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    together = {**meeting(ranks), **(env or {})}
    started: list[Forked] = []
    try:
        for rank in range(ranks):
            own = {**together, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(forks.start(("hangs.py", kind), folder, own, recorded=hooks))
        assert until(lambda: (folder / "hangs").exists(), LIMIT_SECONDS), folder.joinpath("stderr").read_text()
        yield started
    finally:
        for one in started:
            one.kill()


@contextlib.contextmanager
def hanging_processes(
    kind: str, folder: Path, ranks: int, *, hooks: bool, names: Sequence[str] = ()
) -> Iterator[list[subprocess.Popen[str]]]:
    """The same, in processes that a launcher would have started: their environment says which rank they are.

    ``names``: the network namespace of each rank.
    """
    words = command("hangs.py", kind)
    words = recorded(words) if hooks else words
    together = meeting(ranks) | {"LOCAL_WORLD_SIZE": str(ranks)}
    if names:
        together |= {"MASTER_ADDR": f"{NETWORK}.1", "GLOO_SOCKET_IFNAME": "eth0", "LOCAL_WORLD_SIZE": "1"}
    started: list[subprocess.Popen[str]] = []
    try:
        for rank in range(ranks):
            own = {**together, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            inside = ["ip", "netns", "exec", names[rank]] if names else []
            started.append(start([*inside, *words], folder, **own))
        assert until(lambda: (folder / "hangs").exists(), LIMIT_SECONDS)
        yield started
    finally:
        kill_all(folder)
        for one in started:
            one.communicate()


NETWORK = "10.219.0"
_BRIDGE, _NODE = "whyidle-hb", "whyidle-h{}"


@contextlib.contextmanager
def nodes(count: int) -> Iterator[list[str]]:
    """Network namespaces that are joined by a bridge, by name. Needs root."""
    names = [_NODE.format(rank) for rank in range(count)]
    for name in (_BRIDGE, *names):
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    try:
        for name in (_BRIDGE, *names):
            ip("netns", "add", name)
        ip("-n", _BRIDGE, "link", "add", "b0", "type", "bridge")
        ip("-n", _BRIDGE, "link", "set", "b0", "up")
        for rank, name in enumerate(names):
            ip("-n", _BRIDGE, "link", "add", f"p{rank}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", _BRIDGE, "link", "set", f"p{rank}", "master", "b0", "up")
            ip("-n", name, "addr", "add", f"{NETWORK}.{rank + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in (_BRIDGE, *names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def unplug(rank: int) -> None:
    ip("-n", _BRIDGE, "link", "set", f"p{rank}", "down")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def no_network() -> str | None:
    """What this machine lacks for `nodes`, or None."""
    if not shutil.which("ip"):
        return "needs ip"
    try:
        with nodes(1):
            return None
    except subprocess.CalledProcessError as error:
        return f"needs root, and the right to make network namespaces: {error.stderr}"


def dossier(folder: Path, *options: str, after: str = "1s") -> dict[str, Any]:
    """The dossier of the run whose ledgers are in ``folder``/ledgers."""
    words = [*HANG, "--json", "--dir", str(folder / "ledgers"), "--after", after, "--agent", "127.0.0.1:1"]
    done = subprocess.run(
        [*words, "--ras", "127.0.0.1:1", *options], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def dossier_of_hang(folder: Path, *options: str, seconds: float = WITHIN_SECONDS) -> dict[str, Any]:
    """Asks until it says that the run hangs, and in which collective if the ranks have ledgers."""
    deadline = time.monotonic() + seconds
    found = dossier(folder, *options)
    while not (found["hung"] and (found["collective"] or options)) and time.monotonic() < deadline:
        time.sleep(0.5)
        found = dossier(folder, *options)
    return found

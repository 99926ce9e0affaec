"""`--ranks N`: starts the ranks on this machine, as torchrun does, and ends all of them if one fails."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from ...stopping import Stopped, StopSignals
from ..children import die_with_parent_alone

_LOOK_SECONDS = 0.02
_GRACE_SECONDS = 3.0
"""How long the other ranks get to report what they know about a rank that failed."""


def run(words: Sequence[str], ranks: int, say: Callable[[str], None]) -> int:
    """Runs `python -m` with ``words`` in each rank. Returns 0, the exit status of the first rank that failed, or 128 +
    the number of a signal."""
    stop = StopSignals()
    env = os.environ | {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    env.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    env.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the machine's name may resolve to an address that does not work
    children: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            of_rank = env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            children.append(
                subprocess.Popen([sys.executable, "-m", *words], env=of_rank, preexec_fn=die_with_parent_alone)
            )
        return _watch(children, stop, say)
    except Stopped as stopped:
        say(f"stopped by {stopped}")
        return stopped.status
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def _watch(children: Sequence[subprocess.Popen[bytes]], stop: StopSignals, say: Callable[[str], None]) -> int:
    while True:
        stop.check()
        ended = {rank: child.poll() for rank, child in enumerate(children)}
        bad = {rank: status for rank, status in ended.items() if status}
        if bad:
            # If a signal ended a rank, that is why the others fail.
            rank, status = min(bad.items(), key=lambda one: one[1] > 0)
            if status < 0:
                say(f"rank {rank} was ended by {signal.Signals(-status).name}: the other ranks are ended too")
                return 128 - status
            _until_all_ended(children, stop)
            return status
        if all(status is not None for status in ended.values()):
            return 0
        time.sleep(_LOOK_SECONDS)


def _until_all_ended(children: Sequence[subprocess.Popen[bytes]], stop: StopSignals) -> None:
    end = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < end and any(child.poll() is None for child in children):
        stop.check()
        time.sleep(_LOOK_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""Child processes that leave nothing behind, whatever happens to them or to us.

torchrun puts each rank into a session of its own, and a rank has data-loading workers: killing a process group would
miss most of them. All that we start carries a mark in its environment, and orphans come back to us, so that they can be
found (PR_SET_CHILD_SUBREAPER, prctl(2)).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_KILL_SECONDS = 10.0

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def start(command: Sequence[str], log: str, env: Mapping[str, str], directory: str) -> subprocess.Popen[bytes]:
    """Starts a process that writes all its output to the file ``log``, in a session of its own.

    Ctrl-C in the terminal reaches only us; if we are killed, it gets a SIGTERM. Raises OSError.
    """
    with open(log, "ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=directory,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )


def kill_all(variable: str, value: str) -> None:
    """Kills and reaps every descendant that has ``variable=value`` in its environment. Returns when none is left."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (marked := _marked(variable, value)) and time.monotonic() < deadline:
        for process in marked:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(marked, timeout=1.0)
    _reap_adopted()


def _marked(variable: str, value: str) -> list[psutil.Process]:
    """The parents first, so that none can start another child."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(variable) == value:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _reap_adopted() -> None:
    """Ends the zombies of processes whose parents have died before them."""
    for process in psutil.Process().children():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)
        except (psutil.Error, ChildProcessError):
            continue


def tail(log: str, lines: int = 60) -> str:
    """The last lines of a log; empty where there is none."""
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-lines:])
    except OSError:
        return ""

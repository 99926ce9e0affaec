"""Starts processes, and finds and kills all their descendants.

torchrun starts each rank in a separate session, and a rank has data-loading workers, so killing a process group would
miss most of them. Everything that we start has a mark in its environment. We also become the parent of orphans, so that
they can be found (PR_SET_CHILD_SUBREAPER, prctl(2)).
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
_LOOKS, _LOOK_SECONDS = 20, 0.02
"""How often to look again at processes whose environment is not known, and the pause between two looks."""

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def start(command: Sequence[str], log: str, env: Mapping[str, str], directory: str) -> subprocess.Popen[bytes]:
    """Starts a process in a separate session. Its output goes to the file ``log``. Raises OSError.

    Ctrl-C in the terminal does not reach it. If we are killed, it gets a SIGTERM.
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
    """Kills and reaps every descendant with ``variable=value`` in its environment, for up to _KILL_SECONDS."""
    deadline = time.monotonic() + _KILL_SECONDS
    looks = 0
    while time.monotonic() < deadline and looks < _LOOKS:
        marked, unknown = _marked(variable, value)
        for process in marked:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(marked, timeout=1.0)
        if not marked:
            if not unknown:
                break
            looks += 1
            time.sleep(_LOOK_SECONDS)
    _reap_adopted()


def _marked(variable: str, value: str) -> tuple[list[psutil.Process], bool]:
    """The descendants with ``variable=value``, parents first, so that they cannot start another child meanwhile; and
    whether there are others whose environment is not known, because they are just replacing their program."""
    found = []
    unknown = False
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            environment = process.environ()
            if environment.get(variable) == value:
                found.append(process)
            unknown = unknown or not environment
        except psutil.NoSuchProcess:
            continue
        except psutil.Error:
            unknown = True
    return found, unknown


def _reap_adopted() -> None:
    """Reaps zombies that we adopted because their parents died before them."""
    for process in psutil.Process().children():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)
        except (psutil.Error, ChildProcessError):
            continue


def tail(log: str, lines: int = 60) -> str:
    """The last lines of a log; empty if there is no log."""
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-lines:])
    except OSError:
        return ""

"""Runs the ranks of one run as forked processes, each in its own network namespace."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from whatif_network import INTERFACE, address, enter

PORT = 29400
GONE_SECONDS = 10.0


class Failed(RuntimeError):
    """A rank failed or took too long. The message is the end of the ranks' output."""


def run_ranks(
    main: Callable[[int], None], names: Sequence[str], folder: Path, run: str, *, limit_seconds: float
) -> None:
    """Calls ``main(rank)`` in a child for each namespace, with the environment of a launcher, and waits for all.

    Ledgers are written to ``folder``/ledgers. All children are ended in any case. Raises Failed.
    """
    children: dict[int, int] = {}
    try:
        for rank in range(len(names)):
            children[rank] = _fork(main, rank, names, folder, run)
        _wait(children, folder, time.monotonic() + limit_seconds)
    finally:
        for pid in children.values():
            _kill(pid)


def fork(main: Callable[[], None], said: Path) -> int:
    """Calls ``main`` in a child, in its own process group, and ends it. What it prints is in ``said``. Returns its
    pid; its status is 1 if ``main`` raised."""
    pid = os.fork()
    if pid:
        with contextlib.suppress(PermissionError, ProcessLookupError):  # the child did it itself, or has ended
            os.setpgid(pid, pid)
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        with open(said, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        main()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _fork(main: Callable[[int], None], rank: int, names: Sequence[str], folder: Path, run: str) -> int:
    def begin() -> None:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(len(names)),
            MASTER_ADDR=address(0),
            MASTER_PORT=str(PORT),
            GLOO_SOCKET_IFNAME=INTERFACE,
            WHYIDLE_DIR=str(folder / "ledgers"),
            WHYIDLE_RUN=run,
        )
        enter(names[rank])
        main(rank)

    return fork(begin, folder / f"errors-{rank}")


def _kill(pid: int) -> None:
    """Ends a rank and its data workers: they may have files open on a file system that is unmounted next."""
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + GONE_SECONDS
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(pid, 0)
            time.sleep(0.02)


def _wait(left: dict[int, int], folder: Path, deadline: float) -> None:
    """Waits for the children, and removes each that has ended. Raises Failed."""
    while left:
        for rank, pid in [*left.items()]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del left[rank]
                if status:
                    raise Failed(_said(folder))
        if left and time.monotonic() > deadline:
            raise Failed(_said(folder) or "the ranks took too long")
        time.sleep(0.02)


def _said(folder: Path) -> str:
    return "".join(path.read_text()[-2000:] for path in sorted(folder.glob("errors-*")))

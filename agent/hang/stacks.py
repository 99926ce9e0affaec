"""Stacks of Python from py-spy, if it is installed. Only files, functions and lines: no values of variables."""

from __future__ import annotations

import os
import shutil
import subprocess

ABSENT = "py-spy is not installed: pip install py-spy"
MOST_LINES = 200
_MOST_BYTES = 1 << 18


def installed() -> str | None:
    return shutil.which("py-spy")


def of(pid: int, seconds: float, program: str | None = None) -> tuple[list[str], str]:
    """(the lines of the stacks, why there are none). py-spy does not pause the process.

    Only for processes of this user, or for root: others cannot be read.
    """
    program = program or installed()
    if program is None:
        return [], ABSENT
    words = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=max(0.1, seconds), start_new_session=True
        )
    except subprocess.TimeoutExpired:
        return [], f"py-spy did not finish in {seconds:.0f} s"
    except OSError as error:
        return [], f"py-spy cannot be started: {error.strerror}"
    lines = [_clean(line) for line in done.stdout[:_MOST_BYTES].decode("utf-8", "replace").splitlines()]
    if done.returncode or not lines:
        said = done.stderr[-300:].decode("utf-8", "replace").strip().splitlines()
        return [], f"py-spy failed: {_clean(said[-1]) if said else f'exit status {done.returncode}'}"
    return lines[:MOST_LINES], ""


def may_read(procfs: str, pid: int) -> bool:
    """Whether this user may look into a process."""
    try:
        return os.geteuid() in (0, os.stat(f"{procfs}/{pid}").st_uid)
    except OSError:
        return False


def _clean(line: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in line)[:300].rstrip()

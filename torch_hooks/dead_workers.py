"""Notes in the ledger which data worker has died, if that ends a wait for a batch or the training."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..ledger.layout import WORD_AT

if TYPE_CHECKING:
    from .session import Session

_PID_AT, _SIGNAL_AT, _STATUS_AT = (WORD_AT[f"dead_worker_{name}"][0] for name in ("pid", "signal", "status"))
_PIDS = re.compile(r"worker \(pid(?:\(s\))? ([\d, ]+)\)")
"""How torch names dead workers in its errors (torch/csrc/DataLoader.cpp, torch/utils/data/dataloader.py)."""


def around_check(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps the check that torch makes at each SIGCHLD, wherever the training thread is then."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _error_if_any_worker_fails() -> Any:
            try:
                return original()
            except RuntimeError as error:
                note_named(session, error)
                raise

        return _error_if_any_worker_fails

    return make


def note_named(session: Session, error: RuntimeError) -> None:
    """Notes the first dead worker that an error of torch names. Never raises."""
    try:
        if named := _PIDS.search(str(error)):
            note(session, [(int(pid), None) for pid in named[1].split(",")])
    except Exception as fault:  # the fence around the training
        session.fault("dataloader", fault)


def note_of(session: Session, iterator: Any, error: BaseException) -> None:
    """A loader has raised: notes the first of its workers that is dead. Never raises."""
    if isinstance(error, StopIteration):
        return
    try:
        note(session, [(worker.pid, worker) for worker in getattr(iterator, "_workers", ())])
    except Exception as fault:  # the fence around the training
        session.fault("dataloader", fault)


def note(session: Session, workers: Iterable[tuple[int, Any]]) -> None:
    """``workers``: each as its pid, and its multiprocessing.Process if that is known."""
    writer = session.writer
    if writer is None or writer.words[_PID_AT]:
        return
    for pid, process in workers:
        code = _exit_code(pid, process)
        if code:
            writer.words[_SIGNAL_AT if code < 0 else _STATUS_AT] = abs(code)
            writer.words[_PID_AT] = pid
            return


def _exit_code(pid: int, process: Any) -> int | None:
    """How a process ended, as multiprocessing says it (-9: by signal 9); None: it lives, or that is not known.

    The process stays a zombie, so that torch finds it, too.
    """
    known = getattr(getattr(process, "_popen", None), "returncode", None)
    if known is not None:
        return known
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # it was started by a fork server
        return process.exitcode if process is not None else None
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

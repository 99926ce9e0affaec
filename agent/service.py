"""Runs the agent: serves until a stop signal arrives, removes old ledgers and asks the collectors regularly."""

from __future__ import annotations

import ctypes
import signal
import threading

from ..ledger.directory import reap
from .claim import Claim
from .exporter import Exporter
from .ledgers import LedgerStore
from .log import Log
from .server import AgentServer

REAP_EVERY_SECONDS = 60.0
_M_ARENA_MAX = -8  # malloc.h
ROUND_EVERY_SECONDS = 10.0
"""The collectors are asked at least this often, even without scrapes: NVML's buffer holds about 20 s of utilisation."""


def stop_signals() -> set[signal.Signals]:
    """The signals that end the agent: SIGTERM, and SIGINT unless it was ignored when the agent started.

    The shell of a script starts background commands with SIGINT ignored, because Ctrl-C is meant for the script. A
    blocked SIGTERM reaches sigwait even if it is ignored (`sig_ignored` in the kernel's kernel/signal.c).
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return {signal.SIGTERM} if ignored else {signal.SIGTERM, signal.SIGINT}


def hold_signals() -> None:
    """Blocks the stop signals until :func:`serve` waits for them, and ignores SIGHUP, so that the agent outlives its
    terminal. Call it before any thread starts.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def few_arenas() -> None:
    """Limits glibc to two heaps (arenas) for all threads. Call it before any thread starts.

    By default glibc creates up to eight heaps per core for its threads, and they do not return memory: after 50
    concurrent scrapes on two cores the agent held 43 MB instead of 35 MB. Other C libraries have neither this function
    nor this behaviour.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
    except (OSError, AttributeError):
        pass


def serve(server: AgentServer, ledgers: LedgerStore, delete_after_seconds: float, log: Log) -> None:
    """Serves until one of :func:`stop_signals`. Call :func:`hold_signals` first, from the main thread."""
    stopping = threading.Event()
    threading.Thread(target=server.serve, name="http", daemon=True).start()
    threading.Thread(
        target=_tidy, args=(ledgers, delete_after_seconds, stopping, log), name="tidy", daemon=True
    ).start()
    threading.Thread(target=_keep_up, args=(server.exporter, stopping, log), name="keep-up", daemon=True).start()
    number = signal.sigwait(stop_signals())
    log.info("stopping", signal=signal.Signals(number).name)
    stopping.set()
    server.close()


def _keep_up(exporter: Exporter, stopping: threading.Event, log: Log) -> None:
    while not stopping.wait(ROUND_EVERY_SECONDS / 2):
        try:
            exporter.keep_up(ROUND_EVERY_SECONDS)
        except Exception as error:  # the next scrape reports it too
            log.error("a round failed", error=repr(error))


def _tidy(ledgers: LedgerStore, delete_after_seconds: float, stopping: threading.Event, log: Log) -> None:
    claim = Claim(ledgers.directory, log)
    pause = min(REAP_EVERY_SECONDS, max(1.0, delete_after_seconds / 4))
    while True:
        try:
            claim.look()
            # Read the ledgers before removing any: the counters keep what ended attempts contributed.
            ledgers.look()
            removed = reap(ledgers.directory, delete_after_seconds)
            if removed:
                log.info("removed ended ledgers", count=removed, directory=ledgers.directory)
        except Exception as error:  # while this thread has the claim, nobody else removes anything
            log.error("ended ledgers were not removed", error=repr(error))
        if stopping.wait(pause):
            claim.close()
            return

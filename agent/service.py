"""The agent's life: serve until told to stop; meanwhile keep the ledger directory tidy and the integrals whole."""

from __future__ import annotations

import ctypes
import signal
import threading

from ..ledger.directory import reap
from .exporter import Exporter
from .ledgers import LedgerStore
from .log import Log
from .server import AgentServer

REAP_EVERY_SECONDS = 60.0
_M_ARENA_MAX = -8  # malloc.h
ROUND_EVERY_SECONDS = 10.0
"""The collectors are asked at least so often, scraped or not: NVML's sample buffer holds some 20 s of utilisation."""


def stop_signals() -> set[signal.Signals]:
    """What ends the agent: SIGTERM always, and SIGINT unless it was ignored from the start.

    A script's shell starts its background commands with SIGINT ignored, because Ctrl-C is for the script. The kernel
    keeps a blocked SIGTERM for sigwait even where it is ignored (`sig_ignored` in the kernel's kernel/signal.c).
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return {signal.SIGTERM} if ignored else {signal.SIGTERM, signal.SIGINT}


def hold_signals() -> None:
    """Before any thread starts: the stop signals wait for :func:`serve`, and a lost terminal stops nothing."""
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def few_arenas() -> None:
    """Before any thread starts: has all threads share two heaps.

    The GNU library gives each thread one of its own, up to eight per core, and none gives back what it once held: 43 MB
    instead of 35 after fifty scrapes at once on two cores. Other libraries have no such function, nor this habit.
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
        except Exception as error:  # the next scrape will say so too
            log.error("a round failed", error=repr(error))


def _tidy(ledgers: LedgerStore, delete_after_seconds: float, stopping: threading.Event, log: Log) -> None:
    pause = min(REAP_EVERY_SECONDS, max(1.0, delete_after_seconds / 4))
    while True:
        # Looks before it removes: the shares of ended attempts are then in memory and stay in the counters.
        ledgers.look()
        removed = reap(ledgers.directory, delete_after_seconds)
        if removed:
            log.info("removed ended ledgers", count=removed, directory=ledgers.directory)
        if stopping.wait(pause):
            return

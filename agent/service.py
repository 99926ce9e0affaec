"""The agent's life: serve until told to stop, and keep the ledger directory tidy meanwhile."""

from __future__ import annotations

import signal
import threading

from ..torch_hooks.ledger import reap
from .ledgers import LedgerStore
from .log import Log
from .server import AgentServer

STOP = frozenset({signal.SIGTERM, signal.SIGINT})
REAP_EVERY_SECONDS = 60.0


def hold_signals() -> None:
    """Before any thread starts: the stop signals wait for :func:`serve`, and a lost terminal stops nothing."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def serve(server: AgentServer, ledgers: LedgerStore, delete_after_seconds: float, log: Log) -> None:
    """Serves until SIGTERM or SIGINT. Call :func:`hold_signals` first, from the main thread."""
    stopping = threading.Event()
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    threading.Thread(
        target=_tidy, args=(ledgers, delete_after_seconds, stopping, log), name="tidy", daemon=True
    ).start()
    number = signal.sigwait(STOP)
    log.info("stopping", signal=signal.Signals(number).name)
    stopping.set()
    server.shutdown()
    server.server_close()


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

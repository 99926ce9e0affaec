"""Brings the file of a ledger up to date from a separate thread, so that a step does not have to.

If this thread gets no chance to run, the phase machine flushes at a boundary: when the last flush was ``FLUSH_NS`` ago.
The thread also leaves a heartbeat. It is the last that a ledger knows of a rank that was killed in a long phase.
"""

from __future__ import annotations

import threading
import time

from ..ledger.layout import WORD_AT
from ..ledger.writer import LedgerWriter

SECONDS = 0.1
FLUSH_NS = 150_000_000
_HEARTBEAT_AT = WORD_AT["heartbeat_ns"][0]


def beat(writer: LedgerWriter) -> None:
    """Leaves a sign of life and brings the file up to date."""
    writer.words[_HEARTBEAT_AT] = time.monotonic_ns()
    writer.file.flush()


class Flusher:
    """A thread that flushes every ``SECONDS`` until it is stopped or the process ends.

    It is stopped while the process forks. So a child never gets a lock that this thread held, and Python does not warn
    users about a thread that they did not start.
    """

    def __init__(self, writer: LedgerWriter):
        self._writer = writer
        self._thread: threading.Thread | None = None
        self.start()

    def start(self) -> None:
        self._stop = threading.Event()  # a new one for each thread, so that one that is slow to stop does stop
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name="whyidle-flusher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            if thread is not threading.current_thread():
                thread.join(SECONDS)

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(SECONDS):
            beat(self._writer)

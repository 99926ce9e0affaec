"""Brings the file of a ledger up to date while the training thread passes no boundary, or passes many.

The machine flushes at a boundary once ``FLUSH_NS`` have gone by. What lies between is left to a thread: that a rank has
entered a phase in which it stays.
"""

from __future__ import annotations

import threading

from ..ledger.file import LedgerFile

SECONDS = 0.1
FLUSH_NS = 50_000_000


class Flusher:
    """A thread that flushes every ``SECONDS``, until it is stopped or the process ends.

    It is gone while the process forks: no child then has a lock that a thread of ours held, and Python does not warn
    the user of threads that are not his.
    """

    def __init__(self, file: LedgerFile):
        self._file = file
        self._thread: threading.Thread | None = None
        self.start()

    def start(self) -> None:
        self._stop = threading.Event()  # of this thread alone: one that is slow to stop does not go on
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
            self._file.repair()

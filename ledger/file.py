"""How what a rank has written reaches its file: copied, not mapped.

A store through a mapping of a file that somebody has cut short is a SIGBUS, which ends the process. So a rank counts in
memory of its own, and what has changed is written to the file now and then. A file that was cut short grows again.
"""

from __future__ import annotations

import os
import threading

from .layout import CALL_WORDS, CALLS_AT, HEAD_BYTES, LEDGER_BYTES, RING_AT, RING_CALLS, RING_STEPS, STEP_WORDS, WORD_AT

_SEQUENCE, _STEPS, _CALLS = (WORD_AT[name][0] * 8 for name in ("sequence", "steps", "calls_written"))
_PATIENCE_SECONDS = 0.5
"""For how long the last flush waits for one that is under way."""


class LedgerFile:
    """Brings the file of one ledger up to date with its memory. Any thread may call it, in the process that made it.

    The file has a seqlock of its own, whose sequence is odd while it is written, so that readers see either what was
    before or what is now.
    """

    def __init__(self, memory: memoryview, fd: int):
        self._memory = memory
        self._fd = fd
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._sequence = 0  # of the file
        self._head = b""  # as it was last written
        self._steps = self._calls = 0  # how much of the rings the file has
        self._whole = True  # whether all of it has to be written

    def flush(self) -> None:
        """Writes what has changed. Never raises, never waits for a lock: what it leaves undone, the next one does.

        That is so in the middle of an update, beside a flush in another thread, and where the file system refuses.
        """
        if self._lock.acquire(blocking=False):
            try:
                self.write()
            except OSError:
                self._whole = True
            finally:
                self._lock.release()

    def repair(self) -> None:
        """A flush that writes all, if somebody has cut the file short."""
        try:
            if os.fstat(self._fd).st_size < LEDGER_BYTES:
                os.posix_fallocate(self._fd, 0, LEDGER_BYTES)
                self._whole = True
        except OSError:  # it is closed, has no space, or the file system has failed
            return
        self.flush()

    def close(self) -> None:
        """Writes what has changed, waiting a moment for a flush that is under way, and closes the file.

        In a forked child nothing is touched: the file and its lock are the parent's. Raises OSError.
        """
        if self._fd < 0 or os.getpid() != self._pid:
            return
        free = self._lock.acquire(timeout=_PATIENCE_SECONDS)
        try:
            self.write()
        finally:
            fd, self._fd = self._fd, -1
            if free:
                self._lock.release()
            os.close(fd)

    def write(self) -> None:
        """Writes what has changed; nothing in the middle of an update. One thread at a time. Raises OSError."""
        if self._fd < 0 or os.getpid() != self._pid:
            return
        head = bytearray(self._memory[:HEAD_BYTES])  # one instruction of Python's: no update comes between
        if head[_SEQUENCE] & 1 or (head == self._head and not self._whole):
            return
        whole, self._whole = self._whole, True  # until all of it is there
        steps, calls = _word(head, _STEPS), _word(head, _CALLS)
        parts = _entries(RING_AT, len(STEP_WORDS), RING_STEPS, 0 if whole else self._steps, steps)
        parts += _entries(CALLS_AT, CALL_WORDS, RING_CALLS, 0 if whole else self._calls, calls)
        copies = [(begin, bytes(self._memory[begin:end])) for begin, end in parts]
        as_it_was = bytes(head)
        self._sequence += 1 + self._sequence % 2  # odd, also after a flush that was interrupted
        odd = head[_SEQUENCE : _SEQUENCE + 8] = self._sequence.to_bytes(8, "little")
        self._put(odd, _SEQUENCE)
        for begin, copy in copies:
            self._put(copy, begin)
        self._put(head, 0)
        self._sequence += 1
        self._put(self._sequence.to_bytes(8, "little"), _SEQUENCE)
        self._head, self._steps, self._calls, self._whole = as_it_was, steps, calls, False

    def _put(self, what: bytes | bytearray, at: int) -> None:
        if os.pwrite(self._fd, what, at) != len(what):
            raise OSError("a part was not written")


def _word(head: bytearray, at: int) -> int:
    return int.from_bytes(head[at : at + 8], "little")


def _entries(at: int, width: int, size: int, written: int, count: int) -> list[tuple[int, int]]:
    """Where, from byte to byte, entries ``written`` to ``count`` of a ring stand that begins at word ``at``."""
    first = max(written, count - size)
    if first >= count:
        return []
    begin, end = first % size, (count - 1) % size + 1
    pieces = [(begin, end)] if begin < end else [(begin, size), (0, end)]
    return [(8 * (at + width * one), 8 * (at + width * other)) for one, other in pieces]

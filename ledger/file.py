"""Copies a rank's ledger from its memory to its file.

The file is not mapped: if somebody truncated a mapped file, the next store would raise SIGBUS and end the training. So
a rank counts in its own memory, and changes are written to the file now and then. A truncated file grows again.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from contextlib import suppress

from .layout import (
    CALL_WORDS,
    CALLS_AT,
    CHECKSUM_AT,
    HEAD_BYTES,
    LEDGER_BYTES,
    RING_AT,
    RING_CALLS,
    RING_STEPS,
    SEQUENCE,
    SNAPSHOTS_AT,
    STEP_WORDS,
    WORD_AT,
    checksum,
)

_SEQUENCE, _STEPS, _CALLS = 8 * SEQUENCE, WORD_AT["steps"][0] * 8, WORD_AT["calls_written"][0] * 8
_SNAPSHOTS = WORD_AT["snapshots"][0] * 8
_BEGUN_AT = WORD_AT["steps_begun"][0] * 8
_NO_CHECKSUM = (-1).to_bytes(8, "little", signed=True)
_PATIENCE_SECONDS = 0.5
"""How long `close` waits for a flush that is in progress."""


class LedgerFile:
    """Brings the file of one ledger up to date with its memory. Any thread of the process that created it may call it.

    Readers can use the file at any moment, also between two calls of a write. They must: each call releases Python's
    lock, and a training thread that then blocks inside torch can keep the lock for as long as a hang lasts. Therefore

    - the head is written in one call, with its checksum. Only a reader that copies it during this call gets a mixture,
      and its checksum is wrong.
    - The rings are written before the head that counts their new entries. `steps_begun` and `calls_begun` are written
      first of all, so that a reader who still has the old head knows which old entries it cannot use any more.
    """

    def __init__(self, memory: memoryview, fd: int):
        self._memory = memory
        self._fd = fd
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._head = b""  # the head as it was last written
        self._steps = self._calls = 0  # up to which entry the rings were written
        self._snapshots = 0  # how many had been taken when they were written
        self._whole = True  # whether the whole file must be written
        self._flushed_ns = 0  # when the last flush was, CLOCK_MONOTONIC
        self.written: dict[int, int] = {}
        """The bytes that each thread has written, by `threading.get_ident`."""

    def flush(self, older_than_ns: int = 0) -> None:
        """Writes what has changed, if the last flush was ``older_than_ns`` ago. Never raises or waits for a lock.

        It writes nothing during an update or while another thread flushes. The next flush then writes the changes, also
        after a failed write.
        """
        now = time.monotonic_ns()
        if now - self._flushed_ns >= older_than_ns and self._lock.acquire(blocking=False):
            try:
                self._flushed_ns = now
                self.write()
            except OSError:
                self._whole = True
            finally:
                self._lock.release()

    def flush_within(self, seconds: float) -> None:
        """The same in another thread, for which it waits at most ``seconds``: a program that ends itself must not wait
        for a disk. It may be in a handler of a signal, so this takes none of the locks of `threading`."""
        done = _thread.allocate_lock()
        done.acquire()

        def write() -> None:
            try:
                self.flush()
            finally:
                done.release()

        with suppress(RuntimeError):  # the interpreter ends, or the process may not have more threads
            _thread.start_new_thread(write, ())
            done.acquire(timeout=seconds)

    def is_older_than(self, moment_ns: int) -> bool:
        """Whether the last flush was before this moment (CLOCK_MONOTONIC)."""
        return self._flushed_ns < moment_ns

    def close(self) -> None:
        """Writes what has changed and closes the file. Waits _PATIENCE_SECONDS for a flush that is in progress.

        Does nothing in a forked child, because the file and its lock belong to the parent. Raises OSError.
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
        """Writes what has changed; does nothing during an update. Only one thread may call it. Raises OSError."""
        if self._fd < 0 or os.getpid() != self._pid:
            return
        if os.fstat(self._fd).st_size < LEDGER_BYTES:  # it was truncated
            self._put(_NO_CHECKSUM, CHECKSUM_AT)  # the rings are zero until they are written
            os.posix_fallocate(self._fd, 0, LEDGER_BYTES)
            self._whole = True
        head = bytearray(self._memory[:HEAD_BYTES])  # one Python instruction, so no update can come between
        if head[_SEQUENCE] & 1 or (head == self._head and not self._whole):
            return
        whole, self._whole = self._whole, True  # stays True if the write fails
        steps, calls = _word(head, _STEPS), _word(head, _CALLS)
        parts = _entries(RING_AT, len(STEP_WORDS), RING_STEPS, 0 if whole else self._steps, steps)
        parts += _entries(CALLS_AT, CALL_WORDS, RING_CALLS, 0 if whole else self._calls, calls)
        snapshots = _word(head, _SNAPSHOTS)
        if snapshots and (snapshots != self._snapshots or whole):
            parts.append((SNAPSHOTS_AT * 8, LEDGER_BYTES))
        copies = [(begin, bytes(self._memory[begin:end])) for begin, end in parts]
        as_it_was = bytes(head)
        begun = steps.to_bytes(8, "little") + calls.to_bytes(8, "little")
        if copies:
            self._put(begun, _BEGUN_AT)
        for begin, copy in copies:
            self._put(copy, begin)
        head[CHECKSUM_AT:_BEGUN_AT] = checksum(head).to_bytes(8, "little")
        head[_BEGUN_AT : _BEGUN_AT + len(begun)] = begun
        self._put(head, 0)
        self._head, self._steps, self._calls, self._whole = as_it_was, steps, calls, False
        self._snapshots = snapshots

    def _put(self, what: bytes | bytearray, at: int) -> None:
        if os.pwrite(self._fd, what, at) != len(what):
            raise OSError("a part was not written")
        thread = threading.get_ident()
        self.written[thread] = self.written.get(thread, 0) + len(what)


def _word(head: bytearray, at: int) -> int:
    return int.from_bytes(head[at : at + 8], "little")


def _entries(at: int, width: int, size: int, written: int, count: int) -> list[tuple[int, int]]:
    """The byte ranges of the entries ``written`` to ``count`` of a ring that begins at word ``at``."""
    first = max(written, count - size)
    if first >= count:
        return []
    begin, end = first % size, (count - 1) % size + 1
    pieces = [(begin, end)] if begin < end else [(begin, size), (0, end)]
    return [(8 * (at + width * one), 8 * (at + width * other)) for one, other in pieces]

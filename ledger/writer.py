"""How a rank writes its ledger: creates the file, holds its lock, and hands out its words.

One writer. Its words are memory of its own, so that nothing that happens to the file can end the training; `file`
writes what has changed to the file, whose space is reserved at creation.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time

from .clock import own_clock
from .file import LedgerFile
from .layout import LEDGER_BYTES, MAGIC, SEQUENCE, STRING_AT, SUFFIX, VERSION, WORD_AT

_TRIES, _PAUSE_SECONDS = 10, 1e-4
_OWN = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)


class LedgerWriter:
    """Creates one ledger, holds its lock, and gives its words to those who count.

    ``words`` is a writable view of signed 64-bit words; indices come from :data:`layout.WORD_AT`. Whoever changes
    more than one word wraps the change in ``words[SEQUENCE] += 1`` before and after. They stand in the file once
    ``file.flush()`` has been called.

    Raises OSError when the directory cannot be used (missing rights, no space, read-only).
    """

    def __init__(self, directory: str, strings: dict[str, str], numbers: dict[str, int]):
        # Like /tmp: every user's ranks may create ledgers here, none may remove another's.
        if not os.path.isdir(directory):
            os.makedirs(directory, exist_ok=True)
            try:
                os.chmod(directory, 0o1777)
            except OSError:
                pass
        name = f"{numbers.get('rank', 0)}-{os.getpid()}-{os.urandom(6).hex()}"
        hidden = os.path.join(directory, f".{name}.new")
        self.path = os.path.join(directory, name + SUFFIX)
        # Nobody else can open it before it is locked: a lock for reading, which needs no right to write, would be
        # in the way of ours.
        self._fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, LEDGER_BYTES)  # a file system that is full says so now, not later
            # Shared as a mapped file is: a fork costs the training no copies of pages.
            self._bytes = memoryview(mmap.mmap(-1, LEDGER_BYTES, flags=_OWN))
            self.words = self._bytes.cast("q")
            self._bytes[: len(MAGIC)] = MAGIC
            self.words[1] = VERSION
            for key, text in strings.items():
                self.set_string(key, text)
            self.set("size", LEDGER_BYTES)
            self.set_string("boot", own_clock().boot)
            self.set("created_unix_ns", time.time_ns())
            self.set("created_ns", time.monotonic_ns())
            at, _ = WORD_AT["clock_offsets_ns"]
            self.words[at], self.words[at + 1] = own_clock()[1:]
            for key, number in numbers.items():
                self.set(key, number)
            self.locked = self._lock()
            self.file = LedgerFile(self._bytes, self._fd)
            self.file.write()
            os.fchmod(self._fd, 0o644)  # whatever the umask: who reads it, the agent, is another user
            os.rename(hidden, self.path)
        except BaseException:
            os.close(self._fd)
            try:
                os.unlink(hidden)
            except OSError:
                pass
            raise
        self._pid = os.getpid()

    def _lock(self) -> bool:
        """Takes the record lock that tells readers, also in other containers, that this rank lives."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:  # ENOLCK: some network file systems have none; readers then see an ended rank
            return False

    def set(self, name: str, value: int) -> None:
        self.words[WORD_AT[name][0]] = value

    def set_string(self, name: str, text: str) -> None:
        at, size = STRING_AT[name]
        raw = text.encode("utf-8", "replace")[:size]
        self._bytes[at : at + size] = raw.ljust(size, b"\0")

    def copy(self) -> bytes:
        """The ledger as it stands: from memory, since to open the file and close it again would drop its lock.

        Another thread of this process may be in the middle of an update: it is given a moment to end it, and else at
        most that update is missing.
        """
        raw = b""
        for _ in range(_TRIES):
            before = self.words[SEQUENCE]
            raw = bytes(self._bytes)
            if not before & 1 and before == self.words[SEQUENCE]:
                break
            time.sleep(_PAUSE_SECONDS)
        return raw

    def close(self) -> None:
        """Marks the ledger ended, writes the rest and drops the lock. Late hooks harm nothing: the words stay.

        In a forked child nothing is touched: the file and its lock are the parent's.
        """
        if os.getpid() != self._pid or self._fd < 0:
            return
        self.set("ended", 1)
        self._fd = -1
        self.file.close()

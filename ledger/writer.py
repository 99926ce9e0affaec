"""How a rank writes its ledger: creates the file, holds its lock, and gives access to its words.

A ledger has one writer. The words are in the writer's own memory, so that nothing that happens to the file can end the
training. `file.py` writes changes to the file. The space of the file is reserved when it is created.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time

from .clock import own_clock
from .file import LedgerFile
from .layout import CLEAN, FAILED, INTERRUPTED, LEDGER_BYTES, MAGIC, SEQUENCE, STRING_AT, SUFFIX, VERSION, WORD_AT
from .text import stored

_TRIES, _PAUSE_SECONDS = 10, 1e-4
_OWN = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)


class LedgerWriter:
    """Creates one ledger, holds its lock, and gives access to its words.

    ``words`` is a writable view of signed 64-bit words; indices come from :data:`layout.WORD_AT`. Code that changes
    more than one word must do ``words[SEQUENCE] += 1`` before and after. ``file.flush()`` writes changes to the file.

    Raises OSError when the directory cannot be used (no permission, no space, read-only).
    """

    def __init__(self, directory: str, strings: dict[str, str], numbers: dict[str, int]):
        # Like /tmp: ranks of every user may create ledgers here, but no user may remove those of another.
        if not os.path.isdir(directory):
            os.makedirs(directory, exist_ok=True)
            try:
                os.chmod(directory, 0o1777)
            except OSError:
                pass
        name = f"{numbers.get('rank', 0)}-{os.getpid()}-{os.urandom(6).hex()}"
        hidden = os.path.join(directory, f".{name}.new")
        self.path = os.path.join(directory, name + SUFFIX)
        # Nobody else may open the file before it is locked: a read lock of another process, which needs no write
        # permission, would prevent ours.
        self._fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, LEDGER_BYTES)  # a full file system fails now, not later
            # MAP_SHARED, so that a fork does not make the training copy pages.
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
            os.fchmod(self._fd, 0o644)  # regardless of the umask: the agent, which reads it, is another user
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
        """Takes the record lock that tells readers, also in other containers, that this rank is alive."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:  # ENOLCK: some network file systems have no locks. Readers then take the rank for ended
            return False

    def set(self, name: str, value: int) -> None:
        self.words[WORD_AT[name][0]] = value

    def set_string(self, name: str, text: str) -> None:
        at, size = STRING_AT[name]
        self._bytes[at : at + size] = stored(name, text).ljust(size, b"\0")

    def copy(self) -> bytes:
        """A copy of the whole ledger from memory. Opening and closing the file would drop its lock.

        If another thread is in the middle of an update, waits for a moment (1 ms in total). After that, the copy may
        lack a part of that update.
        """
        raw = b""
        for _ in range(_TRIES):
            before = self.words[SEQUENCE]
            raw = bytes(self._bytes)
            if not before & 1 and before == self.words[SEQUENCE]:
                break
            time.sleep(_PAUSE_SECONDS)
        return raw

    def close(self, failed: bool = False, interrupted: bool = False) -> None:
        """Marks the ledger as ended, writes the rest and drops the lock. ``failed``: an exception ends the process.
        ``interrupted``: somebody has ended it with Ctrl-C.

        Hooks may still write to ``words`` afterwards.
        Does nothing in a forked child, because the file and its lock belong to the parent.
        """
        if os.getpid() != self._pid or self._fd < 0:
            return
        self.set("ended", FAILED if failed else INTERRUPTED if interrupted else CLEAN)
        self._fd = -1
        self.file.close()

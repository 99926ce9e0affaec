"""What the calling thread has written by calls, as the kernel counts it: wchar of proc_pid_io(5).

It also counts sockets, pipes and tmpfs. Data that reaches a file through a mapping does not count.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..ledger.writer import LedgerWriter


def written(writer: LedgerWriter | None) -> int:
    """Bytes since the thread began, without what the ledger has written; -1 if the kernel does not tell."""
    try:
        with open("/proc/thread-self/io", "rb", buffering=0) as file:
            for line in file.read(1024).splitlines():
                if line.startswith(b"wchar:"):
                    own = writer.file.written.get(threading.get_ident(), 0) if writer is not None else 0
                    return int(line[6:]) - own
    except (OSError, ValueError):
        pass
    return -1

"""Which locks are the interpreter's own: a thread that waits for one of them wants to run Python code."""

from __future__ import annotations

import os
from functools import cache


def is_of_interpreter(address: int) -> bool:
    """Whether a lock with this address, as futex(2) has it, is one of the interpreter's own variables."""
    return any(start <= address < end for start, end in _interpreter_data())


@cache
def _interpreter_data() -> list[tuple[int, int]]:
    """The address ranges of the interpreter's own variables: its writable mapping, and the unnamed one after it."""
    ranges: list[tuple[int, int]] = []
    end_of_last = 0
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                fields = line.split(maxsplit=5)
                start, end = (int(part, 16) for part in fields[0].split("-"))
                name = os.path.basename(fields[5].strip()) if len(fields) == 6 else ""
                ours = name.startswith(("libpython3", "python3")) or name == "python"
                if fields[1].startswith("rw") and (ours or (not name and start == end_of_last)):
                    ranges.append((start, end))
                    end_of_last = end
    except (OSError, ValueError):
        pass
    return ranges

"""Reads the launcher's environment variables, and ends a rank. Does not import torch."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

_MOST_RANKS_NAMED = 8


class BenchError(Exception):
    """The bench cannot go on. The message is a sentence for the user, ``status`` the exit status."""

    def __init__(self, message: str, status: int = 1):
        super().__init__(message)
        self.status = status


class Started(NamedTuple):
    """A rank, as its launcher describes it."""

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    has_store: bool
    """Whether the launcher runs the store."""


def started(env: Mapping[str, str]) -> Started | None:
    """The rank by the variables that torchrun sets. None if they are not set. Raises BenchError."""
    if "RANK" not in env and "WORLD_SIZE" not in env:
        return None

    def number(name: str, least: int, most: int, default: str = "") -> int:
        text = env.get(name, default)
        if not text.isdecimal() or not least <= int(text) <= most:
            raise BenchError(
                f"{name} must be a whole number from {least} to {most}, not {text!r}; does torchrun set it?", 2
            )
        return int(text)

    size = number("WORLD_SIZE", 1, 1 << 20)
    rank = number("RANK", 0, size - 1)
    if size < 2:
        raise BenchError("one rank has no rank to send to: start two or more", 2)
    address = env.get("MASTER_ADDR", "")
    if not address:
        raise BenchError("MASTER_ADDR is not set; does torchrun start this?", 2)
    return Started(
        rank=rank,
        size=size,
        local_rank=number("LOCAL_RANK", 0, size - 1, str(rank)),
        address=address,
        port=number("MASTER_PORT", 1, 65535),
        has_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def ranks_named(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_MOST_RANKS_NAMED])) + (", …" if len(ranks) > _MOST_RANKS_NAMED else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


def first_line(error: BaseException) -> str:
    """The first line of an error, because torch appends a C++ stack. The source location that gloo puts first is
    removed."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].partition("] ")[2] or lines[0] if lines[0].startswith("[") else lines[0]


def end_at_signals(say: Callable[[str], None]) -> None:
    """Makes SIGINT and SIGTERM end this process at once.

    A Python handler would run only after the collective in which the main thread waits. But the byte that the
    interpreter writes on a signal reaches another thread without delay.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def wait() -> None:
        number = os.read(reading, 1)[0]
        say(f"ended by {signal.Signals(number).name}")
        sys.stderr.flush()
        os._exit(128 + number)

    threading.Thread(target=wait, name="signals", daemon=True).start()

"""torch's flight recorder: asks ranks for a dump, and lists the dumps that exist.

With TORCH_NCCL_DEBUG_INFO_PIPE_FILE, a rank reads the named pipe `<value><rank>.pipe` and writes a dump when somebody
writes to it (`DumpPipe` in torch's torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp). Without that variable nothing is
asked. A dump is `<TORCH_FR_DUMP_TEMP_FILE><rank>` (`DebugInfoWriter` in FlightRecorder.cpp).

A dump is a pickle, and loading a pickle can run code. So it is only listed: load it as the user of the training, with
`torchfrtrace`.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass

from ..files import Unreadable, read
from ..parsers.environ import environ

PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
BUFFERS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_HOMES = ("XDG_CACHE_HOME", "HOME")
_VARIABLES = frozenset({PIPE, *BUFFERS, *FILES, *_HOMES})
_DEFAULT = "torch/comm_lib_trace_rank_"
ASKED = "asked for a dump"
MOST_PATH = 4096
OFF = f"torch's flight recorder cannot be asked: set {PIPE}, and TORCH_FR_BUFFER_SIZE in older versions of torch"


@dataclass(frozen=True, slots=True)
class Recorder:
    """The flight recorder of one rank, as its environment sets it."""

    on: bool
    pipe: str
    """The named pipe that asks for a dump; empty if there is none."""
    dump: str
    """The file that a dump is written to; empty if it is not known."""
    uid: int = -1
    """The user of the process."""


def of(procfs: str, pid: int, rank: int) -> Recorder | None:
    """None if the environment of the process cannot be read."""
    try:
        values = environ(read(f"{procfs}/{pid}/environ"), _VARIABLES, MOST_PATH)
        uid = os.stat(f"{procfs}/{pid}").st_uid
    except (Unreadable, OSError):
        return None
    sizes = [values[name] for name in BUFFERS if name in values]
    # Without a size, newer versions of torch have a default, and others make no pipe.
    on = any(size != "0" for size in sizes) if sizes else PIPE in values
    stem = values.get(PIPE, "")
    named = next((values[name] for name in FILES if name in values), "") or _default(values)
    # Files of a container have other names here.
    root = f"{procfs}/{pid}/root"
    return Recorder(
        on,
        f"{root}{stem}{rank}.pipe" if stem.startswith("/") else "",
        f"{root}{named}{rank}" if named.startswith("/") else "",
        uid,
    )


def ask(recorder: Recorder) -> str:
    """Asks for a dump. Returns what came of it, as a sentence."""
    if not recorder.on:
        return OFF
    if not recorder.pipe:
        return OFF
    try:
        # First without opening it for real: a device may do something when it is opened.
        place = os.open(recorder.pipe, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return f"the flight recorder's pipe cannot be written: {error.strerror}"
    try:
        status = os.fstat(place)
        if not stat.S_ISFIFO(status.st_mode) or status.st_uid != recorder.uid:
            return "the flight recorder's pipe is not a pipe of the training's user: nothing was written"
        # O_NONBLOCK: fails if nobody reads the pipe.
        descriptor = os.open(f"/proc/self/fd/{place}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "wb", buffering=0) as pipe:
            pipe.write(b"1")
    except OSError as error:
        return f"the flight recorder's pipe cannot be written: {error.strerror}"
    finally:
        os.close(place)
    return ASKED


def dump(recorder: Recorder) -> tuple[int, float] | None:
    """Size in bytes and age in seconds of the rank's dump; None if there is none, or nothing in it yet."""
    try:
        status = os.lstat(recorder.dump)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return None
    return status.st_size, max(0.0, time.time() - status.st_mtime)


def shown(path: str) -> str:
    """A path as the training itself names it."""
    return path.partition("/root")[2] or path


def _default(values: dict[str, str]) -> str:
    if cache := values.get("XDG_CACHE_HOME"):
        return f"{cache}/{_DEFAULT}"
    home = values.get("HOME", "")
    return f"{home}/.cache/{_DEFAULT}" if home else ""

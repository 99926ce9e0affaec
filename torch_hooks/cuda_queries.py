"""Asks CUDA (or ROCm) from a thread of our own whether an event has been passed, past torch.

torch's `Event.query` holds the GIL, and a driver whose device has stopped may not answer: the training's other threads
would stand still with ours. A call by ctypes holds no GIL. The thread tells the runtime that it is no part of a capture
(relaxed mode, CUDA Runtime API, "Stream Management"), so that its question does not end one.
"""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARIES = (("libcudart", "cuda"), ("libamdhip64", "hip"))
_RELAXED = 2  # cudaStreamCaptureModeRelaxed, hipStreamCaptureModeRelaxed
_SUCCESS, _NOT_READY = 0, 600


class NoQueries(Exception):
    """torch has no runtime of its own in this process that could be asked."""


class Queries:
    """To be made and called by the thread that asks. Raises NoQueries where there is nobody to ask."""

    def __init__(self, device_index: int):
        path, prefix = _runtime()
        runtime = ctypes.CDLL(path)
        self._query = getattr(runtime, f"{prefix}EventQuery")
        self._query.argtypes = [ctypes.c_void_p]
        # A call of a thread without a device would make a context on the first one.
        mode = ctypes.c_int(_RELAXED)
        exchange = getattr(runtime, f"{prefix}ThreadExchangeStreamCaptureMode")
        if getattr(runtime, f"{prefix}SetDevice")(device_index) or exchange(ctypes.byref(mode)):
            raise NoQueries(f"{path} refuses")

    def __call__(self, handle: Any) -> bool | None:
        """Whether the event of a handle has been passed; None where that cannot be told."""
        return {_SUCCESS: True, _NOT_READY: False}.get(self._query(handle[1].cuda_event))


def _runtime() -> tuple[str, str]:
    """-> (the file of the runtime that torch has loaded, the prefix of its functions)."""
    with open("/proc/self/maps") as maps:
        files = {line.rsplit(maxsplit=1)[-1] for line in maps if "/" in line}
    for library, prefix in _LIBRARIES:
        for path in sorted(files):
            if path.rpartition("/")[2].startswith(library + ".so"):
                return path, prefix
    raise NoQueries("no runtime of CUDA or ROCm is loaded")

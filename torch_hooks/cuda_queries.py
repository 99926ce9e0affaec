"""Asks CUDA (or ROCm) from whyidle's watcher thread, without torch: whether the device has passed an event, and whether
the home stream has no work.

torch's `Event.query` holds the GIL. If the device has stopped, the driver may not answer, and all other threads of the
training would be blocked, too. A call through ctypes does not hold the GIL. The thread sets the capture mode to
"relaxed" (CUDA Runtime API, "Stream Management"), so that its query does not invalidate a capture.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_LIBRARIES = (("libcudart", "cuda"), ("libamdhip64", "hip"))
_RELAXED = 2  # cudaStreamCaptureModeRelaxed, hipStreamCaptureModeRelaxed
_SUCCESS, _NOT_READY = 0, 600
_ANSWERS = {_SUCCESS: True, _NOT_READY: False}


class NoQueries(Exception):
    """torch has loaded no CUDA or ROCm runtime in this process that can be asked."""


class Queries:
    """Queries events and the home stream. The thread that asks must create it, too. Raises NoQueries if there is no
    runtime to ask.

    ``home``: returns the handle of the home stream (cudaStream_t), as an integer.
    """

    def __init__(self, device_index: int, home: Callable[[], int]):
        path, prefix = runtime()
        library = ctypes.CDLL(path)
        self._home = home
        self._query = getattr(library, f"{prefix}EventQuery")
        self._query.argtypes = [ctypes.c_void_p]
        self._query_stream = getattr(library, f"{prefix}StreamQuery")
        self._query_stream.argtypes = [ctypes.c_void_p]
        self._is_capturing = getattr(library, f"{prefix}StreamIsCapturing")
        self._is_capturing.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._status = ctypes.c_int()
        self._status_at = ctypes.byref(self._status)
        # Without SetDevice, a call from this thread would create a context on the first device.
        mode = ctypes.c_int(_RELAXED)
        exchange = getattr(library, f"{prefix}ThreadExchangeStreamCaptureMode")
        if getattr(library, f"{prefix}SetDevice")(device_index) or exchange(ctypes.byref(mode)):
            raise NoQueries(f"{path} refuses")

    def passed(self, event: Any) -> bool | None:
        """Whether the device has passed the event of a handle; None if that is not known."""
        return _ANSWERS.get(self._query(event[1].cuda_event))

    def empty(self) -> bool | None:
        """Whether the home stream has no work; None if that is not known."""
        home = self._home()
        return None if self._captures(home) else _ANSWERS.get(self._query_stream(home))

    def _captures(self, stream: int) -> bool:
        """Whether a stream is being captured. A query of such a stream would end its capture."""
        return self._is_capturing(stream, self._status_at) != _SUCCESS or self._status.value != 0


def runtime() -> tuple[str, str]:
    """(the file of the runtime that torch has loaded, the prefix of its functions). Raises NoQueries."""
    with open("/proc/self/maps") as maps:
        files = {line.rsplit(maxsplit=1)[-1] for line in maps if "/" in line}
    for library, prefix in _LIBRARIES:
        for path in sorted(files):
            if path.rpartition("/")[2].startswith(library + ".so"):
                return path, prefix
    raise NoQueries("no runtime of CUDA or ROCm is loaded")

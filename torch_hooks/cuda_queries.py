"""Asks CUDA (or ROCm) whether the device has passed an event, from whyidle's watcher thread and without torch.

torch's `Event.query` holds the GIL. If the device has stopped, the driver may not answer, and all other threads of the
training would be blocked, too. A call through ctypes does not hold the GIL. The thread sets the capture mode to
"relaxed" (CUDA Runtime API, "Stream Management"), so that its query does not invalidate a capture.
"""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARIES = (("libcudart", "cuda"), ("libamdhip64", "hip"))
_RELAXED = 2  # cudaStreamCaptureModeRelaxed, hipStreamCaptureModeRelaxed
_SUCCESS, _NOT_READY = 0, 600


class NoQueries(Exception):
    """torch has loaded no CUDA or ROCm runtime in this process that can be asked."""


class Queries:
    """Queries events. The thread that asks must create it, too. Raises NoQueries if there is no runtime to ask."""

    def __init__(self, device_index: int):
        path, prefix = _runtime()
        runtime = ctypes.CDLL(path)
        self._query = getattr(runtime, f"{prefix}EventQuery")
        self._query.argtypes = [ctypes.c_void_p]
        # Without SetDevice, a call from this thread would create a context on the first device.
        mode = ctypes.c_int(_RELAXED)
        exchange = getattr(runtime, f"{prefix}ThreadExchangeStreamCaptureMode")
        if getattr(runtime, f"{prefix}SetDevice")(device_index) or exchange(ctypes.byref(mode)):
            raise NoQueries(f"{path} refuses")

    def __call__(self, handle: Any) -> bool | None:
        """Whether the device has passed the event of a handle; None if that is not known."""
        return {_SUCCESS: True, _NOT_READY: False}.get(self._query(handle[1].cuda_event))


def _runtime() -> tuple[str, str]:
    """(the file of the runtime that torch has loaded, the prefix of its functions)."""
    with open("/proc/self/maps") as maps:
        files = {line.rsplit(maxsplit=1)[-1] for line in maps if "/" in line}
    for library, prefix in _LIBRARIES:
        for path in sorted(files):
            if path.rpartition("/")[2].startswith(library + ".so"):
                return path, prefix
    raise NoQueries("no runtime of CUDA or ROCm is loaded")

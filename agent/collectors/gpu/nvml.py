"""Calls NVML. The only module that knows pynvml, its exceptions and the memory layouts of NVML.

pynvml finds and starts the library, but the calls use our own function pointers. pynvml's wrappers create new ctypes
objects at each call and one Python object per sample and process: a scrape of eight GPUs would take several times as
long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char, c_double, c_uint, c_ulonglong, c_void_p
from typing import Any

UNINITIALISED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
UNKNOWN = 999

NVML_REASONS: dict[int, str] = {
    UNINITIALISED: "uninitialised",
    INVALID_ARGUMENT: "invalid argument",
    NOT_SUPPORTED: "not supported",
    NO_PERMISSION: "no permission",
    NOT_FOUND: "not found",
    INSUFFICIENT_SIZE: "insufficient size",
    8: "insufficient power",
    DRIVER_NOT_LOADED: "driver not loaded",
    TIMEOUT: "timeout",
    11: "interrupt issue",
    LIBRARY_NOT_FOUND: "library not found",
    FUNCTION_NOT_FOUND: "missing symbol",
    14: "corrupted inforom",
    GPU_IS_LOST: "lost",
    RESET_REQUIRED: "reset required",
    17: "operating system",
    VERSION_MISMATCH: "version mismatch",
    19: "in use",
    20: "memory",
    21: "no data",
    23: "insufficient resources",
    25: "argument version mismatch",
    26: "deprecated",
    27: "not ready",
    28: "gpu not found",
    29: "invalid state",
    UNKNOWN: "unknown error",
}
"""Return code -> the reason under which errors are counted."""

ARCHITECTURES: dict[int, str] = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}

_LIBRARY = "libnvidia-ml.so.1"
GPU_UTILISATION = 1  # nvmlSamplingType_t
MEMORY_UTILISATION = 2
XID_CRITICAL_ERROR = 0x8  # nvmlEventTypeXidCriticalError
MEMORY_V2 = 0x02000000  # version of a versioned struct: the number 2; the struct's size is added in the lower bits


class Memory(ctypes.Structure):
    """nvmlMemory_t"""

    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class MemoryV2(ctypes.Structure):
    """nvmlMemory_v2_t"""

    _fields_ = [
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    ]


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t, of nvmlDeviceGetPciInfo_v3"""

    _fields_ = [("legacy", c_char * 16), ("numbers", c_uint * 5), ("bus_id", c_char * 32)]


class ProcessUtilization(ctypes.Structure):
    """nvmlProcessUtilizationSample_t"""

    _fields_ = [
        ("pid", c_uint),
        ("time", c_ulonglong),  # µs
        ("multiprocessors", c_uint),  # percent
        ("memory", c_uint),
        ("encoder", c_uint),
        ("decoder", c_uint),
    ]


class EventData(ctypes.Structure):
    """nvmlEventData_t"""

    _fields_ = [
        ("device", c_void_p),
        ("type", c_ulonglong),
        ("data", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    ]


class GpmSupport(ctypes.Structure):
    """nvmlGpmSupport_t, version 1"""

    _fields_ = [("version", c_uint), ("supported", c_uint)]


class GpmMetric(ctypes.Structure):
    """nvmlGpmMetric_t"""

    _fields_ = [("id", c_uint), ("result", c_uint), ("value", c_double), ("names", c_void_p * 3)]


class NvmlError(Exception):
    """A call that returned an error code. ``reason`` is one of NVML_REASONS."""

    def __init__(self, call: str, code: int):
        self.call = call
        self.code = code
        self.reason = reason_of(code)
        super().__init__(f"{call}: {self.reason}")


def reason_of(code: int) -> str:
    return NVML_REASONS.get(code, f"error {code}" if code < 100 else "unknown error")


Function = Callable[..., int]


class Nvml:
    """The NVML library. ``open`` loads and starts it. Not thread-safe."""

    def __init__(self) -> None:
        self._functions: dict[str, Function | None] = {}
        self._library: Any = None
        self._pynvml: Any = None
        self.missing: dict[str, None] = {}
        """Functions that were requested but do not exist in this library, in the order of the requests."""

    def open(self) -> None:
        """Loads and starts the library. Raises NvmlError, with LIBRARY_NOT_FOUND also if pynvml is not installed."""
        try:
            ctypes.CDLL(_LIBRARY)  # before pynvml, which takes 6 MB of memory, so that nodes without GPUs save them
        except OSError:
            raise NvmlError(_LIBRARY, LIBRARY_NOT_FOUND) from None
        try:
            import pynvml
        except ImportError:
            raise NvmlError("the Python package nvidia-ml-py", LIBRARY_NOT_FOUND) from None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLLibraryMismatchError:  # not an NVMLError
            raise NvmlError("nvmlInit", FUNCTION_NOT_FOUND) from None
        except pynvml.NVMLError as error:
            code: int = getattr(error, "value", UNKNOWN)
            raise NvmlError("nvmlInit", code) from None
        self._pynvml = pynvml
        if pynvml.nvmlLib is not self._library:
            self._library = pynvml.nvmlLib
            self._functions.clear()

    def close(self) -> None:
        """Stops the library, so that the next ``open`` finds new devices. Never fails."""
        if self._pynvml is None:
            return
        try:
            self._pynvml.nvmlShutdown()
        except (self._pynvml.NVMLError, self._pynvml.NVMLLibraryMismatchError):
            pass  # it was not started, or has stopped already
        self._pynvml = None

    def function(self, *names: str) -> Function | None:
        """The first of these functions that exists in the library. If none does, returns None and adds to ``missing``.

        ``names`` are versions of one function, newest first. The function returns NVML's return code. Numbers are
        passed to it as C ints, unless they are ctypes objects.
        """
        name = names[0]
        try:
            return self._functions[name]
        except KeyError:
            pass
        for candidate in names:
            try:
                # An item, not an attribute, is a new function object, so nobody else sets its argument types.
                found: Function = self._library[candidate]
            except AttributeError:
                continue
            self._functions[name] = found
            return found
        self._functions[name] = None
        self.missing[name] = None
        return None

    def check(self, name: str, *args: object) -> None:
        """Calls a function that must succeed. Raises NvmlError."""
        function = self.function(name)
        code = FUNCTION_NOT_FOUND if function is None else function(*args)
        if code:
            raise NvmlError(name, code)

    def text(self, name: str, *args: object, size: int = 96) -> str:
        """Calls a function that writes a string to a buffer after these arguments. Raises NvmlError."""
        buffer = ctypes.create_string_buffer(size)
        self.check(name, *args, buffer, size)
        return clean(buffer.value)

    def number(self, name: str, *args: object) -> int:
        """Calls a function that writes an unsigned int after these arguments. Raises NvmlError."""
        found = c_uint()
        self.check(name, *args, ctypes.byref(found))
        return found.value


def clean(raw: bytes) -> str:
    """Text of the driver, without characters that are not printable, as the value of a label."""
    return "".join(character for character in raw.decode(errors="replace") if character.isprintable()).strip()

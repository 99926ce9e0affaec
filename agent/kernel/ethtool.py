"""Reads driver counters with the ioctl SIOCETHTOOL.

Reading needs no privilege since Linux 2.6.38, but the agent must be in the network namespace of the interfaces.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

from ..files import Unreadable, reason_of
from ..parsers.ethtool import DRVINFO_BYTES, STRING_BYTES, Driver, driver, names

_SIOCETHTOOL = 0x8946
_GDRVINFO, _GSTRINGS, _GSTATS, _GSSET_INFO = 0x03, 0x1B, 0x1D, 0x37
_SS_STATS = 1
_IFREQ = struct.Struct("@16sP16x")
_SSET_INFO = struct.Struct("=IIQI4x")
_STRINGS_HEAD = struct.Struct("=III")
_STATS_HEAD = struct.Struct("=II")
_VALUE_BYTES = 8
_SLACK = 8192
"""How many entries more than the driver has reported fit into the buffer. The kernel writes all current entries,
whatever the size of the buffer, and their number changes with the queues of an interface. So entries that are added
between our two calls must fit.
"""
_MOST = 1 << 16


class Ethtool:
    """Calls ethtool. All methods raise Unreadable, with `gone` if the interface does not exist. Not thread-safe."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._buffer = bytearray()

    def driver(self, interface: str) -> Driver:
        buffer = bytearray(DRVINFO_BYTES)
        struct.pack_into("=I", buffer, 0, _GDRVINFO)
        self._call(interface, buffer)
        return driver(bytes(buffer))

    def names(self, interface: str) -> tuple[str, ...]:
        """The names of an interface's counters, in the order of their values."""
        count = self._count(interface)
        buffer = bytearray(_STRINGS_HEAD.size + (count + _SLACK) * STRING_BYTES)
        _STRINGS_HEAD.pack_into(buffer, 0, _GSTRINGS, _SS_STATS, count)
        self._call(interface, buffer)
        found = min(_STRINGS_HEAD.unpack_from(buffer)[2], count)
        return names(bytes(buffer[_STRINGS_HEAD.size : _STRINGS_HEAD.size + found * STRING_BYTES]))

    def values(self, interface: str, expected: int) -> memoryview | None:
        """An interface's counters as unsigned numbers, valid until the next call. None if their number has changed."""
        count = self._count(interface)
        if count != expected:
            return None
        needed = _STATS_HEAD.size + (count + _SLACK) * _VALUE_BYTES
        if len(self._buffer) < needed:
            self._buffer = bytearray(needed)
        _STATS_HEAD.pack_into(self._buffer, 0, _GSTATS, count)
        self._call(interface, self._buffer)
        if _STATS_HEAD.unpack_from(self._buffer)[1] != count:
            return None
        end = _STATS_HEAD.size + count * _VALUE_BYTES
        return memoryview(self._buffer)[_STATS_HEAD.size : end].cast("Q")

    def _count(self, interface: str) -> int:
        buffer = bytearray(_SSET_INFO.pack(_GSSET_INFO, 0, 1 << _SS_STATS, 0))
        self._call(interface, buffer)
        _, _, mask, count = _SSET_INFO.unpack(buffer)
        if not mask:
            return 0
        if count > _MOST:
            raise Unreadable("huge")
        return count

    def _call(self, interface: str, buffer: bytearray) -> None:
        try:
            self._socket = self._socket or socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            place = ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
            fcntl.ioctl(self._socket, _SIOCETHTOOL, _IFREQ.pack(interface.encode(), place))
        except OSError as error:
            raise Unreadable(reason_of(error), f"ethtool {interface}") from error

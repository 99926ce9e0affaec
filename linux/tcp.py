"""/proc/<pid>/net/tcp and tcp6: the connections of a network namespace.

Format: proc_pid_net(5) and `get_tcp4_sock` in the kernel's net/ipv4/tcp_ipv4.c.
"""

from __future__ import annotations

import re
import socket
import struct
from typing import NamedTuple

ESTABLISHED = 1
_RETRANSMITTING = 1
_LINE = re.compile(
    rb"^ *\d+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) ([0-9A-F]{2}) "
    rb"([0-9A-F]{8}):([0-9A-F]{8}) ([0-9A-F]{2}):[0-9A-F]{8} ([0-9A-F]{8}) +\d+ +\d+ (\d{1,20})",
    re.MULTILINE,
)


class TcpSocket(NamedTuple):
    """One connection of a network namespace."""

    local: str  # address without the port
    remote: str
    established: bool
    unacknowledged: int  # bytes that were sent
    unread: int  # bytes that were received
    retries: int  # how often the oldest data was sent again
    inode: int

    @property
    def stuck(self) -> bool:
        """Whether it sends the same data again."""
        return self.established and self.unacknowledged > 0 and self.retries > 0


def parse(data: bytes) -> list[TcpSocket]:
    """Lines that do not fit are left out."""
    return [
        TcpSocket(
            _address(at[1]),
            _address(at[3]),
            int(at[5], 16) == ESTABLISHED,
            int(at[6], 16),
            int(at[7], 16),
            int(at[9], 16) if int(at[8], 16) == _RETRANSMITTING else 0,
            int(at[10]),
        )
        for at in _LINE.finditer(data)
    ]


def peers(data: bytes) -> dict[int, str]:
    """The inode of each established connection -> the address and port at its other end."""
    found = {}
    for at in _LINE.finditer(data):
        if int(at[5], 16) == ESTABLISHED:
            address = _address(at[3])
            found[int(at[10])] = f"[{address}]:{int(at[4], 16)}" if ":" in address else f"{address}:{int(at[4], 16)}"
    return found


def _address(raw: bytes) -> str:
    """The kernel writes each word of an address in the machine's byte order."""
    words = [int(raw[at : at + 8], 16) for at in range(0, len(raw), 8)]
    packed = b"".join(struct.pack("=I", word) for word in words)
    text = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    return text.removeprefix("::ffff:")

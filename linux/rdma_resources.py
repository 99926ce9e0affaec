"""The kernel's answer to RDMA_NLDEV_CMD_RES_QP_GET: the queue pairs of processes. Format: rdma/rdma_netlink.h.

To read those of one's own process needs no privilege. See rdma-resource(8).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable

from . import netlink
from .netlink import attribute, attributes
from .unreadable import Unreadable

_NLDEV = 5 << 10
_GET, _QP_GET = _NLDEV + 1, _NLDEV + 10
_DEVICE, _NAME, _PORT = 1, 2, 3  # RDMA_NLDEV_ATTR_*
_QPS, _TYPE, _STATE, _PID = 19, 26, 27, 28
_FIRST_FOR_DATA = 2  # IB_QPT_RC; before it are those of management
_READY = 3  # IB_QPS_RTS: ready to send
_U32 = struct.Struct("=I")

Port = tuple[str, int]
"""The name of the device, and the number of the port; 0: not known."""


def queue_pairs(pid: int) -> Counter[Port]:
    """How many queue pairs of a process can send, by port. Raises Unreadable."""
    found: Counter[Port] = Counter()
    for index, name in parse_devices(netlink.ask(netlink.RDMA, netlink.request(_GET, b""), "RDMA_NLDEV_CMD_GET")):
        question = netlink.request(_QP_GET, attribute(_DEVICE, _U32.pack(index)))
        found += parse_pairs(netlink.ask(netlink.RDMA, question, "RDMA_NLDEV_CMD_RES_QP_GET"), name, pid)
    return found


def parse_devices(bodies: Iterable[bytes]) -> list[tuple[int, str]]:
    """(index, name) of each device. Raises Unreadable."""
    try:
        told = [attributes(body) for body in bodies]
        return [(_U32.unpack_from(one[_DEVICE])[0], one[_NAME].rstrip(b"\0").decode("ascii")) for one in told]
    except (KeyError, struct.error, UnicodeDecodeError):
        raise Unreadable("garbage", "RDMA_NLDEV_CMD_GET") from None


def parse_pairs(bodies: Iterable[bytes], device: str, pid: int) -> Counter[Port]:
    """Raises Unreadable."""
    found: Counter[Port] = Counter()
    try:
        for body in bodies:
            for _, entry in netlink.each_attribute(attributes(body).get(_QPS, b"")):
                told = attributes(entry)
                if _PID not in told or _U32.unpack_from(told[_PID])[0] != pid or told[_STATE][0] != _READY:
                    continue  # those of the kernel have no pid
                if told[_TYPE][0] >= _FIRST_FOR_DATA:
                    found[device, _U32.unpack_from(told[_PORT])[0] if _PORT in told else 0] += 1
    except (KeyError, struct.error, IndexError):
        raise Unreadable("garbage", "RDMA_NLDEV_CMD_RES_QP_GET") from None
    return found

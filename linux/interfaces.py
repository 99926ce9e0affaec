"""The network interfaces of the caller's namespace, as rtnetlink(7) tells them: links, addresses, and routes.

Format: linux/if_link.h, linux/if_addr.h, linux/rtnetlink.h. Nothing here needs a privilege or /sys, which may show the
interfaces of another namespace.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import NamedTuple

from . import netlink
from .netlink import REQUEST, attribute, attributes
from .unreadable import Unreadable

_GET_LINK, _GET_ADDRESS, _GET_ROUTE = 18, 22, 26
_IFINFO = struct.Struct("=BxHiII")  # family, type, index, flags, change
_IFADDR = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
_RTMSG = struct.Struct("=BBBBBBBBI")  # family, lengths of destination and source, tos, table, protocol, scope, type
_U32, _I32, _U64 = struct.Struct("=I"), struct.Struct("=i"), struct.Struct("=Q")
_NAME, _MTU, _LOWER, _MASTER, _STATE, _LINK_INFO, _STATS, _ELSEWHERE = 3, 4, 5, 10, 16, 18, 23, 37  # IFLA_*
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_SRC, _RTA_OIF = 1, 2, 4
_RUNNING = 0x40  # IFF_RUNNING
_UP = 6  # IF_OPER_UP
_UNKNOWN = 0
_LOCAL = 2  # RTN_LOCAL
_GLOBAL = 0  # RT_SCOPE_UNIVERSE
_LENGTHS = {socket.AF_INET: 4, socket.AF_INET6: 16}

_SIOCETHTOOL, _ETHTOOL_GSET = 0x8946, 1
_ETHTOOL_CMD = struct.Struct("=I8xH14xH14x")  # struct ethtool_cmd: cmd, speed, speed_hi
_IFREQ = struct.Struct("@16sP16x")
_UNKNOWN_SPEEDS = (0, 0xFFFF, 0xFFFF_FFFF)


class Link(NamedTuple):
    index: int
    name: str
    kind: str  # veth, bridge, bond, ...; empty for hardware and the loopback
    up: bool
    mtu: int
    master: int  # index of the bond or bridge to which it belongs; 0: none
    moved_bytes: int  # in both directions
    lower: int = 0  # index of the interface on which it stands, such as a VLAN; 0: none, or in another namespace


class Address(NamedTuple):
    interface: int  # index
    family: int
    address: str
    prefix: int  # its length
    everywhere: bool  # whether it is valid beyond the link and the host

    @property
    def text(self) -> str:
        return f"{self.address}/{self.prefix}"


def link(index: int) -> Link:
    """One interface. Raises Unreadable, with `gone` if it is not there."""
    question = netlink.request(_GET_LINK, _IFINFO.pack(0, 0, index, 0, 0), REQUEST)
    for body in netlink.ask(netlink.ROUTE, question, "RTM_GETLINK", whole=False):
        return parse_link(body)
    raise Unreadable("gone", "RTM_GETLINK")


def members(master: int) -> list[Link]:
    """The interfaces that belong to a bond or bridge. Raises Unreadable."""
    question = netlink.request(_GET_LINK, _IFINFO.pack(0, 0, 0, 0, 0) + attribute(_MASTER, _U32.pack(master)))
    found = [parse_link(body) for body in netlink.ask(netlink.ROUTE, question, "RTM_GETLINK")]
    return [one for one in found if one.master == master]  # older kernels give all


def addresses() -> list[Address]:
    """Raises Unreadable."""
    question = netlink.request(_GET_ADDRESS, _IFADDR.pack(0, 0, 0, 0, 0))
    return [
        found
        for body in netlink.ask(netlink.ROUTE, question, "RTM_GETADDR")
        if (found := parse_address(body)) is not None
    ]


def interface_to(local: str, remote: str) -> tuple[int, bool]:
    """The index of the interface over which the kernel sends from one address to another, and whether the other one is
    of this namespace. Raises Unreadable."""
    family = socket.AF_INET6 if ":" in remote else socket.AF_INET
    packed = [socket.inet_pton(family, address) for address in (remote, local)]
    bits = 8 * _LENGTHS[family]
    body = _RTMSG.pack(family, bits, bits, 0, 0, 0, 0, 0, 0) + attribute(_RTA_DST, packed[0])
    question = netlink.request(_GET_ROUTE, body + attribute(_RTA_SRC, packed[1]), REQUEST)
    for answer in netlink.ask(netlink.ROUTE, question, "RTM_GETROUTE", whole=False):
        return parse_route(answer)
    raise Unreadable("gone", "RTM_GETROUTE")


def parse_link(body: bytes) -> Link:
    """Raises Unreadable."""
    try:
        _, _, index, flags, _ = _IFINFO.unpack_from(body)
        found = attributes(body[_IFINFO.size :])
        state = found.get(_STATE, b"\0")[0]
        stats = found.get(_STATS, b"")
        received, sent = struct.unpack_from("=QQ", stats, 16) if stats else (0, 0)
        return Link(
            index,
            _text(found[_NAME]),
            _text(attributes(found.get(_LINK_INFO, b"")).get(1, b"")),
            # Drivers that do not track the state leave it unknown.
            state == _UP or (state == _UNKNOWN and bool(flags & _RUNNING)),
            _U32.unpack_from(found[_MTU])[0] if _MTU in found else 0,
            _U32.unpack_from(found[_MASTER])[0] if _MASTER in found else 0,
            received + sent,
            0 if _ELSEWHERE in found or _LOWER not in found else _U32.unpack_from(found[_LOWER])[0],
        )
    except (KeyError, struct.error, IndexError):
        raise Unreadable("garbage", "RTM_GETLINK") from None


def parse_address(body: bytes) -> Address | None:
    """None for an address that is neither IPv4 nor IPv6. Raises Unreadable."""
    try:
        family, prefix, _, scope, index = _IFADDR.unpack_from(body)
        found = attributes(body[_IFADDR.size :])
        packed = found.get(_IFA_LOCAL) or found[_IFA_ADDRESS]  # of a point-to-point link, IFA_ADDRESS is the other end
        if _LENGTHS.get(family) != len(packed):
            return None
        return Address(index, family, socket.inet_ntop(family, packed), prefix, scope == _GLOBAL)
    except (KeyError, struct.error):
        raise Unreadable("garbage", "RTM_GETADDR") from None


def parse_route(body: bytes) -> tuple[int, bool]:
    """Raises Unreadable."""
    try:
        kind = _RTMSG.unpack_from(body)[7]
        return _I32.unpack_from(attributes(body[_RTMSG.size :])[_RTA_OIF])[0], kind == _LOCAL
    except (KeyError, struct.error):
        raise Unreadable("garbage", "RTM_GETROUTE") from None


def speed(name: str) -> int:
    """The speed of an interface, in bits a second; 0 if it is not known."""
    import ctypes

    answer = ctypes.create_string_buffer(_ETHTOOL_CMD.pack(_ETHTOOL_GSET, 0, 0), _ETHTOOL_CMD.size)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asked:
            fcntl.ioctl(asked, _SIOCETHTOOL, _IFREQ.pack(name.encode(), ctypes.addressof(answer)))
    except OSError:  # its driver does not tell, or not while the link is down
        return 0
    _, low, high = _ETHTOOL_CMD.unpack(answer.raw)
    megabits = high << 16 | low
    return 0 if megabits in _UNKNOWN_SPEEDS else megabits * 1_000_000


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "replace")

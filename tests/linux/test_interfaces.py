"""Links, addresses and routes as the kernel tells them, from bytes and from real namespaces."""

from __future__ import annotations

import json
import socket
import struct
import sys

import network_nodes
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.linux import interfaces
from whyidle.linux.interfaces import Address, Link, parse_address, parse_link, parse_route
from whyidle.linux.netlink import attribute
from whyidle.linux.unreadable import Unreadable


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def link_body(*, state: int | None = 6, flags: int = 0x41, info: bytes = b"") -> bytes:
    body = struct.pack("=BxHiII", 0, 1, 4, flags, 0)
    body += (
        attribute(3, b"eth0\0") + attribute(4, u32(9000)) + attribute(23, struct.pack("=8Q", 1, 2, 30, 12, 0, 0, 0, 0))
    )
    return body + (b"" if state is None else attribute(16, bytes([state]))) + info


@pytest.mark.parametrize(
    ("body", "up"),
    [
        (link_body(), True),
        (link_body(state=2), False),  # down
        (link_body(state=0, flags=0x41), True),  # the driver does not track it
        (link_body(state=0, flags=0x1), False),
        (link_body(state=None, flags=0x41), True),
    ],
)
def test_state_of_a_link(body: bytes, up: bool) -> None:
    assert parse_link(body) == Link(4, "eth0", "", up, 9000, 0, 42)


def test_kind_and_master_of_a_link() -> None:
    info = attribute(18, attribute(1, b"veth\0")) + attribute(10, u32(7))
    assert parse_link(link_body(info=info))[2:6] == ("veth", True, 9000, 7)


def test_the_interface_on_which_a_link_stands() -> None:
    assert parse_link(link_body(info=attribute(5, u32(2)))).lower == 2
    # The other end of a veth pair may be in another namespace, where indexes mean other interfaces.
    assert parse_link(link_body(info=attribute(5, u32(2)) + attribute(37, u32(0)))).lower == 0


def test_addresses() -> None:
    start = struct.pack("=BBBBI", socket.AF_INET, 24, 0, 0, 3)
    own, other = socket.inet_aton("10.0.0.1"), socket.inet_aton("10.0.0.2")
    expected = Address(3, socket.AF_INET, "10.0.0.1", 24, True)
    assert parse_address(start + attribute(1, own)) == expected
    assert parse_address(start + attribute(1, other) + attribute(2, own)) == expected  # point to point
    six = struct.pack("=BBBBI", socket.AF_INET6, 64, 0, 253, 3) + attribute(
        1, socket.inet_pton(socket.AF_INET6, "fe80::1")
    )
    assert parse_address(six) == Address(3, socket.AF_INET6, "fe80::1", 64, False)


@given(st.binary(max_size=120))
def test_noise_is_parsed_or_unreadable(noise: bytes) -> None:
    for parse in (parse_link, parse_address, parse_route):
        try:
            parse(noise)
        except Unreadable:
            pass


def test_a_missing_interface_is_gone() -> None:
    with pytest.raises(Unreadable, match="gone"):
        interfaces.link(1 << 20)


def test_own_connections_stay_inside() -> None:
    assert interfaces.interface_to("127.0.0.1", "127.0.0.1") == (socket.if_nametoindex("lo"), True)


ASK = """
import json, sys
from whyidle.linux import interfaces
local, remote = sys.argv[1:]
index, inside = interfaces.interface_to(local, remote)
print(json.dumps([interfaces.link(index).name, inside]))
"""


def test_asks_for_the_route_of_a_connection() -> None:
    """Not the interface with the address, but that over which the kernel sends."""
    if why := network_nodes.missing():
        pytest.skip(why)
    with network_nodes.network_nodes(2, 2) as [one, other]:

        def way(local: str, remote: str) -> list[object]:
            return json.loads(one.run(sys.executable, "-c", ASK, local, remote))

        assert way(one.address(1), other.address(1)) == ["eth1", False]
        assert way(one.address(1), one.address(0)) == ["lo", True]
        one.run("ip", "route", "add", f"{other.address(0)}/32", "dev", "eth1", "src", one.address(0))
        assert way(one.address(0), other.address(0)) == ["eth1", False]

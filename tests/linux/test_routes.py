"""The routing table: which interface leads to an address."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from fake_node.routes import IPV4, IPV6
from hypothesis import given, settings
from hypothesis import strategies as st

from whyidle.linux.routes import interface_to, ipv4, ipv6


@pytest.mark.skipif(socket.htons(1) == 1, reason="the sample is of a little-endian machine")
@pytest.mark.parametrize(
    ("address", "interface"),
    [
        ("8.8.8.8", "eth0"),  # of two default routes, the one with the least metric
        ("10.0.9.1", "eth0"),  # a route that rejects does not count
        ("10.0.3.9", "ib0"),  # the longest
        ("10.0.3.7", "bond0.7"),
        ("fd00::5", "ib1"),
        ("2001:db8::1", "eth0"),
        ("nfs1.cluster", ""),
        ("10.0.3", ""),
        ("", ""),
        ("fd00::zz", ""),
        ("10.0.0.1\0", ""),
    ],
)
def test_takes_the_longest_route(address: str, interface: str) -> None:
    assert interface_to(address, [*ipv4(IPV4), *ipv6(IPV6)]) == interface


def test_an_address_without_a_route_has_no_interface() -> None:
    assert interface_to("10.0.0.1", []) == ""
    assert interface_to("10.0.0.1", ipv6(IPV6)) == ""


@pytest.mark.parametrize("parse", [ipv4, ipv6])
@settings(max_examples=100, deadline=None, database=None)
@given(data=st.one_of(st.binary(max_size=300), st.just(IPV4[40:]), st.just(IPV6[17:])))
def test_leaves_out_invalid_lines(parse, data: bytes) -> None:  # type: ignore[no-untyped-def]
    for route in parse(data):
        interface_to("10.0.0.1", [route])
        interface_to("fd00::1", [route])


def test_reads_the_routes_of_this_machine() -> None:
    lines = Path("/proc/net/route").read_bytes().rstrip().split(b"\n")[1:]
    if not lines:
        pytest.skip("this machine has no route")
    assert {route.interface for route in ipv4(Path("/proc/net/route").read_bytes())} <= {
        line.split()[0].decode() for line in lines
    }

"""Tables of routes, as a little-endian kernel writes them."""

from __future__ import annotations

IPV4 = b"""Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
wlan0\t00000000\t0100000A\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t100\t0000FFFF\t0\t0\t0
ib0\t0003000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
bond0.7\t0703000A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
*\t0009000A\t00000000\t0201\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
NOWHERE = b"0" * 32
IPV6 = b"".join(
    b"%s %02x %s 00 %s %08x 00000001 00000000 %08x %8s\n" % line
    for line in (
        (b"fd" + b"0" * 30, 64, NOWHERE, NOWHERE, 256, 1, b"ib1"),
        (NOWHERE, 0, NOWHERE, b"fe80" + b"0" * 27 + b"1", 1024, 3, b"eth0"),
        (NOWHERE, 0, NOWHERE, NOWHERE, 0xFFFF_FFFF, 0x0020_0200, b"lo"),
    )
)

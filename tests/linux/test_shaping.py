"""The limit of an interface, from options of queueing disciplines, classes and filters as the kernel writes them."""

from __future__ import annotations

import shutil
import struct
import sys

import network_nodes
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.linux.netlink import attribute
from whyidle.linux.qdisc import ROOT, Qdisc
from whyidle.linux.shaping import Class, Limit, classes, limit_of, limit_of_classes, policed, rate_of
from whyidle.linux.unreadable import Unreadable

MBIT = 125_000  # bytes a second
WIDE = 12_500_000_000  # 100 Gbit/s need more than 32 bits


def spec(rate: int) -> bytes:
    """struct tc_ratespec"""
    return struct.pack("=BBHhHI", 0, 1, 0, 0, 0, min(rate, 0xFFFF_FFFF))


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def u64(value: int) -> bytes:
    return struct.pack("=Q", value)


def tbf(rate: int) -> bytes:
    wide = attribute(4, u64(rate)) if rate > 0xFFFF_FFFF else b""
    return attribute(1, spec(rate) + spec(0) + b"\0" * 12) + wide


def netem(rate: int) -> bytes:
    wide = attribute(8, u64(rate)) if rate > 0xFFFF_FFFF else b""
    return b"\0" * 24 + attribute(6, u32(min(rate, 0xFFFF_FFFF)) + b"\0" * 12) + wide


def qdisc(kind: str, options: bytes = b"", handle: int = 0x10000, parent: int = ROOT, interface: int = 2) -> Qdisc:
    return Qdisc(interface, handle, parent, kind, 0, 0, options)


@pytest.mark.parametrize(
    ("kind", "options", "bits"),
    [
        ("tbf", tbf(200 * MBIT), 200_000_000),
        ("tbf", tbf(WIDE), 100_000_000_000),
        ("netem", netem(50 * MBIT), 50_000_000),
        ("netem", netem(WIDE), 100_000_000_000),
        ("netem", b"\0" * 24, 0),  # only delay or loss
        ("cake", attribute(2, u64(20 * MBIT)), 20_000_000),
        ("cake", attribute(2, u64(0)), 0),
        ("fq", attribute(7, u32(10 * MBIT)), 10_000_000),
        ("fq", attribute(7, u32(0xFFFF_FFFF)), 0),
        ("cbs", attribute(1, struct.pack("=Bxxxiiii", 0, 153, -1389, 98_688, -901_312)), 98_688_000),
        ("fq_codel", attribute(1, u32(5000)), 0),
        ("tbf", b"\x03", 0),
    ],
)
def test_rate_of_a_qdisc(kind: str, options: bytes, bits: int) -> None:
    assert rate_of(qdisc(kind, options)) == bits


def test_takes_the_lowest_limit_on_the_way() -> None:
    outer = qdisc("netem", netem(300 * MBIT))
    inner = qdisc("tbf", tbf(100 * MBIT), 0x20000, 0x10001)
    elsewhere = qdisc("tbf", tbf(MBIT), interface=3)
    assert limit_of(2, [outer, inner, elsewhere]) == Limit(100_000_000, "tbf")
    assert limit_of(2, [outer]) == Limit(300_000_000, "netem")
    assert limit_of(2, [qdisc("fq_codel")]) is None


def test_a_limit_of_one_class_does_not_limit_the_interface() -> None:
    assert limit_of(2, [qdisc("prio"), qdisc("tbf", tbf(MBIT), 0x20000, 0x10002)]) is None


def test_each_queue_of_a_device_may_limit_connections() -> None:
    queues = [qdisc("fq", attribute(7, u32(10 * MBIT)), 0, 0x10000 | queue) for queue in (1, 2)]
    assert limit_of(2, [qdisc("mq"), *queues]) == Limit(10_000_000, "fq")


def body(handle: int, parent: int, options: bytes, sent: int = 0) -> bytes:
    stats = attribute(7, attribute(1, struct.pack("=QI4x", sent, 1)))
    return struct.pack("=BxxxiIII", 0, 2, handle, parent, 0) + attribute(1, b"htb\0") + attribute(2, options) + stats


def htb(rate: int, ceil: int) -> bytes:
    wide = attribute(7, u64(ceil)) if ceil > 0xFFFF_FFFF else b""
    return attribute(1, spec(rate) + spec(ceil) + b"\0" * 20) + wide


ROOT_OF_HTB = qdisc("htb", attribute(2, struct.pack("=IIIII", 3, 10, 0x20, 0, 0)))


def test_classes_of_htb() -> None:
    bodies = [
        body(0x10001, ROOT, htb(MBIT, WIDE)),
        body(0x10010, 0x10001, htb(MBIT, 50 * MBIT), 7),
        body(0x20001, ROOT, htb(MBIT, MBIT)),  # of another qdisc
    ]
    assert classes(ROOT_OF_HTB, bodies) == [
        Class(0x10001, ROOT, 0, 100_000_000_000),
        Class(0x10010, 0x10001, 7, 50_000_000),
    ]


@pytest.mark.parametrize(
    ("sent", "bits"),
    [((5, 9), 30_000_000), ((9, 5), 20_000_000), ((0, 0), 30_000_000)],
    ids=["default sends most", "other sends most", "nothing sent yet: the default"],
)
def test_the_class_that_sends_most_counts(sent: tuple[int, int], bits: int) -> None:
    found = [
        Class(0x10001, ROOT, sum(sent), 30_000_000),
        Class(0x10010, 0x10001, sent[0], 20_000_000),
        Class(0x10020, 0x10001, sent[1], 40_000_000),  # the default; its parent has less
    ]
    assert limit_of_classes(ROOT_OF_HTB, found) == bits


def test_upper_limit_of_hfsc() -> None:
    one = qdisc("hfsc", struct.pack("=H", 1))
    curve = struct.pack("=III", 0, 0, 25 * MBIT)
    found = classes(one, [body(0x10001, 0x10000, attribute(2, curve) + attribute(3, curve))])
    assert limit_of_classes(one, found) == 25_000_000
    assert limit_of_classes(one, classes(one, [body(0x10001, 0x10000, attribute(2, curve))])) == 0


def test_police_action_of_a_filter() -> None:
    police = attribute(1, b"\0" * 20 + spec(75 * MBIT) + spec(0) + b"\0" * 12)
    actions = attribute(1, attribute(1, b"police\0") + attribute(2, police))
    other = attribute(1, attribute(1, b"mirred\0") + attribute(2, attribute(2, b"\0" * 28)))
    options = attribute(1, u32(0)) + attribute(2, actions)
    start = struct.pack("=BxxxiIII", 0, 2, 0x80000000, 0xFFFF0000, 0)
    assert policed([start + attribute(1, b"matchall\0") + attribute(2, options)]) == 75_000_000
    assert policed([start + attribute(1, b"matchall\0") + attribute(2, attribute(2, other))]) == 0


@given(st.binary(max_size=120), st.sampled_from(["tbf", "netem", "cake", "fq", "cbs", "htb", "hfsc"]))
def test_noise_is_parsed_or_unreadable(noise: bytes, kind: str) -> None:
    one = qdisc(kind, noise)
    assert rate_of(one) >= 0
    for parse in (lambda: classes(one, [noise]), lambda: policed([noise])):
        try:
            parse()
        except Unreadable:
            pass


@pytest.mark.skipif(not shutil.which("tc"), reason="needs tc")
def test_reads_real_limits() -> None:
    if why := network_nodes.missing():
        pytest.skip(why)
    ask = """
import sys
from whyidle.linux import interfaces, shaping, traffic_control
index = next(one.interface for one in interfaces.addresses() if one.address == sys.argv[1])
name = interfaces.link(index).name
print(name, interfaces.speed(name), shaping.limit_of(index, traffic_control.qdiscs()[0]))
"""
    with network_nodes.network_nodes(1, 2) as [node], network_nodes.limited([node], 0, 200_000_000):
        for command in (
            "tc qdisc add dev eth1 root handle 1: htb default 20",
            "tc class add dev eth1 parent 1: classid 1:1 htb rate 90mbit ceil 90mbit",
            "tc class add dev eth1 parent 1:1 classid 1:20 htb rate 10mbit ceil 200mbit",
        ):
            node.run(*command.split())
        found = [node.run(sys.executable, "-c", ask, node.address(link)).strip() for link in (0, 1)]
    assert found == [
        "eth0 10000000000 Limit(bits_per_second=200000000, by='tbf')",
        "eth1 10000000000 Limit(bits_per_second=90000000, by='htb')",
    ]

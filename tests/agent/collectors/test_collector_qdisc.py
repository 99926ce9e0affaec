"""The collector `qdisc`: what the kernel reports about queueing disciplines, from captured messages and sockets."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_node import kernel, nic, qdisc
from fake_node.kernel import COMPILER, scraper
from hypothesis import given
from hypothesis import strategies as st

from whyidle.agent.files import Roots, Unreadable
from whyidle.linux.qdisc import Qdisc, Reply, answer, request

OVERLIMITS, BACKLOG = "whyidle_qdisc_overlimits_total", "whyidle_qdisc_backlog_bytes"
# From Linux 6.18: the loopback, and a veth with a token bucket in front of which 57 packets had to wait.
CAPTURED = bytes.fromhex(
    "94000000240002000100000048410000000000000100000000000000ffffffff020000000c0001006e6f71756575650005000c000000"
    "00003000070014000100000000000000000000000000000000001800030000000000000000000000000000000000000000002c000300"
    "000000000000000000000000000000000000000000000000000000000000000000000000000000009c00000024000200010000004841"
    "0000000000000200000000009781ffffffff030000000a000100706669666f000000080002000a00000005000c000000000030000700"
    "140001000a0100000000000003000000000000001800030000000000000000000000000000000000000000002c0003000a0100000000"
    "00000300000000000000000000000000000000000000000000000000000000000000bc00000024000200010000004841000000000000"
    "0300000000000100ffffffff0300000008000100746266002c0002002800010000010000000000006a18000000000000000000000000"
    "0000c419000000409c000000000005000c00000000003000070014000100a81500000000000006000000000000001800030003000000"
    "ba0f000035000000000000003b0000002c000300a81500000000000006000000350000003b000000000000000000000003000000ba0f"
    "000000000000"
)
needs_compiler = pytest.mark.skipif(not COMPILER, reason="needs a C compiler for the library that answers")


def test_parses_a_captured_answer() -> None:
    found = answer(CAPTURED, sequence=1)
    assert found._replace(qdiscs=[one._replace(options=b"") for one in found.qdiscs]) == Reply(
        [
            Qdisc(1, 0, qdisc.ROOT, "noqueue", 0, 0),
            Qdisc(2, 0x81970000, qdisc.ROOT, "pfifo", 0, 0),
            Qdisc(3, 0x00010000, qdisc.ROOT, "tbf", 4026, 59),
        ],
        done=False,
        errno=0,
        interrupted=False,
        bad=0,
    )


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (qdisc.DONE, Reply([], True, 0, False, 0)),
        (qdisc.error(errno.EPERM), Reply([], True, errno.EPERM, False, 0)),
        (qdisc.message(36, qdisc.new(qdisc.FAKES[1])[16:], flags=0x12), Reply([], False, 0, True, 0)),
        (qdisc.message(3, b"\0\0\0\0", sequence=7), Reply([], False, 0, False, 0)),
        (qdisc.message(36, b"\1\2\3"), Reply([], False, 0, False, 1)),
        (qdisc.message(36, b"\0" * 20 + b"\2\0\1\0"), Reply([], False, 0, False, 1)),
        (qdisc.message(36, b"\0" * 20 + qdisc.attribute(1, b"tbf\0")), Reply([], False, 0, False, 0)),
    ],
    ids=["done", "refused", "changed meanwhile", "of another question", "short", "bad length", "without counters"],
)
def test_parses_other_answers(data: bytes, found: Reply) -> None:
    told = answer(data, sequence=1)
    assert told._replace(qdiscs=[]) == found


@pytest.mark.parametrize("data", [b"", CAPTURED[:10], CAPTURED[:60], b"\xff" * 32])
def test_rejects_a_truncated_datagram(data: bytes) -> None:
    with pytest.raises(Unreadable):
        answer(data, sequence=1)


@given(st.binary(max_size=400), st.integers(0, len(CAPTURED) - 1))
def test_noise_is_parsed_or_unreadable(noise: bytes, at: int) -> None:
    for data in (noise, CAPTURED[:at] + noise + CAPTURED[at + len(noise) :]):
        try:
            found = answer(data, sequence=1)
        except Unreadable:
            continue
        assert all(0 < len(one.kind) <= 16 for one in found.qdiscs)


def test_the_kernel_accepts_the_request() -> None:
    assert len(request(1)) == 36


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    found = Roots(str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path))
    nic.build(found)
    return found


def collected(series: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    return {(name.removeprefix("whyidle_qdisc_"), *labels): value for (name, *labels), value in series.items()}


@needs_compiler
def test_exports_queueing_disciplines(roots: Roots, tmp_path: Path) -> None:
    script = tmp_path / "kernel"
    kernel.write(script, qdisc.script())
    with scraper("qdisc", roots, script) as scrape:
        series, errors, blind = scrape()
        assert (errors, blind) == ([], [])
        # The values of mq are the sums over its queues.
        assert collected(series) == {
            ("overlimits_total", "eth0", "fq_codel"): 3,
            ("overlimits_total", "eth2", "fq_codel"): 5000,
            ("overlimits_total", "eth3", "tbf"): 4_294_967_290,
            ("backlog_bytes", "eth0", "fq_codel"): 1514,
            ("backlog_bytes", "eth2", "fq_codel"): 9000,
            ("backlog_bytes", "eth3", "tbf"): 250_000,
        }
        # The kernel counts in 32 bits.
        kernel.write(script, qdisc.script([*qdisc.FAKES[:-1], qdisc.FAKES[-1]._replace(overlimits=4)]))
        assert scrape()[0][OVERLIMITS, "eth3", "tbf"] == 4_294_967_300


@needs_compiler
@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (qdisc.script(qdisc.FAKES, qdisc.error(errno.EIO)), "io"),
        (qdisc.script(qdisc.FAKES, qdisc.message(3, b"\0" * 4, flags=0x12)), "changed"),
        (qdisc.script(qdisc.FAKES, qdisc.message(36, b"\1"), qdisc.DONE), "garbage"),
        (qdisc.script(qdisc.FAKES, qdisc.message(4, b"")), "timeout"),
        ([*qdisc.script(), "netlink 00112233"], ""),
        (["netlink 00112233"], "garbage"),
        ([f"netlink errno {errno.EMFILE}"], "io"),
    ],
    ids=["error", "changed", "garbage", "no end", "beyond its end", "nonsense", "no socket"],
)
def test_an_error_affects_only_the_series_it_affects(
    roots: Roots, tmp_path: Path, lines: list[str], error: str
) -> None:
    script = tmp_path / "kernel"
    kernel.write(script, lines)
    with scraper("qdisc", roots, script) as scrape:
        series, errors, _ = scrape()
        assert [one[2] for one in errors] == ([error] if error else [])
        assert bool(series) == (error in ("", "garbage") and len(lines) > 1)
        kernel.write(script, qdisc.script())
        assert len(scrape()[0]) == 6


@needs_compiler
@pytest.mark.parametrize("lines", [[f"netlink errno {errno.EACCES}"], qdisc.script([qdisc.Fake(77, "tbf")])])
def test_reports_what_it_cannot_see(roots: Roots, tmp_path: Path, lines: list[str]) -> None:
    """Netlink that is not allowed, and interfaces in another network namespace."""
    kernel.write(tmp_path / "kernel", lines)
    with scraper("qdisc", roots, tmp_path / "kernel") as scrape:
        series, errors, [blind] = scrape()
    assert (series, errors) == ({}, [])
    assert blind[0] == "what traffic control (tc) holds back on the node's interfaces"


@needs_compiler
def test_an_interface_of_the_same_number_and_another_name_is_another_one(roots: Roots, tmp_path: Path) -> None:
    Path(roots.sysfs, "class/net/eth3/ifindex").write_text("3\n")
    Path(roots.sysfs, "class/net/eth2/ifindex").write_text("4\n")
    kernel.write(tmp_path / "kernel", qdisc.script())
    with scraper("qdisc", roots, tmp_path / "kernel") as scrape:
        assert {name[1] for name in scrape()[0]} == {"eth0"}


_IN_A_NAMESPACE = """
ip link add whyidle0 type veth peer name whyidle1
ip addr add 10.217.9.1/24 dev whyidle0
ip link set whyidle0 up
ip link set whyidle1 up
ip neigh add 10.217.9.9 lladdr 02:00:00:00:00:01 dev whyidle0
tc qdisc add dev whyidle0 root tbf rate 50kbit burst 4kb latency 400ms
mount -t sysfs none /mnt
exec "$@"
"""
_SEND = """
import json, socket
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(60):
    sender.sendto(bytes(1300), ("10.217.9.9", 9))
from whyidle.agent.collectors.qdisc import QdiscCollector
from whyidle.agent.reading import Reading
reading = Reading()
QdiscCollector("/mnt").collect(reading)
print(json.dumps({metric.name: samples["whyidle0", "tbf"] for metric, samples in reading.samples.items()}))
assert not reading.errors, reading.errors
"""


@pytest.fixture
def inside() -> list[str]:
    """The prefix that runs a command in a network namespace with a token bucket of 50 kbit/s."""
    command = ["unshare", "--net", "--mount", "sh", "-ec", _IN_A_NAMESPACE, "sh"]
    if os.getuid() or not all(map(shutil.which, ("unshare", "ip", "tc"))):
        pytest.skip("needs root, unshare, ip and tc")
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to make namespaces, veth and a token bucket")
    return command


def test_counts_packets_delayed_by_a_real_token_bucket(inside: list[str]) -> None:
    done = subprocess.run([*inside, sys.executable, "-c", _SEND], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found[OVERLIMITS] > 0
    assert found[BACKLOG] > 0

"""Queue pairs of a process, from answers in the format of rdma/rdma_netlink.h. No real adapter has answered yet."""

from __future__ import annotations

import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.linux import netlink, rdma_resources
from whyidle.linux.netlink import attribute
from whyidle.linux.rdma_resources import parse_devices, parse_pairs, queue_pairs
from whyidle.linux.unreadable import Unreadable

ME = 4711


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def device(index: int, name: str) -> bytes:
    return attribute(1, u32(index)) + attribute(2, name.encode() + b"\0") + attribute(3, u32(1))


def pair(pid: int | None = ME, kind: int = 2, state: int = 3, port: int | None = 1) -> bytes:
    entry = attribute(21, u32(77)) + attribute(26, bytes([kind])) + attribute(27, bytes([state]))
    entry += attribute(3, u32(port)) if port is not None else b""
    owner = attribute(28, u32(pid)) if pid is not None else attribute(29, b"ib_core\0")
    return attribute(20, entry + owner)


def pairs(*entries: bytes) -> bytes:
    return attribute(1, u32(0)) + attribute(2, b"mlx5_0\0") + attribute(19, b"".join(entries))


def test_counts_own_pairs_that_can_send() -> None:
    others = (pair(pid=1), pair(pid=None, kind=1), pair(state=1), pair(kind=1))
    bodies = [pairs(pair(), pair(kind=255), *others), pairs(pair(port=2), pair(kind=10, port=None))]
    assert parse_pairs(bodies, "mlx5_0", ME) == {("mlx5_0", 1): 2, ("mlx5_0", 2): 1, ("mlx5_0", 0): 1}


def test_asks_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def ask(protocol: int, question: bytes, what: str) -> list[bytes]:
        assert protocol == netlink.RDMA
        asked.append(question[16:])
        if "QP" not in what:
            return [device(0, "mlx5_0"), device(5, "mlx5_1")]
        return [pairs(pair())] if question.endswith(u32(5)) else []

    monkeypatch.setattr(rdma_resources.netlink, "ask", ask)
    assert queue_pairs(ME) == Counter({("mlx5_1", 1): 1})
    assert asked == [b"", attribute(1, u32(0)), attribute(1, u32(5))]


@given(st.binary(max_size=100))
def test_noise_is_parsed_or_unreadable(noise: bytes) -> None:
    for parse in (lambda: parse_devices([noise]), lambda: parse_pairs([noise, attribute(19, noise)], "mlx5_0", ME)):
        try:
            parse()
        except Unreadable:
            pass

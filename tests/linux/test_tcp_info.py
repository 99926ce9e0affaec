"""`struct tcp_info`, from real connections and from older kernels."""

from __future__ import annotations

import socket
import struct

import pytest

from whyidle.linux import tcp_info


def whole(**values: int) -> bytes:
    data = bytearray(232)
    for name, kind in (
        *((name, "=I") for name in ("trip", "resent", "least_trip", "segments")),
        *((name, "=Q") for name in ("acked", "received", "busy", "window", "buffer")),
    ):
        at = {"trip": 68, "resent": 100, "acked": 120, "received": 128, "least_trip": 148, "segments": 156}
        at |= {"busy": 168, "window": 176, "buffer": 184}
        struct.pack_into(kind, data, at[name], values.get(name, 0))
    data[0] = 1
    return bytes(data)


VALUES = {"trip": 250, "resent": 3, "least_trip": 90, "segments": 40, "acked": 1 << 40, "received": 7}
TIMES = {"busy": 9_000, "window": 5_000, "buffer": 1_000}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (232, (1, 1 << 40, 7, 40, 3, 9_000, 5_000, 1_000, 250, 90)),
        (160, (1, 1 << 40, 7, 40, 3, 0, 0, 0, 250, 90)),  # Linux 4.6
        (136, (1, 1 << 40, 7, 0, 3, 0, 0, 0, 250, 0)),  # Linux 4.1
    ],
)
def test_kernels_give_more_or_less_of_it(size: int, expected: tuple[int, ...]) -> None:
    assert tcp_info.parse(whole(**VALUES, **TIMES)[:size]) == expected


def test_kernels_without_bytes_tell_nothing() -> None:
    assert tcp_info.parse(whole()[:104]) is None


def test_a_trip_that_was_never_measured_is_not_known() -> None:
    told = tcp_info.parse(whole(least_trip=0xFFFF_FFFF))
    assert told is not None
    assert told.least_trip_us == 0


def test_a_real_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            one.sendall(b"x" * 5000)
            assert len(other.recv(5000, socket.MSG_WAITALL)) == 5000
            sent, received = (
                tcp_info.parse(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, tcp_info.BYTES))
                for each in (one, other)
            )
    assert sent is not None
    assert received is not None
    assert sent.state == tcp_info.ESTABLISHED
    assert sent.segments >= 1
    assert received.received == 5000

"""The probe's view of this process's own TCP connections."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from whyidle.torch_hooks.links import sockets
from whyidle.torch_hooks.links.sockets import Connection, Sockets

BYTES = 100_000


class Watched:
    def __init__(self) -> None:
        self.closed: list[Connection] = []
        self.sockets = Sockets(self.closed.append)

    def of(self, one: socket.socket) -> Connection:
        (found,) = (each for each in self.sockets if each.fd == one.fileno())
        return found


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with connected() as made:
        yield made


@contextlib.contextmanager
def connected(address: str = "127.0.0.1") -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        one = socket.create_connection(server.getsockname()[:2])
        other, _ = server.accept()
    with one, other:
        yield one, other


def move(one: socket.socket, other: socket.socket) -> None:
    one.sendall(b"x" * BYTES)
    assert len(other.recv(BYTES, socket.MSG_WAITALL)) == BYTES


def test_counts_from_the_first_scan(pair: tuple[socket.socket, socket.socket]) -> None:
    move(*pair)
    watched = Watched()
    watched.sockets.scan()
    assert watched.of(pair[1]).moved == 0
    move(*pair)
    watched.sockets.read()
    assert watched.of(pair[1]).moved == BYTES
    assert watched.of(pair[1]).names == (pair[1].getsockname(), pair[1].getpeername())


def test_a_later_connection_counts_from_its_beginning() -> None:
    watched = Watched()
    watched.sockets.scan()
    with connected("::1") as (one, other):
        move(one, other)
        watched.sockets.scan()
        assert watched.of(other).moved == BYTES
        assert watched.of(other).remote == "::1"


def test_a_closed_connection_keeps_its_last_values(pair: tuple[socket.socket, socket.socket]) -> None:
    watched = Watched()
    watched.sockets.scan()
    kept = watched.of(pair[1])
    move(*pair)
    watched.sockets.read()
    pair[1].close()
    watched.sockets.read()
    assert watched.closed == [kept]
    assert kept.moved == BYTES


def test_another_connection_with_the_same_descriptor_is_another_one(pair: tuple[socket.socket, socket.socket]) -> None:
    watched = Watched()
    move(*pair)
    watched.sockets.scan()
    kept = watched.of(pair[1])
    with connected() as (one, other):
        for _ in range(3):
            move(one, other)
        os.dup2(other.fileno(), pair[1].fileno())
        watched.sockets.scan()
        assert watched.closed == [kept]
        assert watched.of(pair[1]).remote == "127.0.0.1"
        assert watched.of(pair[1]).ports == (other.getsockname()[1], one.getsockname()[1])


def test_leaves_out_other_descriptors() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.socket() as unconnected,
    ):
        one, other = socket.socketpair()
        with one, other, open("/dev/null") as file:
            watched = Watched()
            watched.sockets.scan()
            left_out = {each.fileno() for each in (listening, datagrams, unconnected, one, other, file)}
            assert left_out.isdisjoint(each.fd for each in watched.sockets)


def test_scans_many_descriptors_in_parts(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "SCANNED", 20)
    watched = Watched()
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(open("/dev/null"))
        with connected() as (one, other):
            for _ in range(6):
                watched.sockets.scan()
            move(one, other)
            watched.sockets.read()
            assert watched.of(other).moved == BYTES  # found before the first scan was complete


def test_goes_on_after_all_descriptors_of_the_next_part_were_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "SCANNED", 3)
    found = sockets.Sockets(lambda one: None)
    monkeypatch.setattr(sockets, "numbers_in", lambda path: [3, 4, 5, 6])
    found.scan()
    monkeypatch.setattr(sockets, "numbers_in", lambda path: [3, 4])
    found.scan()
    assert found._next == 0


def test_looks_at_those_that_move_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MOST", 2)
    watched = Watched()
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(connected()) for _ in range(4)]
        watched.sockets.scan()
        move(*pairs[2])
        watched.sockets.scan()
        assert {each.fd for each in watched.sockets} == {each.fileno() for each in pairs[2]}
        assert watched.closed == []

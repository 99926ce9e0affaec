"""What NCCL's RAS service reports about a hang, from a server that answers as NCCL's client expects. No real one was
used."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from whyidle.cli import ras

STATUS = "NCCL version 2.28.7\n\nErrors\n======\n\nMISSING\n  1 communicator is missing ranks: rank 1\n"


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that serves one client -> its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(ConnectionError):  # a client that has disconnected
                serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(5)


def as_documented(connection: socket.socket, *, status: str = STATUS, pause: float = 0.0) -> None:
    """Answers line by line, and closes the connection after the status."""
    answers = {"CLIENT": "SERVER PROTOCOL 3\n", "TIMEOUT": "OK\n", "STATUS": status}
    with connection.makefile("rw", newline="\n") as stream:
        for line in stream:
            command = line.split()[0]
            for part in answers[command].splitlines(keepends=True):
                stream.write(part)
                stream.flush()
                time.sleep(pause)
            if command == "STATUS":
                return


def test_shows_the_status_of_the_service() -> None:
    with listening(as_documented) as address:
        assert ras.ask(address) == STATUS.splitlines()


def test_shows_the_partial_status_of_a_slow_service() -> None:
    with listening(lambda connection: as_documented(connection, pause=0.2)) as address:
        begun = time.monotonic()
        told = ras.ask(address, 0.9)
        assert time.monotonic() - begun < 3
    assert told
    assert told == STATUS.splitlines()[: len(told)]
    assert len(told) < len(STATUS.splitlines())


def test_removes_control_characters() -> None:
    with listening(lambda connection: as_documented(connection, status="a\x1b[2Jb\x07\n")) as address:
        assert ras.ask(address) == ["a [2Jb"]


def test_truncates_a_long_status() -> None:
    with listening(lambda connection: as_documented(connection, status="line\n" * 5000)) as address:
        assert len(ras.ask(address)) == 60


def other(answer: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(answer)
        connection.recv(100)

    return serve


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"x" * 5000])
def test_ignores_another_service_at_the_port(answer: bytes) -> None:
    with listening(other(answer)) as address:
        assert ras.ask(address, 0.5) == []


def test_waits_for_a_silent_service_until_the_deadline() -> None:
    with listening(lambda connection: time.sleep(1)) as address:
        begun = time.monotonic()
        assert ras.ask(address, 0.3) == []
        assert time.monotonic() - begun < 1


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "", "127.0.0.1:99999999"])
def test_no_answer_without_a_service(address: str) -> None:
    assert ras.ask(address, 1.0) == []


def test_uses_the_address_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "node7:4000")
    assert ras.default_address() == "node7:4000"
    monkeypatch.delenv("NCCL_RAS_ADDR")
    assert ras.default_address() == "localhost:28028"

"""What NCCL's RAS service reports about a hang, from a server that answers as NCCL's client expects. No real one was
used."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_ras import SCHEMA, communicator, listening, missing, rank, service, status

from whyidle.agent.files import Unreadable
from whyidle.agent.hang import ras
from whyidle.agent.parsers.ras import Status, behind, largest, parse_json, sentences

TEXT = "NCCL version 2.27.3\n\nErrors\n======\n\nMISSING\n  1 communicator is missing ranks: rank 1\n"
AHEAD = {"AllReduce": 18}


def asked(answer: str | None, text: str = "", pause: float = 0.0, seconds: float = ras.TIMEOUT_SECONDS) -> Status:
    with listening(service(answer, text, pause)) as address:
        found = ras.ask(address, seconds)
    assert found is not None
    return found


# name -> the communicators, and the ranks that they wait for, with why
WAITS: dict[str, tuple[list[Any], list[tuple[int, str]]]] = {
    "nobody": ([communicator([rank(0), rank(1)])], []),
    "dead": ([communicator([rank(0)], [missing(1, dead=True)])], [(1, "is considered dead by NCCL")]),
    "silent": ([communicator([rank(0)], [missing(1)])], [(1, "does not answer NCCL")]),
    "not a member": (
        [communicator([rank(0)], [missing(1, unresponsive=False)])],
        [(1, "is missing: its process answers NCCL without it")],
    ),
    "an error": (
        [communicator([rank(0), rank(1, async_error=6)])],
        [(1, "reports an error of an operation: remote error")],
    ),
    "aborted": ([communicator([rank(0), rank(1, abort_flag=True)])], [(1, "has aborted the communicator")]),
    "behind": (
        [communicator([rank(0, counts=AHEAD), rank(1), rank(2, counts=AHEAD)])],
        [(1, "launched 17 of 18 AllReduce")],
    ),
    "the larger group": (
        [
            communicator([rank(0)], [missing(1)], number=1),
            communicator([rank(0, counts=AHEAD), rank(1, counts=AHEAD), rank(2)], number=2),
        ],
        [(2, "launched 17 of 18 AllReduce")],
    ),
}


@pytest.mark.parametrize(("communicators", "expected"), WAITS.values(), ids=WAITS)
def test_names_the_rank_that_keeps_a_communicator(communicators: list[Any], expected: list[tuple[int, str]]) -> None:
    found = asked(status(*communicators))
    assert found.version == "2.28.7"
    chosen = largest(found)
    assert chosen is not None
    assert [(one.rank, one.why) for one in behind(chosen)] == expected
    for number, why in expected:
        assert any(f"rank {number} {why}" in sentence for sentence in sentences(found))


def test_every_field_of_the_schema_is_kept() -> None:
    found = asked(status(communicator([rank(0, async_error=7, finalize_called=True)], [missing(1)])))
    [comm] = found.communicators
    [one], [lost] = comm.ranks, comm.missing
    assert (comm.hash, comm.size, found.timeouts, found.timestamp) == ("0x1", 2, 1, "2026-11-26 12:00:00")
    assert (one.host, one.pid, one.cuda_dev, one.nvml_dev, one.counts["AllReduce"]) == ("10.0.0.1", 4000, 0, 0, 17)
    assert (one.async_error, one.finalize_called, one.destroyed, one.aborted) == (7, True, False, False)
    assert (lost.rank, lost.unresponsive, lost.dead) == (1, True, False)
    json.dumps(found.plain())


def test_a_version_without_json_answers_in_text() -> None:
    found = asked(None, TEXT)
    assert not found.communicators
    assert sentences(found) == TEXT.splitlines()


def test_an_answer_that_is_not_json_is_shown_as_text() -> None:
    assert asked("not JSON\n").lines == ("not JSON",)


def test_shows_the_partial_status_of_a_slow_service() -> None:
    begun = time.monotonic()
    told = asked(None, TEXT, pause=0.2, seconds=1.3).lines
    assert time.monotonic() - begun < 10
    assert told
    assert list(told) == TEXT.splitlines()[: len(told)]


def test_removes_control_characters() -> None:
    assert asked(None, "a\x1b[2Jb\x07\n").lines == ("a [2Jb",)
    hostile = rank(0)
    hostile["host"] = "a\x1b[2Jb"
    assert asked(status(communicator([hostile]))).communicators[0].ranks[0].host == "a [2Jb"


def test_truncates_a_long_status() -> None:
    assert len(asked(None, "line\n" * 5000).lines) == 60


@pytest.mark.parametrize(
    "change",
    [
        {"communicators": None},
        {"communicators": [{"hash": "0x1"}]},
        {"communicators": [communicator([rank(0) | {"rank": "0"}])]},
        {"communicators": [communicator([rank(0) | {"pid": 1 << 70}])]},
        {"communicators": [communicator([rank(0) | {"collective_counts": []}])]},
        {"nccl_version": 2},
    ],
)
def test_refuses_fields_that_are_not_as_documented(change: dict[str, Any]) -> None:
    whole = json.loads(status(communicator([rank(0)]))) | change
    assert not SCHEMA.is_valid(whole) or change["communicators"][0]["ranks"][0]["pid"] == 1 << 70
    with pytest.raises(Unreadable):
        parse_json(json.dumps(whole).encode())


@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner)).map(json.dumps))
def test_arbitrary_bytes_are_a_status_or_unreadable(data: bytes | str) -> None:
    try:
        parse_json(data if isinstance(data, bytes) else data.encode())
    except Unreadable:
        pass


def other(answer: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(answer)
        connection.recv(100)

    return serve


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"x" * 5000])
def test_ignores_another_service_at_the_port(answer: bytes) -> None:
    with listening(other(answer)) as address:
        assert ras.ask(address, 0.5) is None


def test_waits_for_a_silent_service_until_the_deadline() -> None:
    with listening(lambda connection: time.sleep(1)) as address:
        begun = time.monotonic()
        assert ras.ask(address, 0.3) is None
        assert time.monotonic() - begun < 10


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "", "127.0.0.1:99999999"])
def test_no_answer_without_a_service(address: str) -> None:
    assert ras.ask(address, 1.0) is None


def test_uses_the_address_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "node7:4000")
    assert ras.default_address() == "node7:4000"
    monkeypatch.delenv("NCCL_RAS_ADDR")
    assert ras.default_address() == "localhost:28028"

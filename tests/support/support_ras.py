"""A server that answers as NCCL's RAS service does, in text or in JSON (schemas/ras.json). No real one was used."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = Draft202012Validator(json.loads((Path(__file__).parent / "schemas" / "ras.json").read_text()))
COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def rank(number: int, *, counts: Mapping[str, int] | None = None, pid: int = 0, **status: Any) -> dict[str, Any]:
    """A rank that has answered."""
    return {
        "rank": number,
        "host": "10.0.0.1",
        "pid": pid or 4000 + number,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
            **status,
        },
        "collective_counts": {**dict.fromkeys(COLLECTIVES, 0), "AllReduce": 17, **(counts or {})},
    }


def missing(number: int, *, dead: bool = False, unresponsive: bool = True) -> dict[str, Any]:
    place = {name: value for name, value in rank(number).items() if name not in ("status", "collective_counts")}
    return {**place, "status": {"unresponsive": unresponsive, "considered_dead": dead}}


def communicator(ranks: Sequence[Any], lost: Sequence[Any] = (), number: int = 1) -> dict[str, Any]:
    return {
        "hash": f"0x{number:x}",
        "secondary_hash": f"0x{number:x}:0x2",
        "size": len(ranks) + len(lost),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(lost),
        "ranks": list(ranks),
        "missing_ranks": list(lost),
    }


def status(*communicators: Any) -> str:
    """A whole answer. It is checked against the schema."""
    whole = {
        "nccl_version": "2.28.7",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-26 12:00:00",
        "communicators_count": len(communicators),
        "communicators": list(communicators),
        "ras": {"collection_time_sec": 0.012, "timeouts_count": sum(c["missing_ranks_count"] for c in communicators)},
    }
    SCHEMA.validate(whole)
    return json.dumps(whole, indent=2) + "\n"


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that serves one client after the other -> its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # it has been closed
                    return
                with connection, contextlib.suppress(ConnectionError):  # a client that has disconnected
                    serve(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def service(in_json: str | None, in_text: str = "", pause: float = 0.0) -> Callable[[socket.socket], None]:
    """Answers line by line, and closes the connection after the status. ``in_json``: None for a version without it."""

    def serve(connection: socket.socket) -> None:
        as_json = False
        with connection.makefile("rw", newline="\n") as stream:
            for line in stream:
                command = line.strip().lower()
                if command.startswith("client protocol "):
                    answer = "SERVER PROTOCOL 2\n"
                elif command.startswith("timeout "):
                    answer = "OK\n"
                elif command == "set format json" and in_json is not None:
                    answer, as_json = "OK\n", True
                elif command == "status":
                    answer = in_json if as_json and in_json is not None else in_text
                else:
                    answer = f"ERROR: Unknown command {line.strip()}\n"
                for part in answer.splitlines(keepends=True):
                    stream.write(part)
                    stream.flush()
                    time.sleep(pause)
                if command == "status":
                    return

    return serve

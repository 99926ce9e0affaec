"""Asks NCCL about a job that hangs. Its RAS service (NCCL 2.24 and later) knows which of the job's ranks do not answer,
and how far each rank is in each communicator.

The protocol has lines of text (NCCL's `src/ras/client.cc`). First, both sides name the version of their protocol.
`TIMEOUT` limits how long the service asks other processes. `SET FORMAT json` selects JSON; a version that does not know
the command answers with an error and then in text. The answer to `STATUS` ends when the connection ends.
"""

from __future__ import annotations

import os
import socket
import time

from ..files import Unreadable
from ..parsers import ras
from ..parsers.ras import Status

DEFAULT_ADDRESS = "localhost:28028"
"""NCCL's default, unless the environment of the job has NCCL_RAS_ADDR."""
TIMEOUT_SECONDS = 4.0
"""The limit for the whole conversation."""
_SERVICE_SECONDS = 2
_PROTOCOL = 2
_MOST_BYTES = 8 << 20
_MOST_LINE = 1024


def default_address() -> str:
    return os.environ.get("NCCL_RAS_ADDR") or DEFAULT_ADDRESS


def ask(address: str, seconds: float = TIMEOUT_SECONDS) -> Status | None:
    """The service's status. None if nothing answers in time, or if the answer is not from the service.

    If the answer is in text, the part that has arrived by then is kept.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    answer = b""
    try:
        with socket.create_connection((host.strip("[]") or "localhost", int(port)), seconds) as connection:
            if not _line(connection, f"CLIENT PROTOCOL {_PROTOCOL}", deadline).startswith(b"SERVER PROTOCOL "):
                return None
            if not _line(connection, f"TIMEOUT {_SERVICE_SECONDS}", deadline).startswith(b"OK"):
                return None
            in_json = _line(connection, "SET FORMAT json", deadline).startswith(b"OK")
            connection.sendall(b"STATUS\n")
            try:
                while len(answer) < _MOST_BYTES and (part := _receive(connection, deadline)):
                    answer += part
            except TimeoutError:
                pass
    except (OSError, ValueError, OverflowError):
        return None
    try:
        return ras.parse_json(answer) if in_json else ras.parse_text(answer)
    except Unreadable:
        return ras.parse_text(answer)


def _line(connection: socket.socket, command: str, deadline: float) -> bytes:
    """Sends a command. Returns the line that answers it, in upper case; empty if there is none."""
    connection.sendall(command.encode() + b"\n")
    line = b""
    while not line.endswith(b"\n") and len(line) < _MOST_LINE:
        part = _receive(connection, deadline)
        if not part:
            return b""
        line += part
    return line.upper()


def _receive(connection: socket.socket, deadline: float) -> bytes:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)
    return connection.recv(1 << 16)

"""Asks NCCL about a job that hangs. Its RAS service (NCCL 2.24 and later) knows which of the job's ranks do not answer,
and how far each rank is in each communicator.

The protocol has lines of text (NCCL's `src/ras/client.cc`). First, both sides name the version of their protocol.
`TIMEOUT` limits how long the service asks other processes. The answer to `STATUS` ends when the connection ends.
"""

from __future__ import annotations

import os
import socket
import time

DEFAULT_ADDRESS = "localhost:28028"
"""NCCL's default, unless the environment of the job has NCCL_RAS_ADDR."""
TIMEOUT_SECONDS = 4.0
"""The limit for the whole conversation. The part of the answer that has arrived by then is shown."""
_SERVICE_SECONDS = 2
_PROTOCOL = 2
_MOST_BYTES, _MOST_LINES = 1 << 16, 60


def default_address() -> str:
    return os.environ.get("NCCL_RAS_ADDR") or DEFAULT_ADDRESS


def ask(address: str, seconds: float = TIMEOUT_SECONDS) -> list[str]:
    """The lines of the service's status. Empty if nothing answers in time, or if the answer is not from the service."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    answer = b""
    try:
        with socket.create_connection((host.strip("[]") or "localhost", int(port)), seconds) as connection:
            if not _says(connection, f"CLIENT PROTOCOL {_PROTOCOL}", b"SERVER PROTOCOL ", deadline):
                return []
            if not _says(connection, f"TIMEOUT {_SERVICE_SECONDS}", b"OK", deadline):
                return []
            connection.sendall(b"STATUS\n")
            try:
                while len(answer) < _MOST_BYTES and (part := _receive(connection, deadline)):
                    answer += part
            except TimeoutError:
                pass
    except (OSError, ValueError, OverflowError):
        return []
    lines = answer.decode("utf-8", "replace").splitlines()
    return [_clean(line) for line in lines[:_MOST_LINES]]


def _says(connection: socket.socket, command: str, expected: bytes, deadline: float) -> bool:
    """Sends a command. Returns whether the answer begins with ``expected``."""
    connection.sendall(command.encode() + b"\n")
    line = b""
    while not line.endswith(b"\n") and len(line) < 1024:
        part = _receive(connection, deadline)
        if not part:
            return False
        line += part
    return line.upper().startswith(expected)


def _receive(connection: socket.socket, deadline: float) -> bytes:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)
    return connection.recv(4096)


def _clean(line: str) -> str:
    """Removes control characters, because any program may listen at the port and answer."""
    return "".join(sign if sign.isprintable() else " " for sign in line).rstrip()

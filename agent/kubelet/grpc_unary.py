"""A client for gRPC servers on a Unix socket: HTTP/2, and only unary calls (one request, one response).

grpcio would add about 20 MB to the agent. https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError

from ..files import Unreadable, reason_of

MOST_BYTES = 16 << 20
"""The maximum length of an answer, the same as in the kubelet's own clients."""

STATUS: tuple[str, ...] = (
    "ok",
    "cancelled",
    "unknown",
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "already_exists",
    "permission_denied",
    "resource_exhausted",
    "failed_precondition",
    "aborted",
    "out_of_range",
    "unimplemented",
    "internal",
    "unavailable",
    "data_loss",
    "unauthenticated",
)
"""gRPC's status codes, in order. In lower case, because they are used as reasons of read errors."""

_EMPTY_MESSAGE = bytes(5)  # not compressed, length 0
_CHUNK = 1 << 16

Reply = bytes | Unreadable


@dataclass(slots=True)
class _Stream:
    method: str
    headers: dict[bytes, bytes] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    length: int = 0

    def answer(self) -> Reply:
        """The answer, once the stream has ended."""
        if self.headers.get(b":status") != b"200":
            return Unreadable("garbage", self.method)
        status = self.headers.get(b"grpc-status", b"")
        if not status.isdigit() or len(status) > 2:
            return Unreadable("garbage", self.method)
        if status != b"0":
            code = int(status)
            return Unreadable(STATUS[code] if 0 < code < len(STATUS) else "unknown", self.method)
        body = b"".join(self.pieces)
        if len(body) < 5 or body[0] or int.from_bytes(body[1:5], "big") != len(body) - 5:
            return Unreadable("garbage", self.method)
        return body[5:]


class UnaryCall:
    """One connection that calls each method once, with an empty request. Does no I/O itself."""

    def __init__(self, methods: Sequence[str], deadline_seconds: float):
        self.answers: dict[str, Reply] = {}
        self._open: dict[int, _Stream] = {}
        self._connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._connection.initiate_connection()
        for method in methods:
            stream = self._connection.get_next_available_stream_id()
            self._connection.send_headers(stream, _headers(method, deadline_seconds))
            self._connection.send_data(stream, _EMPTY_MESSAGE, end_stream=True)
            self._open[stream] = _Stream(method)

    @property
    def done(self) -> bool:
        return not self._open

    def to_send(self) -> bytes:
        return self._connection.data_to_send()

    def receive(self, data: bytes) -> None:
        """Processes data from the server. Raises Unreadable if the connection cannot be used any more."""
        try:
            for event in self._connection.receive_data(data):
                self._take(event)
        except ProtocolError:
            raise Unreadable("garbage") from None

    def _take(self, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            if self._open:
                raise Unreadable("unavailable")
            return
        stream = self._open.get(getattr(event, "stream_id", None) or 0)
        if stream is None:
            return
        if isinstance(event, (ResponseReceived, TrailersReceived)):
            stream.headers.update((bytes(name), bytes(value)) for name, value in event.headers or ())
        elif isinstance(event, DataReceived):
            self._take_data(stream, event)
        elif isinstance(event, StreamEnded):
            self._close(event.stream_id, stream.answer())
        elif isinstance(event, StreamReset):
            self._close(event.stream_id, Unreadable("unavailable", stream.method))

    def _take_data(self, stream: _Stream, event: DataReceived) -> None:
        data = event.data or b""
        stream.length += len(data)
        if stream.length > MOST_BYTES + 5:
            raise Unreadable("huge", stream.method)
        stream.pieces.append(data)
        if event.flow_controlled_length:
            self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def _close(self, number: int, answer: Reply) -> None:
        self.answers[self._open.pop(number).method] = answer


def _headers(method: str, deadline_seconds: float) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("grpc-timeout", f"{max(1, int(deadline_seconds * 1000))}m"),
        ("content-type", "application/grpc"),
        ("user-agent", "whyidle"),
    ]


def ask(path: str, methods: Sequence[str], deadline_seconds: float) -> dict[str, Reply]:
    """Calls each method of the server at ``path`` once, all at the same time. Returns the answers by method.

    An answer is the message, or an Unreadable with gRPC's status. Raises Unreadable if the connection fails or the
    answers are not complete before the deadline.
    """
    until = time.monotonic() + deadline_seconds
    exchange = UnaryCall(methods, deadline_seconds)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        try:
            _patience(connection, until)
            _connect(connection, path)
            while True:
                if waiting := exchange.to_send():
                    _patience(connection, until)
                    connection.sendall(waiting)
                if exchange.done:
                    return exchange.answers
                _patience(connection, until)
                data = connection.recv(_CHUNK)
                if not data:
                    raise Unreadable("unavailable", path)
                exchange.receive(data)
        except TimeoutError:
            raise Unreadable("deadline_exceeded", path) from None
        except OSError as error:
            reason = reason_of(error)
            raise Unreadable(reason if reason in ("denied", "missing") else "unavailable", path) from error


def _patience(connection: socket.socket, until: float) -> None:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def _connect(connection: socket.socket, path: str) -> None:
    """Connects through /proc/self/fd, because a socket's address is limited to 107 bytes and the path may be longer."""
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)

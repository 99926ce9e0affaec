"""Serves the requests of one connection, one after the other. Each must arrive and be answered within a time limit.

A limit is for the whole request or answer, not for the time between two bytes. So a client that sends or reads one byte
per second is dropped.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Protocol

from .gate import Gate, Refused, Rules
from .messages import BadRequest, Request, Service, parse, plain, render

HEAD_BYTES = 16 << 10
"""The maximum length of the first line and the headers of a request, together."""
_PIECE = 16 << 10


@dataclass(frozen=True, slots=True)
class Times:
    """How long a client may take, in seconds."""

    request: float = 10.0
    """To send a request, from its first byte. The first request: from the start of the connection, including TLS."""
    answer: float = 10.0
    """To read an answer."""
    idle: float = 330.0
    """Between requests. Longer than the 5 minutes after which Prometheus closes its connections itself."""
    linger: float = 1.0
    """To read an answer that refuses its request."""


class Places(Protocol):
    """The connections that are served. A connection that waits for its client may lose its place to another connection,
    but not while its request is being answered.
    """

    closing: bool
    """Whether the listener is closing, so that no further request is answered on a connection."""

    def working(self, connection: Connection) -> bool:
        """Marks the connection as answering a request. Returns False if it has lost its place."""
        ...

    def waiting(self, connection: Connection) -> bool:
        """Marks the connection as waiting for its client. Returns False if it has lost its place."""
        ...


class Connection:
    """Serves one client, in one thread."""

    def __init__(self, client: socket.socket, gate: Gate, service: Service, places: Places, times: Times):
        self._socket = client
        self._gate = gate
        self._service = service
        self._places = places
        self._times = times
        self._policy: object = None
        self._buffer = b""
        self._deadline = 0.0

    def serve(self) -> None:
        """Serves until the client leaves, is too slow or loses its place. Raises OSError and Refused."""
        self._within(self._times.request)
        if self._gate.encrypted:
            self._encrypt(self._gate.rules())
        keep = self._one(first=True)
        while keep:
            keep = self._one(first=False)

    def abort(self) -> None:
        """Ends the connection from another thread, whatever it waits for."""
        try:
            # Not SSLSocket.shutdown: it turns the socket into a plain one while its thread may be writing.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:  # it has ended already
            pass

    def close(self) -> None:
        self._socket.close()

    def _encrypt(self, rules: Rules) -> None:
        assert rules.tls
        self._policy = rules.tls.policy
        self._socket = encrypted = rules.tls.wrap(self._socket)
        encrypted.settimeout(self._left())
        encrypted.do_handshake()
        rules.tls.check_peer(encrypted)

    def _one(self, *, first: bool) -> bool:
        """Serves one request. Returns whether the connection stays open for another."""
        try:
            head = self._head(first)
            if head is None:
                return False
            request = parse(head)
            rules = self._gate.rules()
        except BadRequest as error:
            self._refuse(error)
            return False
        except Refused:
            self._refuse(BadRequest(plain(500, "the web configuration is invalid; see the agent's log")))
            return False
        if rules.tls and rules.tls.policy != self._policy:
            return False  # the TLS policy has changed: the client must connect again to prove that it may
        return self._answer(request, rules)

    def _answer(self, request: Request, rules: Rules) -> bool:
        answer = rules.admit(request)
        if not answer:
            if not self._places.working(self):
                return False
            answer = self._service(request)
            if not self._places.waiting(self):
                return False
        keep_alive = request.keep_alive and not self._places.closing
        self._send(render(answer, extra=rules.headers, body=request.method != "HEAD", keep_alive=keep_alive))
        return keep_alive

    def _head(self, first: bool) -> bytes | None:
        """The next request up to its empty line, or None if the client has closed the connection."""
        if not first and not self._buffer:
            self._within(self._times.idle)
            if not self._more():
                return None
        if not first:
            self._within(self._times.request)
        searched = 0
        while (end := self._buffer.find(b"\r\n\r\n", searched)) < 0:
            if len(self._buffer) > HEAD_BYTES:
                break
            searched = max(0, len(self._buffer) - 3)
            try:
                if not self._more():
                    return None
            except TimeoutError:
                if not self._buffer:
                    return None
                raise BadRequest(plain(408)) from None
        if not 0 <= end <= HEAD_BYTES:
            raise BadRequest(plain(431))
        head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
        return head

    def _refuse(self, error: BadRequest) -> None:
        """Sends an error and waits until the client has read it. Closing while it still sends would lose the error."""
        self._send(render(error.answer, keep_alive=False))
        socket.socket.shutdown(self._socket, socket.SHUT_WR)
        self._within(self._times.linger)
        for _ in range(64):
            if not self._more():
                return

    def _within(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client is too slow")
        return left

    def _more(self) -> bool:
        self._socket.settimeout(self._left())
        piece = self._socket.recv(_PIECE)
        self._buffer += piece
        return bool(piece)

    def _send(self, data: bytes) -> None:
        self._within(self._times.answer)
        rest = memoryview(data)
        while rest:
            self._socket.settimeout(self._left())
            rest = rest[self._socket.send(rest) :]

"""One connection: its requests one after the other, each with a time by which it must have come and been answered.

The times are in all, not between two bytes: a client that sends or takes a byte a second does not keep its place.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Protocol

from .gate import Gate, Refused, Rules
from .messages import BadRequest, Request, Service, parse, plain, render

HEAD_BYTES = 16 << 10
"""How long the first line and the headers of a request may be, together."""
_PIECE = 16 << 10


@dataclass(frozen=True, slots=True)
class Times:
    """How long a client may take, in seconds."""

    request: float = 10.0
    """For a request, from its first byte on; for the first from the start of the connection on, TLS included."""
    answer: float = 10.0
    """To take an answer."""
    idle: float = 330.0
    """Between requests. Prometheus closes its own connections after 5 minutes: so it is the one to do it."""
    linger: float = 1.0
    """To read why it was refused."""


class Places(Protocol):
    """Who is served. A connection that waits for its client may lose its place to another; one at work may not."""

    closing: bool
    """Whether this is the last request that is answered."""

    def working(self, connection: Connection) -> bool:
        """Says that a request is being answered. False if the place was lost."""
        ...

    def waiting(self, connection: Connection) -> bool:
        """Says that it is the client's turn. False if the place was lost."""
        ...


class Connection:
    """Serves one client in a thread of its own."""

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
        """Until the client goes, is late or loses its place. Raises OSError (ssl.SSLError is one) and Refused."""
        self._within(self._times.request)
        if self._gate.encrypted:
            self._encrypt(self._gate.rules())
        keep = self._one(first=True)
        while keep:
            keep = self._one(first=False)

    def abort(self) -> None:
        """From another thread: ends whatever the connection waits for."""
        try:
            # Not SSLSocket.shutdown, which makes a plain socket of it while its thread may be writing.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:  # it went by itself
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
        """One request and its answer -> whether there may be another."""
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
            return False  # who may connect has changed: let it show that it still may
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
        """The next request up to its empty line; None if the client is gone, or has nothing more to say."""
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
        """Answers and waits until the client has read it: closing over what it still sends would take it back."""
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

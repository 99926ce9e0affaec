"""Accepts connections, and decides which ones are served if there are too many."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable

from .connection import Connection, Times
from .gate import Gate, Refused
from .messages import Service, plain, render

PLACES = 64
"""The maximum number of connections. Each has a thread, and clients must not be able to start any number of threads."""
STOP_SECONDS = 1.0
"""How long unfinished answers may take when the listener is closed."""


class Listener:
    """Serves HTTP at one address. Raises OSError if the address cannot be bound.

    If all places are taken, a new connection replaces the one that has waited longest for its client to send a request
    or to read an answer. So clients that hold connections cannot keep Prometheus out: it sends its request at once, and
    a connection whose request is being answered is never dropped.
    """

    def __init__(
        self,
        host: str,
        port: int,
        gate: Gate,
        service: Service,
        note: Callable[[str, str], None],
        times: Times | None = None,
    ):
        """``note`` is called with the client's address and the problem when a connection fails."""
        self._gate = gate
        self._service = service
        self._note = note
        self._times = times or Times()
        self._places = _Places(PLACES)
        self._closing = False
        self._socket = _bind(host, port)

    @property
    def address(self) -> str:
        """host:port, as in a URL. This is the real port if port 0 was requested."""
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def serve(self) -> None:
        """Serves until another thread calls :meth:`close`."""
        arrivals = select.poll()
        arrivals.register(self._socket, select.POLLIN)
        while not self._closing:
            arrivals.poll()  # because accept() needs a free file descriptor even while nobody connects
            try:
                client, address = self._socket.accept()
            except OSError as error:
                if not self._closing:
                    self._cannot_accept(error)
                continue
            self._take(client, str(address[0]))

    def close(self) -> None:
        """Stops accepting connections, and waits for unfinished answers for up to STOP_SECONDS."""
        self._closing = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes poll()
        except OSError:
            pass
        self._places.clear(STOP_SECONDS)
        self._socket.close()

    def _cannot_accept(self, error: OSError) -> None:
        """Drops a connection. Most likely there is no free file descriptor, and this frees one."""
        self._note("", repr(error))
        self._places.free_one()
        time.sleep(0.1)

    def _take(self, client: socket.socket, address: str) -> None:
        connection = Connection(client, self._gate, self._service, self._places, self._times)
        if not self._places.enter(connection):
            _turn_away(client, encrypted=self._gate.encrypted)
            return
        try:
            threading.Thread(target=self._serve, args=(connection, address), name="http", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._note(address, repr(error))
            self._places.leave(connection)
            connection.close()

    def _serve(self, connection: Connection, address: str) -> None:
        try:
            connection.serve()
        except (OSError, Refused) as error:
            self._note(address, repr(error))
        finally:
            self._places.leave(connection)
            connection.close()


class _Places:
    """The connections that are served. Those that wait for their client are ordered by when they began to wait."""

    def __init__(self, most: int):
        self._most = most
        self._changed = threading.Condition()
        self._waiting: dict[Connection, None] = {}
        self._working: set[Connection] = set()
        self.closing = False

    def enter(self, connection: Connection) -> bool:
        """Adds a connection. Returns False if all places are taken by connections whose requests are being answered."""
        with self._changed:
            if self.closing:
                return False
            if len(self._waiting) + len(self._working) >= self._most and not self._drop_first():
                return False
            self._waiting[connection] = None
            return True

    def free_one(self) -> None:
        with self._changed:
            self._drop_first()

    def working(self, connection: Connection) -> bool:
        with self._changed:
            if connection not in self._waiting:
                return False
            del self._waiting[connection]
            self._working.add(connection)
            return True

    def waiting(self, connection: Connection) -> bool:
        with self._changed:
            if connection not in self._working:
                return False
            self._working.remove(connection)
            self._waiting[connection] = None
            return True

    def leave(self, connection: Connection) -> None:
        with self._changed:
            self._waiting.pop(connection, None)
            self._working.discard(connection)
            self._changed.notify_all()

    def clear(self, seconds: float) -> None:
        """Ends waiting connections at once, and the others when their answer is finished or the time is up."""
        until = time.monotonic() + seconds
        with self._changed:
            self.closing = True
            self._drop_all()
            while (self._working or self._waiting) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            self._drop_all()

    def _drop_all(self) -> None:
        while self._drop_first():
            pass

    def _drop_first(self) -> bool:
        connection = next(iter(self._waiting), None)
        if connection is None:
            return False
        del self._waiting[connection]
        connection.abort()
        return True


def _turn_away(client: socket.socket, *, encrypted: bool) -> None:
    try:
        if not encrypted:
            client.send(render(plain(503), keep_alive=False), socket.MSG_DONTWAIT)
    except OSError:
        pass
    finally:
        client.close()


def _bind(host: str, port: int) -> socket.socket:
    family, address = _resolve(host, port)
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6 and address[0] == "::":
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)  # if the queue is full, a client tries again after a second
    except OSError:
        listening.close()
        raise
    return listening


def _resolve(host: str, port: int):
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # Without a host, listen on all addresses: prefer IPv6, because an IPv6 socket accepts IPv4 connections too.
    found.sort(key=lambda entry: entry[0] != (socket.AF_INET if host else socket.AF_INET6))
    for family, _, _, _, address in found:
        try:
            socket.socket(family, socket.SOCK_STREAM).close()
        except OSError:  # this kernel has no IPv6
            continue
        return family, address
    raise OSError(f"no address found for {host or 'any host'}")

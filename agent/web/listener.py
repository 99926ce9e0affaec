"""Takes connections, and decides who is served when there are more than there are places."""

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
"""Connections at once, each with a thread: so that nobody can fill the node with our threads."""
STOP_SECONDS = 1.0
"""How long the answers that are being made may take at the end."""


class Listener:
    """Serves HTTP at one address. Raises OSError when it cannot be bound.

    When all places are taken, a new connection gets that of the one whose client has kept us waiting for longest, be it
    for a request or for reading the answer. So clients that hold connections cannot keep Prometheus out: its request
    comes at once, and what is being answered is never given up.
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
        """``note`` is told the address and the trouble of a connection that broke."""
        self._gate = gate
        self._service = service
        self._note = note
        self._times = times or Times()
        self._places = _Places(PLACES)
        self._closing = False
        self._socket = _bind(host, port)

    @property
    def address(self) -> str:
        """Where it listens, as in a URL: the real port, also when 0 was asked for."""
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def serve(self) -> None:
        """Until closed, by another thread."""
        arrivals = select.poll()
        arrivals.register(self._socket, select.POLLIN)
        while not self._closing:
            arrivals.poll()  # accept() alone wants a spare descriptor before anybody has come
            try:
                client, address = self._socket.accept()
            except OSError as error:
                if not self._closing:
                    self._cannot_accept(error)
                continue
            self._take(client, str(address[0]))

    def close(self) -> None:
        """Takes no more connections, and lets what is being answered end."""
        self._closing = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes poll()
        except OSError:
            pass
        self._places.clear(STOP_SECONDS)
        self._socket.close()

    def _cannot_accept(self, error: OSError) -> None:
        """Most likely no descriptor is left: closing a connection frees one."""
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
    """The connections that are served, those that wait for their client in the order in which they began to."""

    def __init__(self, most: int):
        self._most = most
        self._changed = threading.Condition()
        self._waiting: dict[Connection, None] = {}
        self._working: set[Connection] = set()
        self.closing = False

    def enter(self, connection: Connection) -> bool:
        """False if all places are taken by connections that are being answered."""
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
        """Ends the connections that wait; those at work when they are done, or the time is up."""
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
        listening.listen(1024)  # a connection that finds no room here tries again a second later
    except OSError:
        listening.close()
        raise
    return listening


def _resolve(host: str, port: int):
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # Without a host, listen on everything: one IPv6 socket takes IPv4 too.
    found.sort(key=lambda entry: entry[0] != (socket.AF_INET if host else socket.AF_INET6))
    for family, _, _, _, address in found:
        try:
            socket.socket(family, socket.SOCK_STREAM).close()
        except OSError:  # this kernel has no IPv6
            continue
        return family, address
    raise OSError(f"no address found for {host or 'any host'}")

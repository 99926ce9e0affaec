"""The interface over which the node reaches a server."""

from __future__ import annotations

import time

from ...linux import routes
from ..files import Unreadable, read
from ..reading import Reading

REFRESH_SECONDS = 60.0


class Routes:
    """The routes of the node, read again each minute. Not thread-safe."""

    def __init__(self, procfs: str):
        # In a procfs that is mounted elsewhere, `net` shows the namespace of its reader, and `1/net` that of the node.
        self._folder = "/proc/net" if procfs == "/proc" else f"{procfs}/1/net"
        self._routes: list[routes.Route] = []
        self._until = 0.0

    def interface_to(self, address: str, reading: Reading) -> str:
        """The interface; empty if it is not known."""
        if not address:
            return ""
        now = time.monotonic()
        if now >= self._until:
            self._routes = [
                route
                for file, parse in (("route", routes.ipv4), ("ipv6_route", routes.ipv6))
                for route in parse(self._read(file, reading))
            ]
            self._until = now + REFRESH_SECONDS
        return routes.interface_to(address, self._routes)

    def _read(self, file: str, reading: Reading) -> bytes:
        try:
            return read(f"{self._folder}/{file}")
        except Unreadable as error:
            if error.reason != "missing":  # a kernel without IPv6 has no ipv6_route
                reading.error("", f"net/{file}", error.reason)
            return b""

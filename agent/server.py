"""The agent's HTTP face: /metrics, /healthz, /readyz and a page that links to them."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder

from .exporter import SCRAPE_SECONDS, Exporter
from .log import Log

CONNECTIONS = 32
"""Requests that are served at once; more are turned away, so that nobody can fill the node with our threads."""

TIMEOUT_SECONDS = 10.0
"""How long a connection may be silent."""

PAGE = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>whyidle agent</title></head>
<body><h1>whyidle agent</h1><ul><li><a href="metrics">Metrics</a></li><li><a href="healthz">Health</a></li>
<li><a href="readyz">Readiness</a></li></ul></body></html>
"""


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


class AgentServer(ThreadingHTTPServer):
    """Serves one exporter. ``ready`` says whether there is something to serve.

    Raises OSError when the address cannot be bound.
    """

    daemon_threads = True
    block_on_close = False  # a client that dawdles must not hold up the end
    allow_reuse_address = True

    def __init__(self, host: str, port: int, exporter: Exporter, ready: Callable[[], bool], log: Log):
        family, address = _resolve(host, port)
        self.address_family = family
        self.exporter = exporter
        self.ready = ready
        self.log = log
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(address, Handler)  # pyright: ignore[reportArgumentType]

    @property
    def address(self) -> str:
        """Where it listens, as in a URL: the real port, also when 0 was asked for."""
        host, port = self.server_address[:2]
        host = host.decode() if isinstance(host, bytes) else str(host)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def server_bind(self) -> None:
        # HTTPServer.server_bind asks DNS for the host's full name, which can take seconds.
        if self.address_family == socket.AF_INET6 and self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request, client_address) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._slots.release()
            raise

    def process_request_thread(self, request, client_address) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request, client_address) -> None:
        self.log.debug("a connection broke", client=client_address[0])


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


class Handler(BaseHTTPRequestHandler):
    server: AgentServer  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = TIMEOUT_SECONDS
    server_version = "whyidle"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        answer = PATHS.get(path, _not_found)(self)
        compress = "gzip" in self.headers.get("Accept-Encoding", "").lower() and path == "/metrics"
        body = gzip.compress(answer.body, 1) if compress else answer.body
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(body)))
        if compress:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        self.server.log.debug("request", client=self.client_address[0], what=format % args)


_TEXT = "text/plain; charset=utf-8"


def _metrics(handler: Handler) -> Answer:
    content_type = _content_type(handler.headers.get("Accept", ""))
    openmetrics = content_type.startswith("application/openmetrics-text")
    try:
        body = handler.server.exporter.scrape(openmetrics=openmetrics, seconds=_patience(handler))
    except Exception as error:  # a fault of ours must be seen in the log and by Prometheus, not as a hung scrape
        handler.server.log.error("the scrape failed", error=repr(error))
        return Answer(500, _TEXT, b"the scrape failed; see the agent's log\n")
    return Answer(200, content_type, body)


def _content_type(accept: str) -> str:
    try:
        return choose_encoder(accept)[1]
    except (TypeError, ValueError):  # a version that is no number
        return CONTENT_TYPE_PLAIN_0_0_4


def _patience(handler: Handler) -> float:
    """How long Prometheus will wait, less what the answer needs to reach it."""
    try:
        asked = float(handler.headers.get("X-Prometheus-Scrape-Timeout-Seconds", ""))
    except ValueError:
        return SCRAPE_SECONDS
    return asked * 0.8 if 0 < asked < 3600 else SCRAPE_SECONDS


def _readiness(handler: Handler) -> Answer:
    if handler.server.ready():
        return Answer(200, _TEXT, b"ready\n")
    return Answer(503, _TEXT, b"the ledger directory has not been read yet\n")


def _not_found(handler: Handler) -> Answer:
    return Answer(404, _TEXT, b"not found; try /metrics\n")


PATHS: dict[str, Callable[[Handler], Answer]] = {
    "/": lambda handler: Answer(200, "text/html; charset=utf-8", PAGE),
    "/metrics": _metrics,
    "/healthz": lambda handler: Answer(200, _TEXT, b"ok\n"),
    "/readyz": _readiness,
}

"""The agent's HTTP server: /metrics, /hang, /healthz, /readyz and a page that links to them."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from .exporter import SCRAPE_SECONDS, Exporter
from .hang.page import HangPage
from .log import Log
from .web.gate import Gate, OpenGate
from .web.listener import Listener
from .web.messages import Request, Response, plain
from .web.negotiation import accepts_gzip, wants_openmetrics

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LEAST_SECONDS = 0.5
"""A round that ends earlier reads nothing, and would still count as one: anybody may ask for it."""
GZIP_LEVEL = 1
"""Level 1 compresses 85 kB to 8.0 kB in 0.09 ms; level 6 compresses them to 6.9 kB in 0.24 ms."""

PAGE = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>whyidle agent</title></head>
<body><h1>whyidle agent</h1><ul><li><a href="metrics">Metrics</a></li><li><a href="healthz">Health</a></li>
<li><a href="readyz">Readiness</a></li><li><a href="hang">Runs that hang</a></li></ul></body></html>
"""


class AgentServer(Listener):
    """Serves one exporter. ``ready`` returns whether the agent is ready to be scraped.

    Raises OSError if the address cannot be bound.
    """

    def __init__(
        self,
        host: str,
        port: int,
        exporter: Exporter,
        ready: Callable[[], bool],
        log: Log,
        gate: Gate | None = None,
        hang: HangPage | None = None,
    ):
        self.exporter = exporter
        self._ready = ready
        self._log = log
        self._pages: dict[str, Callable[[Request], Response]] = {
            "/": lambda request: Response(200, "text/html; charset=utf-8", PAGE),
            "/metrics": self._metrics,
            "/healthz": lambda request: plain(200),
            "/readyz": self._readiness,
        }
        if hang is not None:
            self._pages["/hang"] = lambda request: hang.answer(as_json=False)
            self._pages["/hang.json"] = lambda request: hang.answer(as_json=True)
        super().__init__(host, port, gate or OpenGate(), self._answer, self._note)

    def _answer(self, request: Request) -> Response:
        page = self._pages.get(request.path)
        answer = page(request) if page else plain(404, "not found; try /metrics")
        self._log.debug("request", method=request.method, path=request.path, status=answer.status)
        return answer

    def _metrics(self, request: Request) -> Response:
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        try:
            body = self.exporter.scrape(openmetrics=openmetrics, seconds=_patience(request))
        except Exception as error:  # our own bugs must show in the log and to Prometheus, not as a scrape that hangs
            self._log.error("the scrape failed", error=repr(error))
            return plain(500, "the scrape failed; see the agent's log")
        content_type = OPENMETRICS if openmetrics else TEXT
        if not accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(200, content_type, body, _VARIES)
        return Response(200, content_type, _gzip(body), _VARIES_GZIP)

    def _readiness(self, request: Request) -> Response:
        return plain(200, "ready") if self._ready() else plain(503, "the ledger directory has not been read yet")

    def _note(self, address: str, problem: str) -> None:
        self._log.debug("a connection broke", client=address, problem=problem)


_VARIES = (("Vary", "Accept, Accept-Encoding"),)
_VARIES_GZIP = (("Content-Encoding", "gzip"), *_VARIES)


def _gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def _patience(request: Request) -> float:
    """Seconds for reading: 80 % of Prometheus's scrape timeout, to leave time for sending the answer."""
    try:
        asked = float(request.headers.get("x-prometheus-scrape-timeout-seconds", ""))
    except ValueError:
        return SCRAPE_SECONDS
    return max(LEAST_SECONDS, asked * 0.8) if 0 < asked < 3600 else SCRAPE_SECONDS

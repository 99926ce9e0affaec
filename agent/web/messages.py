"""Parses requests and renders answers of HTTP/1.1: the part of RFC 9112 that a service without uploads needs.

The standard library parses headers as an e-mail message, which takes four times as long as all of this, and 8 MB.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus

Headers = tuple[tuple[str, str], ...]

HEADERS = 100
"""The maximum number of header lines, the same as in the standard library."""
METHODS: tuple[str, ...] = ("GET", "HEAD")

_VERSION = re.compile(r"HTTP/(\d)\.(\d)")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TEXT = "text/plain; charset=utf-8"
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str  # without the query
    headers: dict[str, str]  # names in lower case; the values of repeated headers are joined by commas
    keep_alive: bool  # whether the client wants to keep the connection open


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    content_type: str
    body: bytes
    headers: Headers = ()


Service = Callable[[Request], Response]


class BadRequest(Exception):
    """A request that is refused with this answer. The connection is closed after it."""

    def __init__(self, answer: Response):
        super().__init__(answer.body.decode().strip())
        self.answer = answer


def plain(status: int, text: str = "", headers: Headers = ()) -> Response:
    """A plain-text response with this text or, without one, the name of the status."""
    return Response(status, _TEXT, f"{text or HTTPStatus(status).phrase.lower()}\n".encode(), headers)


def parse(head: bytes) -> Request:
    """Parses a request's first line and headers, without the empty line after them. Raises BadRequest."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not (version := _VERSION.fullmatch(words[2])) or not _TOKEN.fullmatch(words[0]):
        raise BadRequest(plain(400))
    if version[1] != "1":
        raise BadRequest(plain(505))
    headers = _headers(lines)
    if version[2] != "0" and "host" not in headers:  # RFC 9112, 3.2
        raise BadRequest(plain(400, "a request of HTTP/1.1 must have a Host header"))
    if words[0] not in METHODS:
        raise BadRequest(plain(405, headers=(("Allow", ", ".join(METHODS)),)))
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    # A body is never read, so a later request on the same connection could not be distinguished from it.
    body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
    keep_alive = version[2] != "0" and "close" not in options and not body
    return Request(words[0], _path(words[1]), headers, keep_alive)


def _headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > HEADERS:
        raise BadRequest(plain(431))
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or "\n" in value or "\r" in value or "\0" in value:
            raise BadRequest(plain(400))
        name, value = name.lower(), value.strip(" \t")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def _path(target: str) -> str:
    """The path of a target such as ``/metrics?x``, or ``http://host/metrics``, which servers must accept too."""
    target = target.partition("?")[0]
    if target[:1] != "/" and "://" in target:
        target = "/" + target.partition("://")[2].partition("/")[2]
    return target


def render(answer: Response, *, extra: Headers = (), body: bool = True, keep_alive: bool = True) -> bytes:
    """The bytes of an answer. ``body`` is False for HEAD, which gets only the length of the body."""
    status = HTTPStatus(answer.status)
    lines = [
        f"HTTP/1.1 {answer.status} {status.phrase}\r\nDate: {_date(int(time.time()))}\r\n"
        f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n",
        *(f"{name}: {value}\r\n" for name, value in (*answer.headers, *extra)),
        "\r\n" if keep_alive else "Connection: close\r\n\r\n",
    ]
    head = "".join(lines).encode("latin-1", "replace")
    return head + answer.body if body else head


@lru_cache(maxsize=1)
def _date(unix_seconds: int) -> str:
    """The date in RFC 9110's format, independent of the locale."""
    at = time.gmtime(unix_seconds)
    return time.strftime(f"{_DAYS[at.tm_wday]}, %d {_MONTHS[at.tm_mon - 1]} %Y %H:%M:%S GMT", at)

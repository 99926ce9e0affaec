"""A client for Prometheus's HTTP API: instant queries, range queries and series. It needs only the standard library.

Source: https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import http.client
import json
import math
import ssl
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.error import HTTPError

from ...ledger.text import printable

Labels = dict[str, str]
MOST_POINTS = 10_000
"""The most points per series in one answer. Prometheus refuses more than 11,000."""
MOST_BYTES = 256 << 20
_SHOWN = 300
"""The most characters of a server's message that an error repeats."""


class NoAnswer(Exception):
    """Prometheus does not answer, or its answer lacks what was asked for. The message says what to do."""


class Sample(NamedTuple):
    """One series of an instant query."""

    labels: Labels
    value: float


class Course(NamedTuple):
    """One series of a range query: (unix time, value), in order."""

    labels: Labels
    points: list[tuple[float, float]]


def over(seconds: float) -> str:
    """A range of PromQL. It is a millisecond shorter, because Prometheus 2 includes both ends of a range. Prometheus 3
    includes only the last one."""
    return f"[{max(1, round(1000 * seconds) - 1)}ms]"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because urllib would send the credentials to any server that an answer names."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class Prometheus:
    """One server. Proxies come from the environment, as for curl and promtool."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_seconds: float, authority: str | None = None):
        """``headers`` have the credentials. ``authority``: a PEM file with CA certificates. Raises NoAnswer."""
        self.url = url.rstrip("/")
        self.warnings: list[str] = []
        """The server's warnings about its answers so far, each once. Parts of the answers may be missing."""
        self._headers = headers
        self._timeout = timeout_seconds
        try:
            context = ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise NoAnswer(f"{authority} cannot be used as a file of CA certificates: {error}") from error
        self._opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=context))

    def query(self, expression: str, time: float) -> list[Sample]:
        """Makes an instant query at a unix time. Values that are not numbers are left out. Raises NoAnswer."""
        found = self._ask("query", query=expression, time=f"{time:.3f}")
        return [
            Sample(labels, value)
            for labels, values in _series(found, "vector", "value")
            if math.isfinite(value := values[0][1])
        ]

    def range(self, expression: str, start: float, end: float, step: float) -> list[Course]:
        """Makes a range query, in as many parts as the server's limit requires. Raises NoAnswer."""
        found: dict[tuple[tuple[str, str], ...], Course] = {}
        for first, last in _parts(start, end, step):
            answer = self._ask(
                "query_range", query=expression, start=f"{first:.3f}", end=f"{last:.3f}", step=f"{step:g}"
            )
            for labels, values in _series(answer, "matrix", "values"):
                course = found.setdefault(tuple(sorted(labels.items())), Course(labels, []))
                course.points.extend(point for point in values if math.isfinite(point[1]))
        return list(found.values())

    def series(self, selector: str, start: float, end: float) -> list[Labels]:
        """The labels of all series that match a selector, in blocks of data that overlap the time. Raises NoAnswer."""
        found = self._ask("series", **{"match[]": selector, "start": f"{start:.3f}", "end": f"{end:.3f}"})
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise NoAnswer(f"{self.url} does not answer as a Prometheus does: series must be a list")
        return [_labels(one) for one in found]

    def _ask(self, path: str, **parameters: str) -> Any:
        """The field `data` of an answer. Raises NoAnswer."""
        address = f"{self.url}/api/v1/{path}"
        body = urllib.parse.urlencode(parameters).encode()  # long queries do not fit into a URL
        request = urllib.request.Request(address, body, dict(self._headers))
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                text = answer.read(MOST_BYTES + 1)
        except HTTPError as error:
            raise NoAnswer(self._refusal(error, _body(error), parameters)) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            raise NoAnswer(f"no Prometheus answers at {self.url} ({why})") from None
        if len(text) > MOST_BYTES:
            raise NoAnswer(f"an answer of {self.url} has more than {MOST_BYTES >> 20} MiB: ask for less with --since")
        found = _json(text)
        if found is None or found.get("status") != "success" or "data" not in found:
            raise NoAnswer(f"{self.url} does not answer as a Prometheus does: is the address right?")
        warnings = found.get("warnings")
        for warning in warnings if isinstance(warnings, list) else ():
            if (text := printable(str(warning))) not in self.warnings:
                self.warnings.append(text)
        return found["data"]

    def _refusal(self, error: HTTPError, text: bytes, parameters: Mapping[str, str]) -> str:
        code, said = error.code, _json(text)
        told = printable(str((said or {}).get("error") or "")[:_SHOWN])
        if 300 <= code < 400:
            # The query of a URL may contain a token.
            target = urllib.parse.urlsplit(error.headers.get("Location") or "")._replace(query="", fragment="").geturl()
            return f"{self.url} redirects to {target or 'nowhere'}: give the address of Prometheus itself"
        if code == 401:
            return f"{self.url} requires authentication (401): give a token or a password, as --help says"
        if code == 403:
            return f"{self.url} does not allow this user to query (403){_behind(told)}"
        if code == 404 and not told:
            return f"there is no Prometheus at {self.url} (404): is its path missing, such as /prometheus?"
        if code in (400, 422) and told:
            return f"{self.url} refuses a query ({code}): {told}. The query: {parameters.get('query', parameters)}"
        if code == 503 and told:
            return f"{self.url} aborted a query (503): {told}. Ask for less with --since"
        return f"{self.url} answers {code} {error.reason}{_behind(told)}"


def _behind(told: str) -> str:
    return f": {told}" if told else ""


def _body(error: HTTPError) -> bytes:
    """What a server says with its refusal, as far as it comes."""
    try:
        with error:
            return error.read(1 << 16)
    except (OSError, http.client.HTTPException):
        return b""


def _json(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _series(data: Any, kind: str, field: str) -> Iterator[tuple[Labels, list[tuple[float, float]]]]:
    try:
        if data["resultType"] != kind:
            raise NoAnswer(f"the answer must be a {kind}, not a {data['resultType']}")
        for entry in data["result"]:
            values: Sequence[Sequence[Any]] = [entry[field]] if field == "value" else entry[field]
            yield _labels(entry["metric"]), [(float(time), float(value)) for time, value in values]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NoAnswer(f"the answer does not look like a Prometheus's: {error!r}") from error


def _labels(found: Mapping[str, str]) -> Labels:
    """Whoever is scraped chooses the values of labels, and they are printed on terminals."""
    return {name: printable(str(value)) for name, value in found.items()}


def _parts(start: float, end: float, step: float) -> Iterator[tuple[float, float]]:
    """Yields parts of a range, each with at most MOST_POINTS points."""
    first = start
    while first <= end:
        last = min(end, first + (MOST_POINTS - 1) * step)
        yield first, last
        first = last + step

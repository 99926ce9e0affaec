"""Asks an agent for its metrics over HTTP, as Prometheus does."""

from __future__ import annotations

import http.client
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

TIMEOUT_SECONDS = 2.0
INSTALL = "pip install 'whyidle[agent]'"
_MOST_BYTES = 64 << 20
_no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NoAgent(Exception):
    """No agent answers, or its answer cannot be read. The message says which agent and why."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer of an agent to one request."""

    address: str
    """host:port"""
    samples: list[Sample] = field(default_factory=list)
    at: float = 0.0
    """When it answered, in seconds of time.monotonic()."""
    why_not: str = ""
    """Why there are no samples; empty if the agent has answered."""


def fetch(address: str, timeout_seconds: float, most_bytes: int = -1) -> bytes:
    """The answer of the agent at ``host:port``, at most ``most_bytes`` of it (-1: all).

    Raises OSError if nothing answers, and http.client.HTTPException if the answer is not HTTP.
    """
    with _no_proxy.open(f"http://{address}/metrics", timeout=timeout_seconds) as answer:
        return answer.read(most_bytes)


def ask(address: str, *names: str, timeout_seconds: float = TIMEOUT_SECONDS) -> list[Sample]:
    """The samples of the metrics with these names at the agent at ``host:port``. Raises NoAgent."""
    try:
        return list(samples(fetch(address, timeout_seconds, _MOST_BYTES).decode("utf-8", "replace"), *names))
    except ModuleNotFoundError as error:
        raise NoAgent(f"the agent at {address} cannot be asked without {error.name}: {INSTALL}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise NoAgent(f"no agent answers at {address} ({getattr(reason, 'strerror', None) or reason})") from error


def read(address: str, *names: str) -> Reading:
    """Asks like `ask`, but returns a `Reading` that says why if there is no answer."""
    try:
        return Reading(address, ask(address, *names), time.monotonic())
    except NoAgent as error:
        return Reading(address, why_not=str(error))


def samples(exposition: str, *names: str) -> Iterator[Sample]:
    """Yields the samples of the metrics with these names. Other lines, often megabytes, are not parsed.

    Raises ValueError.
    """
    from prometheus_client.parser import text_string_to_metric_families

    lines = "\n".join(line for line in exposition.splitlines() if line.startswith(names))
    for metric in text_string_to_metric_families(lines + "\n"):
        yield from (sample for sample in metric.samples if sample.name in names)

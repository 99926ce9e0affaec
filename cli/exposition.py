"""Asks an agent for its metrics over HTTP, as Prometheus would."""

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
    """No agent answers, or its answer cannot be read. A sentence that says which agent and why."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What an agent said when it was asked."""

    address: str
    """host:port"""
    samples: list[Sample] = field(default_factory=list)
    at: float = 0.0
    """When it answered, in seconds of time.monotonic()."""
    why_not: str = ""
    """Why there are no samples; empty where the agent has answered."""


def fetch(address: str, timeout_seconds: float, most_bytes: int = -1) -> bytes:
    """What the agent at ``host:port`` answers, at most so many bytes of it.

    Raises OSError when none answers, http.client.HTTPException when what answers does not speak HTTP.
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
    """The same, for those who can do without an answer."""
    try:
        return Reading(address, ask(address, *names), time.monotonic())
    except NoAgent as error:
        return Reading(address, why_not=str(error))


def samples(exposition: str, *names: str) -> Iterator[Sample]:
    """The samples of the metrics with these names; the rest, often megabytes, is not parsed. Raises ValueError."""
    from prometheus_client.parser import text_string_to_metric_families

    lines = "\n".join(line for line in exposition.splitlines() if line.startswith(names))
    for metric in text_string_to_metric_families(lines + "\n"):
        yield from (sample for sample in metric.samples if sample.name in names)

"""Asks an agent for its metrics over HTTP, as Prometheus would."""

from __future__ import annotations

import urllib.request

_no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(address: str, timeout_seconds: float, most_bytes: int = -1) -> bytes:
    """What the agent at ``host:port`` answers, at most so many bytes of it.

    Raises OSError when none answers, http.client.HTTPException when what answers does not speak HTTP.
    """
    with _no_proxy.open(f"http://{address}/metrics", timeout=timeout_seconds) as answer:
        return answer.read(most_bytes)

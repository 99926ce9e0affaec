"""Debian's node_exporter, to read the same machine with."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.request
from collections.abc import Callable, Iterator

import psutil
from prometheus_client.parser import text_string_to_metric_families
from support_ledgers import until

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@contextlib.contextmanager
def node_exporter(*collectors: str) -> Iterator[Callable[[], Series]]:
    """Runs it with these collectors alone; each call is a scrape: name and sorted labels -> value."""
    process = subprocess.Popen(
        [
            "prometheus-node-exporter",
            "--web.listen-address=127.0.0.1:0",
            "--collector.disable-defaults",
            *(f"--collector.{name}" for name in collectors),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        port = until(lambda: _port(process.pid))
        yield lambda: _scrape(port)
    finally:
        process.kill()
        process.wait()


def _port(pid: int) -> int:
    """The port on which the exporter listens, which it does not print; 0 if it does not listen yet."""
    return next((at.laddr.port for at in psutil.Process(pid).net_connections() if at.status == "LISTEN"), 0)


def _scrape(port: int) -> Series:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

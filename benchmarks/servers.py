"""Starts Prometheus and VictoriaMetrics for benchmarks: on loopback, each with its own folder."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remote_write import HEADERS

from whyidle.alerts.output import files

READY_SECONDS = 120.0
SCRAPE_SECONDS = 15
RECORDED = '{__name__=~".+:.+"}'
LATELY = "1m"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
COLLECTION = re.compile(r"^gc \d+ @.*? ms clock, ([\d.+/]+) ms cpu", re.MULTILINE)
"""A line of Go's trace of garbage collections (package runtime, GODEBUG=gctrace=1)."""
GROUP = re.compile(
    r'^prometheus_rule_group_last_(duration|evaluation_timestamp)_seconds\{rule_group="[^"]*;([^"]*)"\} (\S+)$',
    re.MULTILINE,
)
Found = list[tuple[dict[str, str], float]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Server:
    """A running time series database with Prometheus's API."""

    ready = "/-/ready"

    def __init__(self, command: list[str], port: int, trace: Path | None = None):
        """``trace``: the file for what a server that is written in Go says about its garbage collections."""
        self.url, self.trace = f"http://127.0.0.1:{port}", trace
        env = {**os.environ, "GODEBUG": "gctrace=1"} if trace else None
        with open(trace or os.devnull, "wb") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=env)

    def __enter__(self):
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self.get(self.ready)
                return self
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.__exit__()
                    raise RuntimeError(f"does not serve: {self.process.args}") from None
                time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def get(self, path: str, query: Mapping[str, str | float] | None = None, timeout: float = 130) -> bytes:
        data = urllib.parse.urlencode(query).encode() if query else None
        with DIRECT.open(self.url + path, data=data, timeout=timeout) as answer:
            return answer.read()

    def post(self, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Sends a POST request. Raises OSError if it is refused."""
        request = urllib.request.Request(self.url + path, data=body, headers={**(headers or {})}, method="POST")
        DIRECT.open(request, timeout=600).close()

    def ask(self, query: str, end: float, seconds: int, step: int) -> bytes:
        """The answer to a query over a range, or at ``end`` if ``seconds`` is 0. Raises OSError if it is refused."""
        if seconds:
            return self.get("/api/v1/query_range", {"query": query, "start": end - seconds, "end": end, "step": step})
        return self.get("/api/v1/query", {"query": query, "time": end})

    def values(self, label: str, selector: str, end: float, seconds: int) -> bytes:
        """The answer to a query for the values of a label over a range."""
        query = urllib.parse.urlencode({"match[]": selector, "start": end - seconds, "end": end})
        return self.get(f"/api/v1/label/{label}/values?{query}")

    def instant(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Labels and values of the result of a query, now."""
        found = json.loads(self.ask(query, time.time(), 0, 0))["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def own(self, metric: str) -> float:
        """The sum of a metric that the server exports about itself."""
        text = self.get("/metrics").decode()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(metric))

    def resident_bytes(self) -> float:
        return self.own("process_resident_memory_bytes ")

    def collections(self) -> list[float]:
        """The CPU seconds of each garbage collection so far, on all threads, without sweeping."""
        text = self.trace.read_text(errors="replace") if self.trace else ""
        return [sum(map(float, re.split("[+/]", of))) / 1000 for of in COLLECTION.findall(text)]

    def cpu_seconds(self) -> float:
        """The CPU time of the server's threads so far. The kernel counts it in nanoseconds."""
        found = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in found) / 1e9


class Prometheus(Server):
    """Prometheus with the shipped rules, which are loaded at the start or later. ``every`` replaces their intervals."""

    def __init__(self, scratch: Path, binary: str, *, rules: bool, every: str | None = None):
        self.scratch, self.every = scratch, every
        for name, text in files().items():
            if every:
                text = re.sub(r"(?m)^    interval: .*$", f"    interval: {every}", text)
            (scratch / name).write_text(text)
        self.configure(rules, every)
        port = free_port()
        command = [
            binary,
            f"--config.file={scratch / 'prometheus.yml'}",
            f"--storage.tsdb.path={scratch / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--web.enable-remote-write-receiver",
            "--web.enable-lifecycle",
            "--log.level=error",
        ]
        super().__init__(command, port, scratch / "collections.log")

    def configure(self, rules: bool, every: str | None = None) -> None:
        named = json.dumps([str(self.scratch / name) for name in files()] if rules else [])
        interval = every or f"{SCRAPE_SECONDS}s"
        text = f"global: {{scrape_interval: {SCRAPE_SECONDS}s, evaluation_interval: {interval}}}\nrule_files: {named}\n"
        (self.scratch / "prometheus.yml").write_text(text)

    def load_rules(self, rules: bool = True) -> None:
        self.configure(rules, self.every)
        self.post("/-/reload")

    def series(self) -> int:
        """The number of series in memory."""
        return int(self.own("prometheus_tsdb_head_series "))

    def write(self, body: bytes) -> None:
        """Sends a request of remote write. Raises OSError if it is refused."""
        self.post("/api/v1/write", body, HEADERS)

    def groups(self) -> list[dict[str, Any]]:
        return json.loads(self.get("/api/v1/rules"))["data"]["groups"]

    def failing(self) -> dict[str, str]:
        """Rule -> its last error, for rules that fail."""
        rules = [rule for group in self.groups() for rule in group["rules"]]
        return {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")}

    def missed(self) -> float:
        """The number of evaluations that were skipped because the one before took too long."""
        return self.own("prometheus_rule_group_iterations_missed_total")

    def last_evaluations(self) -> dict[str, tuple[float, float]]:
        """Group -> the time of its last evaluation (Unix seconds), and how long it took in seconds."""
        found = {(what, group): float(value) for what, group, value in GROUP.findall(self.get("/metrics").decode())}
        groups = {group for _, group in found}
        return {group: (found["evaluation_timestamp", group], found["duration", group]) for group in groups}

    def evaluated(self) -> float:
        """The number of evaluations of the group with the fewest."""
        text = self.get("/metrics").decode()
        counts = re.findall(r"^prometheus_rule_group_iterations_total\{.*\} (\S+)$", text, re.MULTILINE)
        return min(map(float, counts), default=0.0)

    def recorded(self) -> Found:
        """Labels and last values of the series that the rules recorded in the last minutes.

        An increase of 0 is not recorded, and most evaluations come between two samples of the counters.
        """
        return self.instant(f"last_over_time({RECORDED}[{LATELY}])")


class VictoriaMetrics(Server):
    """VictoriaMetrics as a single node. Queries see new data after it is flushed."""

    ready = "/health"

    def __init__(self, scratch: Path, binary: str):
        port = free_port()
        command = [
            binary,
            f"-storageDataPath={scratch / 'data'}",
            f"-httpListenAddr=127.0.0.1:{port}",
            "-retentionPeriod=1",
            "-search.latencyOffset=0s",
            "-search.maxUniqueTimeseries=10000000",
            "-search.disableCache",
            f"-memory.allowedBytes={os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 4}",
        ]
        super().__init__(command, port)

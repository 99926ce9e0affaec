"""A real Prometheus for tests: Debian's, on a free port of loopback, with the configuration that whyidle ships."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import psutil
from support_ledgers import DEADLINE_SECONDS, until
from support_yaml import read_yaml, write_yaml

from whyidle.alerts.config import Config
from whyidle.alerts.output import files

PROMETHEUS = shutil.which("prometheus")
SHIPPED = Path(__file__).parents[2] / "deploy" / "prometheus"
EVERY_SECOND = "1s"
ALERTS_WAIT = "5s"
FAMILY_ALERT = "WhyidleLostTo"
"""The alert on families, which has the family as a label."""

Labels = dict[str, str]
_no_proxy = build_opener(ProxyHandler({}))


def alert_name(labels: Mapping[str, str]) -> str:
    """`WhyidleLostTo/storage`, or only the name of an alert without a family."""
    return "/".join(labels[label] for label in ("alertname", "family") if label in labels)


class QueryError(Exception):
    """Prometheus's error for an invalid query."""


class Sample:
    """One series of an instant query."""

    def __init__(self, answer: Mapping[str, Any]):
        self.labels: Labels = answer["metric"]
        self.value = float(answer["value"][1])

    def __repr__(self) -> str:
        return f"{self.labels} {self.value:g}"


class Prometheus:
    """A running Prometheus that answers queries."""

    def __init__(self, folder: Path, *options: str):
        assert PROMETHEUS, "needs prometheus, of the Debian package of that name"
        self._start(
            folder,
            *(PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"),
            *("--web.listen-address=127.0.0.1:0", "--log.level=warn", *options),
        )

    def _start(self, folder: Path, *command: str) -> None:
        self._folder = folder
        with open(folder / "log", "wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.url = f"http://127.0.0.1:{until(self._port)}"
        until(self._ready)

    # -- scrapes

    def scrape(self, targets: Mapping[str, Labels]) -> None:
        """Scrapes these addresses from now on, with these labels, instead of the earlier ones."""
        groups = [{"targets": [address], "labels": labels} for address, labels in targets.items()]
        whole = self._folder / "nodes.unfinished"
        whole.write_text(write_yaml(groups))
        # Prometheus watches the file, and reads it after a rename.
        whole.rename(self._folder / "targets" / "nodes.yml")

    def wait_for(self, *addresses: str) -> None:
        """Returns once each of these targets has answered a scrape."""
        until(lambda: {sample.labels["instance"] for sample in self.query("up == 1")} >= set(addresses))

    # -- queries

    def query(self, expression: str, time: float | None = None) -> list[Sample]:
        """An instant query, now or at a unix time. A scalar is a sample without labels. Raises QueryError."""
        moment = {} if time is None else {"time": f"{time:.3f}"}
        answer = self._ask("query", query=expression, **moment)
        if answer["resultType"] == "scalar":
            return [Sample({"metric": {}, "value": answer["result"]})]
        return [Sample(entry) for entry in answer["result"]]

    def value(self, expression: str, time: float | None = None) -> float:
        """The value of the only series of an expression."""
        [sample] = self.query(expression, time)
        return sample.value

    def values(self, expression: str, label: str, time: float | None = None) -> dict[str, float]:
        """Values by one label, which identifies the series."""
        samples = self.query(expression, time)
        found = {sample.labels.get(label, ""): sample.value for sample in samples}
        assert len(found) == len(samples), f"{label} does not tell apart {samples}"
        return found

    def range(self, expression: str, start: float, end: float, step: float) -> list[tuple[Labels, list[float]]]:
        """A range query: labels and values of each series. Raises QueryError."""
        found = self.points(expression, start, end, step)
        return [(labels, [value for _, value in points]) for labels, points in found]

    def points(
        self, expression: str, start: float, end: float, step: float
    ) -> list[tuple[Labels, list[tuple[float, float]]]]:
        """A range query: labels of each series, and its moments with their values. Raises QueryError."""
        answer = self._ask("query_range", query=expression, start=f"{start:.3f}", end=f"{end:.3f}", step=f"{step:g}")
        return [
            (entry["metric"], [(float(at), float(value)) for at, value in entry["values"]])
            for entry in answer["result"]
        ]

    def label_values(self, label: str, *selectors: str) -> list[str]:
        return self._ask(f"label/{label}/values", **{"match[]": list(selectors)})

    def series(self, selector: str) -> list[Labels]:
        return self._ask("series", **{"match[]": selector})

    def rules(self) -> list[dict[str, Any]]:
        """All rules, with `type`, `name`, `query`, `health`, `lastError`; alerts with `state` and `alerts` too."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def alerts(self) -> list[dict[str, Any]]:
        """Pending and firing alerts, with `labels`, `annotations`, `state`, `value`."""
        return self._ask("alerts")["alerts"]

    def targets(self) -> list[dict[str, Any]]:
        return self._ask("targets")["activeTargets"]

    def log(self) -> str:
        return (self._folder / "log").read_text()

    def close(self) -> None:
        """Ends it like a service manager. It leaves no process."""
        self._process.terminate()
        try:
            self._process.wait(DEADLINE_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()

    # -- requests

    def _ask(self, path: str, **parameters: str | Sequence[str]) -> Any:
        body = urllib.parse.urlencode(parameters, doseq=True)
        posted = path in ("query", "query_range")  # long queries do not fit into a URL
        request = Request(f"{self.url}/api/v1/{path}{'' if posted else f'?{body}'}", body.encode() if posted else None)
        try:
            with _no_proxy.open(request, timeout=DEADLINE_SECONDS) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            with error:
                raise QueryError(f"{error.code} {error.read().decode()}: {parameters}") from None

    def _port(self) -> int:
        assert self._process.poll() is None, self.log()
        process = psutil.Process(self._process.pid)
        ask = getattr(process, "net_connections", None) or process.connections  # psutil before 6.0
        return next((one.laddr.port for one in ask("tcp") if one.status == psutil.CONN_LISTEN), 0)

    def _ready(self) -> bool:
        assert self._process.poll() is None, self.log()
        try:
            with _no_proxy.open(f"{self.url}/-/ready", timeout=DEADLINE_SECONDS) as answer:
                return answer.status == 200
        except HTTPError as error:  # 503 while it replays its log
            error.close()
            return False


@contextlib.contextmanager
def prometheus(folder: Path, *rule_files: Path, interval: str = EVERY_SECOND) -> Iterator[Prometheus]:
    """The shipped configuration in ``folder``, with these rules, all evaluated often. It scrapes nothing yet.

    The rules must be made for evaluations each ``interval``: ``Config(interval=interval, details_interval=interval,
    ranks_interval=interval, counters_interval=interval)``.
    """
    config = read_yaml((SHIPPED / "prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": interval, "evaluation_interval": interval}
    for scrape in config["scrape_configs"]:
        scrape["scrape_timeout"] = interval
    (folder / "prometheus.yml").write_text(write_yaml(config))
    (folder / "targets").mkdir()
    for name in ("nodes.yml", "alertmanagers.yml"):
        (folder / "targets" / name).write_text("[]\n")
    written = folder / "rules"
    written.mkdir()
    for file in rule_files:
        (written / file.name).write_text(hurried(file.read_text()))
    with contextlib.closing(Prometheus(folder)) as running:
        yield running


def rules(folder: Path, config: Config) -> list[Path]:
    """The files of `whyidle rules`, with these settings."""
    folder.mkdir(exist_ok=True)
    for name, text in files(config).items():
        (folder / name).write_text(text)
    return [folder / name for name in files(config)]


def hurried(text: str) -> str:
    """The rules, all evaluated equally often. Alerts fire after seconds, and end with their condition."""
    groups = read_yaml(text)["groups"]
    for group in groups:
        group.pop("interval", None)
        for rule in group["rules"]:
            rule.pop("keep_firing_for", None)
            if "for" in rule:
                rule["for"] = ALERTS_WAIT
    return write_yaml({"groups": groups})


def finite(samples: Sequence[Sample]) -> list[Sample]:
    """The values that are numbers: a share of nothing is not."""
    return [sample for sample in samples if math.isfinite(sample.value)]

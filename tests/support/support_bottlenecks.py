"""A training over two nodes while something is really slow, and the results of the recorded rules.

The rules are those of `whyidle rules`, except for the window of evidence: it is a minute instead of five, so that a
training of a minute and a half fills it. As elsewhere in the tests, all rules are evaluated each second, and alerts
wait for seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support_agent import WHYIDLE, Agent
from support_bottlenecks_nodes import Node, nodes
from support_demo import kill_marked, machine
from support_ledgers import until
from support_prometheus import EVERY_SECOND, Prometheus, Sample, alert_name, prometheus, rules
from support_sites import clean_env

from whyidle.alerts.config import Config

JOB = Path(__file__).with_name("support_bottlenecks_job.py")
WINDOW = "1m"
FILLED_SECONDS = 75
"""From the first step until the window contains only steps, including a scrape and an evaluation."""
SHARDS, SHARD_BYTES = 64, 512 << 10
FAMILIES = ("network", "storage", "cpu")
"""The families that counters can confirm."""
_MARK = "BOTTLENECK_TEST_MARK"


@dataclass(frozen=True)
class Place:
    """The place of a training."""

    nodes: list[Node]
    data: Path
    checkpoints: Path
    scratch: Path


Disturb = Callable[[Place], AbstractContextManager[Place]]
"""Makes something slow inside the block -> the place that the training should use."""


@dataclass(frozen=True)
class Case:
    """A disturbance of the machine, and the right answer."""

    name: str
    disturb: Disturb
    family: str
    corroboration: str
    signals: frozenset[str] = frozenset()
    """Signals of the verdict's family that must appear. If the verdict is confirmed, others may appear too."""
    alert: str = ""
    arguments: tuple[str, ...] = ()
    """Arguments of the training."""
    deaf: frozenset[str] = frozenset()
    """Signals that must not appear, although another program gives them a reason."""


HEADINGS = ("disturbed", "verdict", "corroboration", "signals that spoke", "alerts on the run")


@dataclass
class Observed:
    """What was recorded at the end of the window."""

    case: Case
    verdict: Sample
    charged: dict[str, float]
    signals: dict[str, set[str]]  # by family, for all nodes
    alerts: list[dict[str, Any]]
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def firing(self) -> set[str]:
        """The firing alerts on this run."""
        mine = [one for one in self.alerts if one["labels"].get("run") == self.case.name]
        return {alert_name(one["labels"]) for one in mine if one["state"] == "firing"}

    @property
    def row(self) -> tuple[str, ...]:
        labels = self.verdict.labels
        spoke = "; ".join(f"{family}: {', '.join(sorted(names))}" for family, names in self.signals.items() if names)
        share = f"{labels['family']} {self.verdict.value:.0%}"
        return (self.case.name, share, labels["corroboration"], spoke or "-", ", ".join(sorted(self.firing)) or "-")


class Lab:
    """Two nodes with one agent each, and a Prometheus that scrapes both."""

    def __init__(self, scratch: Path, ledgers: Path, made: list[Node], server: Prometheus):
        self.nodes, self.server = made, server
        self._scratch, self._ledgers = scratch, ledgers
        self._data = scratch / "data"
        self._data.mkdir()
        for number in range(SHARDS):
            (self._data / f"shard-{number:03}").write_bytes(os.urandom(SHARD_BYTES))

    def observe(self, case: Case) -> Observed:
        """Trains during the case's disturbance, for slightly longer than the window."""
        with machine(), self.running(case):
            time.sleep(FILLED_SECONDS)
            return self._look(case)

    @contextlib.contextmanager
    def running(self, case: Case) -> Iterator[None]:
        """A training during the case's disturbance, from its first steps on."""
        scratch = self._scratch / case.name
        checkpoints = scratch / "checkpoints"
        checkpoints.mkdir(parents=True)
        whole = Place(self.nodes, self._data, checkpoints, scratch)
        with case.disturb(whole) as place, self._training(case, place):
            until(lambda: self.server.query(f'whyidle_steps_total{{run="{case.name}"}} > 0'))
            yield

    def _look(self, case: Case) -> Observed:
        ask, run = self.server.query, f'run="{case.name}"'
        [verdict] = ask(f"run_family:whyidle_verdict:ratio{WINDOW}{{{run}}}")
        signals = {
            family: {sample.labels["signal"] for sample in ask(f"node:whyidle_{family}_evidence:max{WINDOW}")}
            for family in FAMILIES
        }
        charged = self.server.values(f"run_family:whyidle_charged:ratio{WINDOW}{{{run}}}", "family")
        return Observed(case, verdict, charged, signals, self.server.alerts(), self._report(case))

    def _report(self, case: Case) -> dict[str, Any]:
        """`whyidle report` over the ledgers of both nodes, as if they shared the directory."""
        with tempfile.TemporaryDirectory(dir=self._ledgers) as both:
            for ledger in self._ledgers.glob(f"{self.nodes[0].name[:-1]}*/*"):
                os.link(ledger, Path(both, f"{ledger.parent.name}-{ledger.name}"))
            words = [*WHYIDLE, "report", "--json", "--run", case.name, "--dir", both]
            return json.loads(subprocess.run(words, capture_output=True, timeout=60, check=True).stdout)

    @contextlib.contextmanager
    def _training(self, case: Case, place: Place) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for node in place.nodes:
                log = stack.enter_context(open(place.scratch / f"{node.name}.log", "wb"))
                words = node.inside(self._command(case, place, node), in_group=True)
                environment = {**self._environment(node), _MARK: case.name}
                process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
                stack.callback(process.wait)
            stack.callback(kill_marked, _MARK, case.name)
            yield

    def _command(self, case: Case, place: Place, node: Node) -> list[str]:
        folder = self._ledgers / node.name
        launcher = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *(f"--nnodes={len(self.nodes)}", f"--node-rank={node.number}", "--nproc-per-node=1"),
            *(f"--master-addr={self.nodes[0].address}", "--master-port=29500", f"--local-addr={node.address}"),
        ]
        job = [str(JOB), "--data", str(place.data), "--checkpoints", str(place.checkpoints), *case.arguments]
        return [*WHYIDLE, "run", "--dir", str(folder), "--run", case.name, "--", *launcher, *job]

    def _environment(self, node: Node) -> dict[str, str]:
        return clean_env(WHYIDLE_NODE=node.name, GLOO_SOCKET_IFNAME="eth0", OMP_NUM_THREADS="1")


@contextlib.contextmanager
def lab(scratch: Path) -> Iterator[Lab]:
    (scratch / "prometheus").mkdir()
    hurried = Config(
        window=WINDOW,
        interval=EVERY_SECOND,
        details_interval=EVERY_SECOND,
        ranks_interval=EVERY_SECOND,
        counters_interval=EVERY_SECOND,
    )
    shipped = rules(scratch / "rules", hurried)
    with prometheus(scratch / "prometheus", *shipped) as server, two_nodes(scratch, server) as running:
        yield running


@contextlib.contextmanager
def two_nodes(scratch: Path, server: Prometheus) -> Iterator[Lab]:
    """The nodes with their agents, which a Prometheus scrapes."""
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(nodes())
        ledgers = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="whyidle-bottlenecks-")))
        for node in made:
            words = ["agent", f"--ledger.dir={ledgers / node.name}", f"--web.listen-address={node.scraped}"]
            command = node.inside(["env", f"WHYIDLE_NODE={node.name}", *WHYIDLE, *words])
            stack.enter_context(contextlib.closing(Agent(command)))
        server.scrape({node.scraped: {} for node in made})
        server.wait_for(*(node.scraped for node in made))
        yield Lab(scratch, ledgers, made, server)

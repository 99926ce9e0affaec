"""What pictures show: demos with a fault, a simulated node, real bottlenecks, and many runs at a time.

Each scene has its own Prometheus, because windows reach back, and a picture must not show the scene before.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# For the helpers that run Prometheus, the demo, the fake node and the slow nodes, and for the synthetic fleet.
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "benchmarks")]

import servers  # noqa: E402
from history import live  # noqa: E402
from support_bottlenecks import two_nodes  # noqa: E402
from support_bottlenecks_disks import missing as missing_disks  # noqa: E402
from support_bottlenecks_faults import CASES  # noqa: E402
from support_bottlenecks_nodes import missing as missing_nodes  # noqa: E402
from support_demo import Demo, machine  # noqa: E402
from support_ledgers import until  # noqa: E402
from support_prometheus import Prometheus, prometheus, rules  # noqa: E402
from synthetic import Fleet, template  # noqa: E402

from whyidle.alerts.config import Config  # noqa: E402

FAULTS: dict[str, tuple[str, ...]] = {
    # One rank has slow storage and the others wait for it, so the dashboards must look through these waits.
    "storage": ("--inject-rank", "1"),
    "network": (),
    "cpu": (),
    "straggler": (),
    "checkpoint": (),
}
"""Fault -> arguments of the demo."""
SIMULATED = "simulated"
REAL = {case.name: case for case in CASES}
RUNS = {"8-runs": 8, "100-runs": 100}
DEFAULT = (*FAULTS, SIMULATED)

CLUSTER = "lab"
SCRAPE_SECONDS = 1
SIMULATED_SECONDS = 75.0
REAL_SECONDS = 360.0
"""Until the window of evidence, which is five minutes long, is full."""
SETTLED_SECONDS = 3.0
"""Seconds for a scrape, an evaluation of the rules, and another scrape."""
PRICE = 2.5
"""The price of a GPU-hour. Without a price, dashboards show no costs."""
COST = f"A GPU-hour costs ${PRICE:.2f} here."


@dataclass(frozen=True)
class Scene:
    """What was observed: the server that has it, its time range, a description, and the values of the dashboards'
    variables."""

    server: str
    start: float
    end: float
    about: str
    variables: dict[str, str]
    only: Sequence[str] = ()
    """The dashboards to draw; all if empty."""
    unfold: bool = False
    scrape_seconds: int = SCRAPE_SECONDS


def missing(names: Sequence[str]) -> str:
    """Why these scenes cannot be observed on this machine; "" if they can."""
    return (missing_disks() or missing_nodes() or "") if {*names} & {*REAL} else ""


def scene(name: str, folder: Path, seconds: float) -> AbstractContextManager[Scene]:
    """Observes a scene. Its server runs until the end of the block. ``seconds``: the training time of a demo."""
    make: Callable[[Path], AbstractContextManager[Scene]]
    if name in FAULTS:
        make = partial(_demo, name, seconds)
    elif name in RUNS:
        make = partial(_many, RUNS[name])
    else:
        make = _simulated if name == SIMULATED else partial(_real, name)
    folder.mkdir()
    return make(folder)


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[Prometheus]:
    every = f"{SCRAPE_SECONDS}s"
    often = Config(interval=every, details_interval=every, ranks_interval=every, counters_interval=every)
    shipped = rules(folder / "rules", often)
    (folder / "prometheus").mkdir()
    with prometheus(folder / "prometheus", *shipped, interval=every) as server:
        yield server


@contextlib.contextmanager
def _demo(fault: str, seconds: float, folder: Path) -> Iterator[Scene]:
    """A demo with a fault, from its first scrape to shortly before its end."""
    with _server(folder) as server, machine():
        (folder / "demo").mkdir()  # nothing else may be in the demo's folder
        demo = Demo(folder / "demo", "--seconds", f"{seconds:g}", "--json", "--inject", fault, *FAULTS[fault])
        try:
            agent = until(demo.agent)
            server.scrape({agent: {"cluster": CLUSTER}})
            start = time.time()
            steps = f'whyidle_steps_total{{run=~".*{fault}"}} > 0'
            until(lambda: server.query(steps))
            found = server.query(steps)[0].labels
            owner, run = found["owner"], found["run"]
            time.sleep(seconds - SETTLED_SECONDS)
            end = time.time()
            node = server.query(f'whyidle_rank_info{{run="{run}"}}', end)[0].labels["node"]
            code, out, err = demo.finish()
        finally:
            demo.kill()
            server.scrape({})
        if code:
            raise SystemExit(err)
        verdict = json.loads(out)["verdict"]
        about = (
            f"Here: whyidle demo --inject {' '.join((fault, *FAULTS[fault]))}, two ranks on CPUs; "
            f"its own report says {verdict['family']}, {verdict['share']:.0%}. {COST}"
        )
        # Rates over 5 minutes need 5 minutes to reach their value, and the demo is shorter than that.
        chosen = {"owner": owner, "run": run, "node": node, "instance": agent, "window": "1m"}
        yield Scene(server.url, start, end, about, chosen)


@contextlib.contextmanager
def _simulated(folder: Path) -> Iterator[Scene]:
    """The fake node while its counters move. It has GPUs, InfiniBand, NFS and Lustre."""
    from fake_node.moving import moving
    from fake_node.whole import NODE, whole

    root = folder / "node"
    root.mkdir()
    with _server(folder) as server, machine(), whole(root) as fake, moving(fake), fake.agent() as agent:
        server.scrape({agent.address: {"cluster": CLUSTER}})
        start = time.time()
        server.wait_for(agent.address)
        time.sleep(SIMULATED_SECONDS)
        end = time.time()
        server.scrape({})
        about = "Here: a simulated node, no measurement."
        chosen = {"node": NODE, "window": "1m"}
        yield Scene(server.url, start, end, about, chosen, only=("node", "node-hardware", "health"), unfold=True)


@contextlib.contextmanager
def _real(name: str, folder: Path) -> Iterator[Scene]:
    """A training over two nodes while something is really slow."""
    with _server(folder) as server:
        with machine(), two_nodes(folder, server) as lab, lab.running(REAL[name]):
            start = time.time()
            time.sleep(REAL_SECONDS)
            end = time.time()
            rank = server.query(f'whyidle_rank_info{{run="{name}"}}', end)[0].labels
        about = f"Here: a training over two nodes (network namespaces, CPUs), really slow: {name}. {COST}"
        chosen = {"owner": rank["owner"], "run": name, "window": "5m"}
        yield Scene(server.url, start, end, about, chosen)


@contextlib.contextmanager
def _many(runs: int, folder: Path) -> Iterator[Scene]:
    """Simulated runs of 8 GPUs with different faults, one on each node."""
    fleet = Fleet(template(), runs, 1)
    batches = [*fleet.batches(range(runs))]
    with servers.Prometheus(folder, "prometheus", rules=True) as server:
        start = time.time()
        live(server, batches, start, lambda: time.time() >= start + REAL_SECONDS)
        end = time.time()
        about = f"Here: {runs} simulated runs, no measurement. {COST}"
        chosen = {"window": "5m"}
        only, every = ("overview", "fleet"), servers.SCRAPE_SECONDS
        yield Scene(server.url, start, end, about, chosen, only, scrape_seconds=every)

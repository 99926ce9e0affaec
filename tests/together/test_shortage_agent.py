"""Real ranks that share their CPUs with other processes: an agent exports what their ledgers say, and a real Prometheus
names the shortage in the words of the report."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_agent import agent
from support_forks import Forked, Forks
from support_ledgers import until
from support_prometheus import EVERY_SECOND, PROMETHEUS, prometheus, rules
from support_training import command, recorded, training

from whyidle.alerts.config import Config
from whyidle.alerts.recording.names import share
from whyidle.ledger.directory import read_directory
from whyidle.verdict.accounts import account

PINNED = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.execv(sys.argv[2], sys.argv[2:])"
COUNTERS = ("asked", "stolen", "queued")
WINDOW = "10s"
HURRIED = Config(
    windows=(WINDOW, "1m"),
    window=WINDOW,
    long_window="1m",
    **dict.fromkeys(("interval", "details_interval", "ranks_interval", "counters_interval"), EVERY_SECOND),
)


@contextlib.contextmanager
def busy(cpu: int) -> Iterator[None]:
    """Another process that always wants this CPU."""
    process = subprocess.Popen([sys.executable, "-c", PINNED, str(cpu), sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_the_agent_exports_the_cpu_time_that_a_real_rank_did_not_get(tmp_path: Path, forks: Forks) -> None:
    cpu = min(os.sched_getaffinity(0))

    def pin(ranks: list[Forked]) -> None:
        os.sched_setaffinity(ranks[0].pid, {cpu})

    with busy(cpu):
        outcome, codes = forks.run(("blocked.py", "computes"), tmp_path / "run", meanwhile=pin)
    assert codes == [0], outcome.stderr
    ledgers = tmp_path / "run" / "ledgers"
    [ledger], problems = read_directory(str(ledgers))
    assert not problems
    [rank] = account((ledger.owner, ledger.run), [ledger], 0).ranks
    said = {"asked": rank.cpu_asked, "stolen": rank.cpu_stolen, "queued": rank.cpu_queued}
    labels = {"owner": ledger.owner, "run": ledger.run, "rank": "0"}
    with agent(ledgers) as running:
        exported = {name: running.values(f"whyidle_rank_cpu_{name}_seconds_total", **labels) for name in COUNTERS}
    assert said["asked"] > 0
    assert said["queued"] > 0
    # What is 0 has no series.
    assert exported == {name: [pytest.approx(seconds)] if seconds else [] for name, seconds in said.items()}


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.skipif(not PROMETHEUS, reason="needs prometheus, of the Debian package of that name")
def test_prometheus_says_that_threads_wait_for_a_cpu(tmp_path: Path) -> None:
    job = recorded(command("starved.py", ranks=2))
    (tmp_path / "prometheus").mkdir()
    shipped = rules(tmp_path / "rules", HURRIED)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(prometheus(tmp_path / "prometheus", *shipped))
        running = stack.enter_context(agent(tmp_path / "run" / "ledgers"))
        server.scrape({running.address: {}})
        for cpu in os.sched_getaffinity(0):
            stack.enter_context(busy(cpu))
        stack.enter_context(training(job, tmp_path / "run", WHYIDLE_RUN="starved"))
        queues = f'{share("run_cause", WINDOW)}{{run="starved", cause="compute_queue"}} >= 0.2'
        assert until(lambda: server.query(queues))
        short = f'run:whyidle_cpu_shortage:rate{WINDOW}{{run="starved", shortage="queued"}}'
        assert until(lambda: server.query(short))[0].value >= HURRIED.queued_share

"""A loader that no hook sees keeps a device idle: the agent sees it, and then the report does not say compute.

The training on the simulated device is real, and the agent too. NVML is simulated, and is told how busy that device is.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import accelerators
import pytest
from accelerators.load import BUSY_SHARE
from fake_node.kernel import COMPILER
from fake_node.nvml import Node
from simdevice import build
from support_agent import WHYIDLE, Agent
from support_ledgers import DEADLINE_SECONDS, until

from whyidle.ledger.directory import read_directory
from whyidle.verdict.gaps import enough

pytestmark = [
    pytest.mark.skipif(build.lacks() is not None, reason=f"no simulated device: {build.lacks()}"),
    pytest.mark.skipif(not COMPILER, reason="needs a C compiler for the fake NVML"),
]

JOB = Path(accelerators.__file__).with_name("loader.py")
SEEN_SECONDS = 30.0
"""The job ends when the agent has seen this many seconds of its compute. It does not count the last 15 of them."""
IDLE_SECONDS = 5.0
"""Less than the idle seconds that it must have counted by then: 13.8, or fewer after a late sample."""
SAMPLING = 0.1
"""Three standard errors of what 100 looks find."""


@contextlib.contextmanager
def agent(node: Node, ledgers: Path) -> Iterator[Agent]:
    words = [f"{name}={value}" for name, value in node.environment().items()]
    flags = [f"--ledger.dir={ledgers}", "--web.listen-address=127.0.0.1:0"]
    with contextlib.closing(Agent(["env", *words, *WHYIDLE, "agent", *flags])) as running:
        yield running


class Watch:
    """Requests the agent's page, so that the agent takes samples, until it has seen enough of the job."""

    def __init__(self, agent: Agent, job: subprocess.Popen[bytes]):
        self.agent, self.job, self.first = agent, job, 0.0

    def __call__(self) -> bool:
        assert self.job.poll() is None, "the job ended by itself"
        time.sleep(0.5)
        [*_, compute] = [0.0, *self.agent.values("whyidle_device_seconds_total", rank="0", cause="compute")]
        self.first = self.first or compute
        return compute > self.first + SEEN_SECONDS


@pytest.mark.long
def test_time_in_a_blocking_custom_loader_is_not_compute(tmp_path: Path) -> None:
    node = Node(tmp_path, 1, mig=None, real_time=True)
    node.gpu(0, util=round(100 * BUSY_SHARE))
    environment = {**os.environ, "SIMDEVICE_UUID": node.values["gpu0.uuid"]}
    ledgers = tmp_path / "ledgers"
    with agent(node, ledgers) as running:
        with subprocess.Popen([sys.executable, str(JOB), str(tmp_path)], env=environment) as job:
            try:
                until(Watch(running, job), seconds=10 * SEEN_SECONDS)
                (tmp_path / "enough").touch()
                job.wait(DEADLINE_SECONDS)
            finally:
                job.kill()
        words = ["report", "--json", f"--dir={ledgers}", f"--agent={running.address}"]
        done = subprocess.run([*WHYIDLE, *words], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert (job.returncode, done.returncode) == (0, 0), done.stderr
    [ledger] = read_directory(str(ledgers))[0]
    trained = float((tmp_path / "seconds").read_text())
    assert ledger.cause_ns["compute"] / 1e9 > 0.9 * trained, "nothing that a hook sees is between the steps"
    report = json.loads(done.stdout)
    [rank] = report["per_rank"]
    # Looks tell what the loop did while its device had no work, if there are enough of them. Counters only tell that.
    family = "storage" if enough(ledger.looks, rank["wall_seconds"]) else "host"
    assert report["verdict"]["family"] == family, report["verdict"]
    idle = rank["gap_seconds"] + rank["seconds"]["data_read"] + rank["seconds"]["data_cpu"]
    assert IDLE_SECONDS < idle <= (1 - BUSY_SHARE + SAMPLING) * trained

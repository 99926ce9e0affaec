"""A loader that no hook sees keeps a device idle: the agent sees it, and the report beside it does not say compute.

The training is real, on the simulated device; so is the agent. NVML is the fake one, told how busy that device is.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from accelerators.load import BUSY_SHARE
from fake_node.kernel import COMPILER
from fake_node.nvml import Node
from simdevice import build
from support_agent import WHYIDLE, Agent
from support_ledgers import DEADLINE_SECONDS

from whyidle.ledger.directory import read_directory

pytestmark = [
    pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler: apt-get install g++"),
    pytest.mark.skipif(not COMPILER, reason="needs a C compiler for the fake NVML"),
]

JOB = Path(__file__).parent / "accelerators" / "loader.py"
TRAINED_SECONDS = 40


@contextlib.contextmanager
def agent(node: Node, ledgers: Path) -> Iterator[Agent]:
    words = [f"{name}={value}" for name, value in node.environment().items()]
    flags = [f"--ledger.dir={ledgers}", "--web.listen-address=127.0.0.1:0"]
    with contextlib.closing(Agent(["env", *words, *WHYIDLE, "agent", *flags])) as running:
        yield running


def test_a_loader_that_is_written_by_hand_and_blocks_is_not_compute(tmp_path: Path) -> None:
    ledgers = tmp_path / "ledgers"
    node = Node(tmp_path, 1, mig=None, real_time=True)
    node.gpu(0, util=round(100 * BUSY_SHARE))
    environment = {**os.environ, "SIMDEVICE_UUID": node.values["gpu0.uuid"]}
    command = [sys.executable, str(JOB), str(ledgers), str(TRAINED_SECONDS)]
    with agent(node, ledgers) as running, subprocess.Popen(command, env=environment) as job:
        try:
            job.wait(DEADLINE_SECONDS + TRAINED_SECONDS)
            words = ["report", "--json", f"--dir={ledgers}", f"--agent={running.address}"]
            done = subprocess.run([*WHYIDLE, *words], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
        finally:
            job.kill()
    assert (job.returncode, done.returncode) == (0, 0), done.stderr
    [ledger] = read_directory(str(ledgers))[0]
    assert ledger.cause_ns["compute"] / 1e9 > 0.9 * TRAINED_SECONDS, "nothing that a hook sees is between the steps"
    report = json.loads(done.stdout)
    assert report["verdict"]["family"] == "host", report["verdict"]
    idle = (1 - BUSY_SHARE) * TRAINED_SECONDS
    # Of its last seconds nothing is known, in steps of the agent's own looks, which are 10 s apart if nobody asks.
    assert 0.3 * idle < report["per_rank"][0]["gap_seconds"] <= 1.02 * idle

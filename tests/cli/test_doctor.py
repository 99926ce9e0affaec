"""`whyidle doctor` as a user sees it: a real process on this machine, and what it says about collectors that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support_ledgers import DEADLINE_SECONDS, Spec, children

from whyidle.agent.collector import COLLECTORS, Collector
from whyidle.agent.examination import Finding, examine
from whyidle.agent.metrics.ranks import METRICS
from whyidle.agent.reading import Absent, Reading
from whyidle.cli.doctor import render_text

DOCTOR = [sys.executable, "-m", "whyidle.cli.main", "doctor"]
A_METRIC = next(metric for metric in METRICS if metric.labels == ("owner", "run", "rank"))


def doctor(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DOCTOR, *flags], capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def test_lists_every_collector_with_what_it_reads(tmp_path: Path) -> None:
    with children(tmp_path, Spec(hooks={"exchange": "failed"})):
        done = doctor(f"--ledger.dir={tmp_path}", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    found = {finding["name"]: finding for finding in report["collectors"]}
    assert list(found) == [entry.name for entry in COLLECTORS]
    assert found["ranks"]["state"] == "up"
    assert found["ranks"]["devices"] == ["lab/r1/0"]
    assert report["ledgers"]["live_ranks"] == 1
    assert report["ledgers"]["failed_hooks"] == ["exchange"]
    assert {finding["state"] for finding in found.values()} <= {"up", "absent"}


def test_prints_plain_text_and_what_to_do(tmp_path: Path) -> None:
    done = doctor(f"--ledger.dir={tmp_path / 'none'}", "--no-collector.nic")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "  ranks" in done.stdout
    assert "  nic " not in done.stdout
    assert "does not exist: no rank has written a ledger on this node" in done.stdout
    assert "ledgers: start the training with `whyidle run -- ...`" in done.stdout


def test_rejects_a_bad_root_with_a_sentence(tmp_path: Path) -> None:
    done = doctor(f"--path.sysfs={tmp_path / 'none'}")
    assert done.returncode == 2
    assert done.stderr.strip().endswith("is not a directory")


AS_NOBODY = """
import contextlib, io, os, sys
from whyidle.cli.main import main
# Once as root, so that all of it is imported: the interpreter may lie where nobody else may look.
with contextlib.redirect_stdout(io.StringIO()):
    main(["doctor", *sys.argv[1:]])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(main(["doctor", *sys.argv[1:]]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_runs_as_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AS_NOBODY, "--ledger.dir=/nowhere", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["uid"] == 65534
    assert {finding["state"] for finding in report["collectors"]} <= {"up", "absent"}


class Working:
    def collect(self, reading: Reading) -> None:
        reading.add(A_METRIC, ("lab", "r1", "0"), 1)
        reading.error("mlx5_0", "port_rcv_data", "denied")
        reading.blind("open files of ranks", "they belong to another user", "run the agent as root")


class Hanging:
    def __init__(self) -> None:
        self.release = threading.Event()

    def collect(self, reading: Reading) -> None:
        self.release.wait(DEADLINE_SECONDS)


class Broken:
    def collect(self, reading: Reading) -> None:
        raise ValueError("of ours")


class Nothing:
    def collect(self, reading: Reading) -> None:
        raise Absent("no /sys/class/infiniband")


def test_names_each_failure_with_its_remedy() -> None:
    hanging = Hanging()
    collectors: dict[str, Collector] = {"ranks": Working(), "nfs": hanging, "disk": Broken(), "rdma": Nothing()}
    findings = {finding.name: finding for finding in examine(collectors, 2.0)}
    hanging.release.set()
    assert {name: finding.state for name, finding in findings.items()} == {
        "ranks": "up",
        "nfs": "deadline",
        "disk": "fault",
        "rdma": "absent",
    }
    text = render_text(_report(list(findings.values())), colour=False)
    assert "  ranks      ok      1 series, 1 values that could not be read: lab/r1/0" in text
    assert "  nfs        hangs   no answer in 2.0 s" in text
    assert "  disk       failed  ValueError: of ours" in text
    assert "  rdma       absent  no /sys/class/infiniband" in text
    assert "ranks: mlx5_0: cannot read port_rcv_data (denied): run the agent as root" in text
    assert "ranks: cannot see open files of ranks, because they belong to another user: run the agent as root" in text
    assert "rdma: if the node has such adapters" in text
    assert "\x1b[31mhangs" in render_text(_report(list(findings.values())), colour=True)


def _report(findings: list[Finding]) -> dict[str, object]:
    from whyidle.cli.doctor import plain

    ledgers = {
        "problem": None,
        "live_ranks": 0,
        "ended_ranks": 0,
        "directory": "/d",
        "unusable": {},
        "failed_hooks": [],
    }
    return {
        "node": "n1",
        "uid": 0,
        "ledgers": ledgers,
        "placement": [],
        "collectors": [plain(finding) for finding in findings],
    }

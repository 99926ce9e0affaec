"""Ranks, data workers and neighbours that the kernel kills because their control group is at its limit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support_agent import agent
from support_training import LIMIT_SECONDS, command, environment, ledgers_of, recorded, training, until

LIMIT = 900 << 20
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
_JOIN = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'


@pytest.fixture
def group() -> Iterator[Path]:
    v1 = (V1 / "memory.limit_in_bytes").exists()
    folder = (V1 if v1 else V2) / f"whyidle-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("needs the right to make a control group")
    try:
        (folder / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(LIMIT))
    except OSError:
        folder.rmdir()
        pytest.skip("the control groups here do not limit memory")
    yield folder
    until(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def job(group: Path, how: str) -> list[str]:
    return ["sh", "-c", _JOIN, "sh", str(group), *recorded(command("memory.py", how))]


def run(group: Path, folder: Path, how: str) -> int:
    with training(job(group, how), folder) as process:
        return process.wait(LIMIT_SECONDS)


def report(folder: Path) -> dict[str, Any]:
    words = [sys.executable, "-m", "whyidle.cli.main", "report", "--json", "--least-steps", "5", "--least-seconds", "1"]
    done = subprocess.run(words, env=environment(folder), capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


def killed_by() -> str:
    """What can be known here."""
    return "log" if os.access("/dev/kmsg", os.R_OK) and os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC else "count"


SAID = {
    "log": r"rank 0 was killed by the kernel: its control group reached its limit of 900 MiB",
    "count": r"rank 0 was killed when the kernel killed processes of its control group: its control group reached its"
    r" limit of 900 MiB",
}


@pytest.mark.parametrize(
    ("how", "grew"),
    [
        ("leak", r"rank 0: its memory grew from \d+ MiB to \d+ MiB in \d+ s, step by step: .*"),
        pytest.param(
            "jump",
            r"rank 0: it used \d+ MiB at its last look, so the rest came within .* s: .*",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_killed_rank(how: str, grew: str, group: Path, tmp_path: Path) -> None:
    assert run(group, tmp_path, how) == -9
    got = report(tmp_path)
    assert got["state"] == "killed"
    assert re.fullmatch(SAID[killed_by()], got["problems"][0])
    if killed_by() == "log":  # the count does not say what the limit was
        assert re.fullmatch(grew, got["problems"][1])
    assert got["per_rank"][0]["out_of_memory"] == killed_by()
    assert not [one["id"] for one in got["advice"] if one["id"].startswith("data.") or one["id"] == "host.blocked"]


def test_a_killed_data_worker(group: Path, tmp_path: Path) -> None:
    assert run(group, tmp_path, "worker") == 1
    said, worker, *grew = report(tmp_path)["problems"]
    assert re.fullmatch(r"rank 0 ended with an error: RuntimeError at memory.py:\d+ <module>", said)
    assert re.fullmatch(
        r"data worker \d+ of rank 0 was killed by the kernel: its control group reached its limit of 900 MiB", worker
    )
    assert all(each.startswith("rank 0, with its data workers: ") for each in grew)
    assert len(grew) <= 1


@pytest.mark.long
def test_a_killed_neighbour(group: Path, tmp_path: Path) -> None:
    assert run(group, tmp_path, "neighbour") == 0
    [said] = report(tmp_path)["problems"]
    who = r"python\S* \(pid \d+\)" if killed_by() == "log" else "a process"
    assert re.fullmatch(
        rf"the kernel killed {who} in the control group of rank 0: its control group reached its limit of 900 MiB", said
    )


@pytest.mark.long
def test_the_agent_says_it_and_a_report_knows_it_when_the_group_is_gone(group: Path, tmp_path: Path) -> None:
    with training(job(group, "leak"), tmp_path) as process, agent(tmp_path / "ledgers") as running:
        assert until(lambda: 0 in ledgers_of(tmp_path) and ledgers_of(tmp_path)[0].memory_at_ns)
        assert running.value("whyidle_rank_memory_limit_bytes", of="group") == LIMIT
        assert not running.values("whyidle_rank_out_of_memory")
        assert process.wait(LIMIT_SECONDS) == -9
        assert running.value("whyidle_rank_out_of_memory", evidence=killed_by()) == 1
        assert running.value("whyidle_rank_killed") == 1
    assert re.fullmatch(SAID[killed_by()], report(tmp_path)["problems"][0])
    [ledger] = ledgers_of(tmp_path).values()
    assert ledger.oom is not None

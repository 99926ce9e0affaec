"""How trainings on torch's CUDA build end: in a hang, by a killed rank, by a timeout of NCCL, with work in flight."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cudastandin.cases import Case
from cudastandin.lab import ROOT, python, started
from cudastandin.plan import LATE, Plan
from support_forks import Forks
from support_sites import clean_env, report
from support_training import until

from whyidle.ledger.directory import read_directory
from whyidle.ledger.reader import Ledger

pytestmark = pytest.mark.alone

HANGS = Case("hangs", Plan("ddp", "hangs"), 2)
SOON = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "100"}
"""The watchdog ends its process at once, without a minute for the flight recorder."""
GPU_SECTIONS = "idle,exposed,late,queue,fork,captures,drift,agent"
"""Sections of benchmarks/gpu.py that pass. The others need Triton, Kineto or NVML, or measure how fast the host is."""
OTHER = 1 - LATE
FURTHER = {
    "loops": ("CUDA graph behind a slow loader", "torch.save in the loop"),
    "reasons": ("empties the cache",),
    "ends": ("out of memory", "killed"),
}
"""Further sections, and a few of their cases that the stand-in can run."""


def ledgers(folder: Path) -> dict[int, Ledger]:
    found, problems = read_directory(str(folder / "ledgers"))
    assert not problems
    return {ledger.rank: ledger for ledger in found}


def assert_causes_sum_to_the_wall(folder: Path) -> None:
    for ledger in ledgers(folder).values():
        assert sum(ledger.cause_ns.values()) + ledger.pending_ns == ledger.until_ns - ledger.start_ns


def test_names_the_rank_that_a_hang_waits_for(cuda_forks: Forks, tmp_path: Path) -> None:
    with started(cuda_forks, HANGS, tmp_path):
        assert until(lambda: (tmp_path / "hangs").exists(), 60)
        assert until(lambda: report(tmp_path / "ledgers")["hangs"], 30)
        (hang,) = report(tmp_path / "ledgers")["hangs"]
    assert (hang["rank"], hang["waiting"]) == (LATE, [OTHER])


def test_the_watchdog_of_nccl_still_ends_a_rank(cuda_forks: Forks, tmp_path: Path) -> None:
    case = replace(HANGS, env={**SOON, "STANDIN_TIMEOUT_S": "4"})
    with started(cuda_forks, case, tmp_path) as processes:
        assert processes[OTHER].wait(60) == -signal.SIGABRT
        processes[LATE].kill()
    assert "Watchdog caught collective operation timeout" in (tmp_path / "stderr").read_text()
    assert_causes_sum_to_the_wall(tmp_path)


def test_an_asynchronous_error_of_nccl_still_ends_a_rank(cuda_forks: Forks, tmp_path: Path) -> None:
    case = replace(HANGS, env={**SOON, "STANDIN_NCCL_SEES_DEATHS": "1"})
    with started(cuda_forks, case, tmp_path) as processes:
        assert until(lambda: (tmp_path / "hangs").exists(), 60)
        # A thread writes the ledger twice a second, or less often on busy cores.
        assert until(lambda: ledgers(tmp_path)[LATE].steps > HANGS.plan.steps // 2, 60)
        processes[LATE].send_signal(signal.SIGKILL)
        assert processes[OTHER].wait(60) == -signal.SIGABRT
    assert "NCCL error" in (tmp_path / "stderr").read_text()
    assert_causes_sum_to_the_wall(tmp_path)
    assert HANGS.plan.steps // 2 < ledgers(tmp_path)[LATE].steps < HANGS.plan.steps


def test_a_rank_ends_although_its_device_has_work_for_seconds(cuda_forks: Forks, tmp_path: Path) -> None:
    case = Case("in-flight", Plan("single", "ends_with_work_in_flight"), 1)
    with started(cuda_forks, case, tmp_path) as processes:
        assert processes[0].wait(60) == 0, (tmp_path / "stderr").read_text()
    assert_causes_sum_to_the_wall(tmp_path)
    (ledger,) = ledgers(tmp_path).values()
    assert (ledger.steps, ledger.faults) == (case.plan.steps, 0)


def gpu_check(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], dict[str, list[dict[str, Any]]]]:
    """Runs benchmarks/gpu.py -> the process, and the rows of each section."""
    out, check = folder / "out.json", ROOT / "benchmarks" / "gpu.py"
    command = [str(python()), str(check), "--quick", *words, "--out", str(out)]
    env = clean_env(PYTHONPATH=str(ROOT / ".venv" / "typing"))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    sections = json.loads(out.read_text())["sections"]
    assert [section["failed"] for section in sections.values()] == [None] * len(sections), done.stderr[-3000:]
    return done, {name: section["rows"] for name, section in sections.items()}


def test_the_check_on_a_gpu_passes(tmp_path: Path) -> None:
    done, found = gpu_check(tmp_path, "--minutes", "0.1", "--only", GPU_SECTIONS)
    assert done.returncode == 0, done.stdout
    assert [name for name, rows in found.items() if rows] == GPU_SECTIONS.split(",")


@pytest.mark.long
def test_the_check_on_a_gpu_runs_its_further_sections(tmp_path: Path) -> None:
    """Shares and verdicts are not compared: they depend on how fast a GPU is, and Kineto sees nothing here."""
    words = [word for names in FURTHER.values() for name in names for word in ("--case", name)]
    done, found = gpu_check(tmp_path, "--only", ",".join(FURTHER), *words)
    for section, names in FURTHER.items():
        rows = found[section]
        assert {row["what"].partition(":")[0] for row in rows} == {*names}, done.stderr[-3000:]
        decided = [row for row in rows if row["routine"] or section == "ends"]
        assert decided, rows
        assert [row for row in decided if not row["ok"]] == [], done.stderr[-3000:]
        # A row that has the name of its case alone says that the case failed or was skipped.
        assert section == "ends" or not [row for row in rows if row["what"] in names], rows

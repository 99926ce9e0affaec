"""Trainings in one process that sees two devices: which of them they use, against the log of the stand-in."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from cudastandin.lab import SHARED_MEMORY
from cudastandin.truth import read_log
from support_forks import Forks
from support_sites import report

pytestmark = pytest.mark.alone

SCRIPT = Path(__file__).parents[1] / "support" / "cudastandin" / "devices.py"


def trained(forks: Forks, folder: Path, loop: str, seconds: float, **env: str) -> dict[str, Any]:
    """The report on a training."""
    (folder / "log").mkdir()
    with tempfile.TemporaryDirectory(prefix="standin-", dir=SHARED_MEMORY) as shared:
        given = {"STANDIN_LOG": str(folder / "log"), "STANDIN_SHARED": shared, "STANDIN_DEVICES": "2", **env}
        process = forks.start((str(SCRIPT), loop, str(folder), str(seconds)), folder, given)
        assert process.wait(100) == 0, (folder / "stderr").read_text()
    return report(folder / "ledgers")


def device_works(folder: Path) -> bool:
    """Whether some device has run anything, by the log."""
    return any(read_log(path).ops for path in (folder / "log").iterdir())


def test_a_training_on_the_cpu_is_told_that_two_gpus_are_visible(cuda_forks: Forks, tmp_path: Path) -> None:
    said = trained(cuda_forks, tmp_path, "on_the_cpu", 4.0)
    assert (said["verdict"]["family"], said["verdict"]["share"]) == ("unused", 1.0)
    assert said["verdict"]["summary"] == "2 GPUs are visible, and the model is on the CPU"
    assert not device_works(tmp_path)  # whyidle has not touched one, either


def test_a_training_on_the_cpu_beside_a_context_is_told_the_same(cuda_forks: Forks, tmp_path: Path) -> None:
    said = trained(cuda_forks, tmp_path, "asks_for_names", 4.0)
    assert said["verdict"]["summary"] == "2 GPUs are visible, and the model is on the CPU"


def test_a_program_that_chooses_the_cpu_hears_nothing(cuda_forks: Forks, tmp_path: Path) -> None:
    said = trained(cuda_forks, tmp_path, "on_the_cpu_by_choice", 4.0)
    assert said["verdict"]["family"] == "compute"
    assert said["per_rank"][0]["unused"] is None


def test_a_training_without_visible_devices_hears_nothing(cuda_forks: Forks, tmp_path: Path) -> None:
    said = trained(cuda_forks, tmp_path, "on_the_cpu", 4.0, STANDIN_DEVICES="0")
    assert said["verdict"]["family"] == "compute"
    assert said["per_rank"][0]["unused"] is None

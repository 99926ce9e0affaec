"""GPUs that ranks see and do not use, and ranks that share one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, children, ended

from whyidle.cli.main import main
from whyidle.cli.report import render_text
from whyidle.ledger.directory import read_directory
from whyidle.ledger.gpus import UNUSED
from whyidle.verdict.report import build_report

STEP = {"compute": 0.1}


def on(index: int, visible: int, rank: int = 0, *, uuid: str = "", **more: Any) -> Spec:
    words = {"device_index": index, "gpus_visible": visible, "devices_used": 1 << index} | more.pop("words", {})
    return Spec(
        rank=rank, steps=100, step=STEP, device=f"cuda:{index}", uuid=uuid or f"GPU-{index}", words=words, **more
    )


def gpus(folder: Path) -> list[dict[str, Any]]:
    found = build_report(("lab", "r1"), read_directory(str(folder), steps=True)[0], time.monotonic_ns())["gpus"]
    assert isinstance(found, list)
    return found


def of(folder: Path, *specs: Spec) -> list[str]:
    ended(folder, *specs)
    return [one["sentence"] for one in gpus(folder)]


def test_one_of_eight_gpus_is_used(tmp_path: Path) -> None:
    said = "uses 1 of 8 visible GPUs on n1: `torchrun --nproc-per-node=8` starts a rank for each"
    assert of(tmp_path, on(0, 8)) == [said]
    ledgers = read_directory(str(tmp_path), steps=True)[0]
    assert f"gpus     {said}\n" in render_text(build_report(("lab", "r1"), ledgers, time.monotonic_ns()), colour=False)


def test_a_rank_that_trains_on_the_cpu_does_not_use_the_gpu_that_it_has_asked_for_its_name(tmp_path: Path) -> None:
    on_the_cpu = {"gpu_unused": UNUSED.index("model")}
    assert not of(tmp_path, on(0, 2, words=on_the_cpu))


def test_in_slurm_srun_starts_the_ranks(tmp_path: Path) -> None:
    [said] = of(tmp_path, on(0, 8, strings={"launcher": "slurm"}))
    assert said.endswith(
        ": `srun --ntasks-per-node=8`, or `torchrun --nproc-per-node=8` in one task, starts a rank for each"
    )


def test_the_bill_has_the_gpus_without_a_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten seconds on one of two."""
    ended(tmp_path, on(0, 2))
    assert main(["goodput", "--dir", str(tmp_path), "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["problems"]
    assert said.startswith("0.00278 GPU-hours beside these had no rank. The run uses 1 of 2 visible GPUs on n1: ")


def test_ranks_that_use_all_hear_nothing(tmp_path: Path) -> None:
    assert not of(tmp_path, on(0, 2), on(1, 2, rank=1))


def test_ranks_that_see_one_gpu_each_hear_nothing(tmp_path: Path) -> None:
    assert not of(tmp_path, on(0, 1, uuid="GPU-a"), on(0, 1, rank=1, uuid="GPU-b"))


def test_a_process_that_uses_several_devices_uses_them(tmp_path: Path) -> None:
    assert not of(tmp_path, on(0, 2, words={"devices_used": 3}))


def test_two_ranks_that_share_a_gpu_beside_a_free_one_are_named(tmp_path: Path) -> None:
    (said,) = of(tmp_path, on(0, 2), on(0, 2, rank=1))
    assert said.startswith("uses 1 of 2 visible GPUs on n1, and ranks 0 and 1 share one")
    assert "LOCAL_RANK" in said


def test_two_ranks_that_share_the_only_gpu_that_they_see_are_named(tmp_path: Path) -> None:
    said = (
        "ranks 0 and 1 share one GPU on n1, and see no other one: does the launcher give each rank its own "
        "(`CUDA_VISIBLE_DEVICES`, `--gpus-per-task`)?"
    )
    assert of(tmp_path, on(0, 1), on(0, 1, rank=1)) == [said]


def test_gpus_of_live_ranks_of_another_run_are_not_spare(tmp_path: Path) -> None:
    ended(tmp_path, on(0, 2))
    assert gpus(tmp_path)
    with children(tmp_path, on(1, 2, run="r2")):
        assert not gpus(tmp_path)

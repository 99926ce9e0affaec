"""Ranks that leave their GPUs alone: the verdict on their run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, children, ended

from whyidle.advisor.advice.case import case_of
from whyidle.advisor.advice.table import advise
from whyidle.agent.collector import Options
from whyidle.agent.collectors import ranks
from whyidle.agent.files import Roots
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.reading import Reading
from whyidle.cli.report import render_text
from whyidle.ledger.directory import Run, read_directory
from whyidle.ledger.gpus import UNUSED
from whyidle.ledger.reader import Ledger
from whyidle.verdict import spare
from whyidle.verdict.report import build_report

READS = {"compute": 0.02, "data_read": 0.08}
RUN = ("lab", "r1")


def ledgers(tmp_path: Path, *whys: str, steps: int = 100, error: str = "") -> list[Ledger]:
    """Those of ranks that wait for their data, each with a reason why it uses no GPU."""
    specs = [
        Spec(rank=rank, world_size=len(whys), steps=steps, step=READS, strings={"gpu_error": error},
             words={"gpu_unused": UNUSED.index(why), "gpus_visible": 2 if why else 0})
        for rank, why in enumerate(whys)
    ]  # fmt: skip
    ended(tmp_path, *specs)
    return read_directory(str(tmp_path), steps=True)[0]


def verdict(found: list[Ledger]) -> dict[str, Any]:
    said = build_report(RUN, found, time.monotonic_ns())["verdict"]
    assert isinstance(said, dict)
    return said


@pytest.mark.parametrize(
    ("why", "sentence"),
    [
        ("model", "2 GPUs are visible, and the model is on the CPU"),
        ("build", "the node has 2 GPUs, and this torch is built without CUDA and ROCm"),
        ("hidden", "the job's environment hides 2 GPUs: CUDA_VISIBLE_DEVICES shows none"),
        ("driver", "the node has 2 GPUs, and the driver refuses them: too old"),
        ("absent", "the scheduler gave the job 2 GPUs, and the process sees none"),
    ],
)
def test_unused_gpus_come_before_every_family(tmp_path: Path, why: str, sentence: str) -> None:
    said = verdict(ledgers(tmp_path, why, error="too old"))
    assert (said["family"], said["share"], said["summary"]) == ("unused", 1.0, sentence)
    assert len(said["evidence"]) == 1  # the next step


def test_a_run_that_is_too_short_to_judge_is_told_too(tmp_path: Path) -> None:
    assert verdict(ledgers(tmp_path, "model", steps=2))["family"] == "unused"


def test_names_the_ranks_if_others_use_their_gpus(tmp_path: Path) -> None:
    said = verdict(ledgers(tmp_path, "", "", "", "driver", error="no device"))
    assert said["share"] == pytest.approx(0.25)
    assert said["summary"] == "rank 3: the node has 2 GPUs, and the driver refuses them: no device"


@pytest.mark.parametrize(("on_gpus", "said"), [(2, "storage"), (1, "unused")])
def test_a_rank_on_the_cpu_leaves_no_gpu_idle_if_others_use_all(tmp_path: Path, on_gpus: int, said: str) -> None:
    words = {"gpus_visible": 2}
    found = [
        Spec(rank=rank, world_size=3, steps=100, step=READS, device=f"cuda:{rank}", uuid=f"GPU-{rank}",
             words=words | {"device_index": rank, "devices_used": 1 << rank})
        for rank in range(on_gpus)
    ]  # fmt: skip
    on_the_cpu = Spec(rank=2, world_size=3, steps=100, step=READS, words=words | {"gpu_unused": UNUSED.index("model")})
    ended(tmp_path, *found, on_the_cpu)
    assert verdict(read_directory(str(tmp_path), steps=True)[0])["family"] == said


@pytest.mark.parametrize("on_gpus", [0, 2])
def test_the_agent_finds_once_per_run_which_nodes_are_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_gpus: int
) -> None:
    asked: list[Run] = []

    def full_nodes(run: Run, newest: Iterable[Ledger]) -> set[str]:
        asked.append(run)
        return spare.full_nodes(run, newest)

    monkeypatch.setattr(ranks, "full_nodes", full_nodes)
    words = {"gpus_visible": 2, "gpu_unused": UNUSED.index("model")}
    specs = [Spec(rank=rank, words={"gpus_visible": 2, "device_index": rank}) for rank in range(on_gpus)]
    specs += [Spec(rank=rank, words=words) for rank in range(on_gpus, 4)]
    with children(tmp_path, *specs):
        reading = Reading()
        ranks.create(Options(LedgerStore(str(tmp_path), 60.0), Roots())).collect(reading)
    assert asked == [RUN]
    [unused] = [found for metric, found in reading.samples.items() if metric.name == "whyidle_rank_unused_gpus"]
    assert len(unused) == (0 if on_gpus else 4)


def test_the_text_does_not_show_the_time_of_the_cpu_as_that_of_gpus(tmp_path: Path) -> None:
    text = render_text(build_report(RUN, ledgers(tmp_path, "model"), time.monotonic_ns()), colour=True)
    assert "unused 100 %" in text
    assert "storage 80 %" not in text


def test_no_advice_for_the_loop_of_the_cpu(tmp_path: Path) -> None:
    assert advise(case_of(RUN, ledgers(tmp_path, ""), time.monotonic_ns()))
    for path in tmp_path.iterdir():
        path.unlink()
    assert not advise(case_of(RUN, ledgers(tmp_path, "model"), time.monotonic_ns()))

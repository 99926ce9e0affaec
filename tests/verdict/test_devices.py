"""Ranks that drive several devices: whether these take turns, and where the time of the idle ones goes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, ended

from whyidle.ledger.directory import read_directory
from whyidle.verdict.devices import idle_share, idle_together, take_turns
from whyidle.verdict.report import build_report

LOOKS = 50


def rank(*busy: float, number: int = 0, home: int = 0, **words: int) -> Spec:
    """A rank that computes all the time, with these busy shares of its devices."""
    shares = {f"device_busy+{index}": round(1000 * LOOKS * share) for index, share in enumerate(busy)}
    used = {
        "devices_used": (1 << len(busy)) - 1,
        "device_looks": LOOKS,
        "device_index": home,
        "gpus_visible": len(busy),
    }
    return Spec(rank=number, world_size=1 + number, device=f"cuda:{home}", steps=100, step={"compute": 0.1},
                words=used | shares | words)  # fmt: skip


def of(folder: Path, *specs: Spec) -> dict[str, Any]:
    ended(folder, *specs)
    return build_report(("lab", "r1"), read_directory(str(folder), steps=True)[0], time.monotonic_ns())


def test_layers_on_two_devices_take_turns(tmp_path: Path) -> None:
    said = of(tmp_path, rank(0.48, 0.51))
    verdict = said["verdict"]
    assert (verdict["family"], verdict["share"]) == ("pipeline", pytest.approx(0.505, abs=0.01))
    turns = "cuda:0 and cuda:1 take turns, 48 and 51 % busy"
    assert verdict["summary"] == f"{turns}: the layers of one model are spread over them"
    assert sum(said["seconds"].values()) == pytest.approx(10.0, rel=0.01)


def test_the_stream_of_one_device_is_empty_while_the_other_works_for_it(tmp_path: Path) -> None:
    said = of(tmp_path, rank(0.48, 0.51, looks=200, empty_looks=100))
    assert said["verdict"]["family"] == "pipeline"
    assert said["seconds"]["host"] <= 0.02 * said["rank_seconds"]


def test_devices_that_work_at_the_same_time_are_compute(tmp_path: Path) -> None:
    assert of(tmp_path, rank(0.97, 0.96))["verdict"]["family"] == "compute"


def test_a_device_that_only_holds_tensors_does_not_count(tmp_path: Path) -> None:
    said = of(tmp_path, rank(0.97, 0.0))
    assert (said["verdict"]["family"], said["per_rank"][0]["devices_busy"]) == ("compute", {})


def test_the_device_of_another_rank_does_not_count(tmp_path: Path) -> None:
    """Each rank has a tensor on cuda:0, and cuda:0 is less busy than cuda:1."""
    said = of(tmp_path, rank(0.3, 0.95, number=0, home=0), rank(0.3, 0.95, number=1, home=1))
    assert [one["devices_busy"] for one in said["per_rank"]] == [{}, {}]


def test_what_two_shares_say() -> None:
    assert take_turns({0: 0.48, 1: 0.51})
    assert not take_turns({0: 0.7, 1: 0.6})
    assert idle_share({0: 0.5, 1: 0.3}) == pytest.approx(0.6)
    assert idle_together({0: 0.5, 1: 0.3}) == pytest.approx(0.2)
    assert idle_together({0: 0.9, 1: 0.6}) == pytest.approx(0.1)

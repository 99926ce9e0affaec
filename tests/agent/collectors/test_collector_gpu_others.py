"""Processes that share a rank's GPU, with the real nvidia-ml-py and a simulated library that follows a script."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_node import processes as fake_processes
from support_gpu import Answer, Bench, looking
from support_ledgers import children

# A process loads the library once, and pynvml keeps it in globals.
pytestmark = pytest.mark.xdist_group("nvml")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "ledgers").mkdir()
    yield from looking(tmp_path)


def shares_gpu(bench: Bench, *, rank: int, other: int) -> None:
    """A process and a rank use GPU 0, and both are in this procfs."""
    bench.node.gpu(0, processes=f"{rank}:1073741824 {other}:1073741824")
    for pid in (rank, other):
        Path(bench.roots.procfs, str(pid)).mkdir(parents=True, exist_ok=True)


OTHER_BUSY = "whyidle_gpu_other_busy_seconds_total"


def others(answer: Answer) -> dict[tuple[str, ...], float]:
    return {labels[2:]: round(value, 3) for (name, labels), value in answer.series.items() if name == OTHER_BUSY}


def test_names_other_processes_on_the_gpu_of_a_rank(bench: Bench) -> None:
    fake_processes.build(replace(bench.roots, rootfs=str(bench.directory / "root")))
    rank, stranger = fake_processes.RANKS[0], 990
    uuid = bench.node.values["gpu0.uuid"]
    with children(bench.directory / "ledgers", replace(fake_processes.specs()[0], uuid=uuid)):
        shares_gpu(bench, rank=rank, other=stranger)
        bench.node.level(0, "util", 60)
        assert others(bench.look()) == {}
        assert others(bench.look(10.0)) == {(str(stranger), str(os.getuid())): 3.0}  # half of 60 % for 10 s
        assert others(bench.look(10.0)) == {(str(stranger), str(os.getuid())): 6.0}
        Path(bench.roots.procfs, str(stranger)).rmdir()
        assert others(bench.look(10.0)) == {}


def test_does_not_name_workers_of_ranks(bench: Bench) -> None:
    fake_processes.build(replace(bench.roots, rootfs=str(bench.directory / "root")))
    rank = fake_processes.RANKS[0]
    uuid = bench.node.values["gpu0.uuid"]
    with children(bench.directory / "ledgers", replace(fake_processes.specs()[0], uuid=uuid)):
        shares_gpu(bench, rank=rank, other=rank + 1)
        bench.node.level(0, "util", 60)
        for _ in range(3):
            assert others(bench.look(10.0)) == {}


def test_does_not_name_processes_if_the_driver_counts_pids_differently(bench: Bench) -> None:
    fake_processes.build(replace(bench.roots, rootfs=str(bench.directory / "root")))
    uuid = bench.node.values["gpu0.uuid"]
    with children(bench.directory / "ledgers", replace(fake_processes.specs()[0], uuid=uuid)):
        shares_gpu(bench, rank=77_100, other=77_101)  # the pids of another namespace
        bench.node.level(0, "util", 60)
        for _ in range(3):
            assert others(bench.look(10.0)) == {}


def test_processes_on_a_gpu_without_a_rank_are_not_named(bench: Bench) -> None:
    shares_gpu(bench, rank=77_100, other=77_101)
    bench.node.level(0, "util", 60)
    assert [others(bench.look(10.0)) for _ in range(2)] == [{}, {}]
    assert "nvmlDeviceGetProcessUtilization" not in bench.node.calls()


@pytest.mark.parametrize("code", [2, 3, 4, 999])
def test_a_driver_that_does_not_tell_the_use_of_processes_costs_nothing_else(bench: Bench, code: int) -> None:
    fake_processes.build(replace(bench.roots, rootfs=str(bench.directory / "root")))
    uuid = bench.node.values["gpu0.uuid"]
    with children(bench.directory / "ledgers", replace(fake_processes.specs()[0], uuid=uuid)):
        shares_gpu(bench, rank=fake_processes.RANKS[0], other=990)
        before = {name for name, _ in bench.look(10.0).of(0)} - {OTHER_BUSY}
        bench.node.fail("nvmlDeviceGetProcessUtilization", code, 0)
        answer = bench.look(10.0)
        assert before <= {name for name, _ in answer.of(0)} | {OTHER_BUSY}
        assert others(answer) == {}

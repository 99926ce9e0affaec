"""Advice and what-if on a loop that is blocked at a mount: what limits the mount decides what helps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, ended
from support_mounts import MB, mount

from whyidle.advisor.advice.case import Counters, Room, case_of
from whyidle.advisor.advice.rule import Advice
from whyidle.advisor.advice.table import advise
from whyidle.advisor.whatif.answer import answer
from whyidle.advisor.whatif.changes import Changes
from whyidle.cli.advice import entries, render
from whyidle.ledger.directory import read_directory, run_of
from whyidle.ledger.reader import Ledger

STEPS = 100
SLOW_READS = {"compute": 0.02, "data_read": 0.2}
TOGETHER = {"together_looks": 40, "parallel_looks": 40}
FAST = ("/fast", "", "xfs", "/dev/nvme0n1")
KEY = FAST[0], *FAST[2:]
SLOW_KEY = "/mnt/slow", "ext4", "/dev/loop0"

BANDWIDTH = mount(data=19, rates=[7.9, 7.9])
LATENCY = mount(data=19, rates=[4, 8])
LIMITED_LATENCY = mount(data=19, rates=[4, 8], limit=12 * MB, limit_by="io.max")
UNKNOWN = mount(data=19, rates=[0, 7.9])


def ledgers_of(folder: Path, mounts: Sequence[dict[str, Any]], **own: Any) -> list[Ledger]:
    words = TOGETHER | own.pop("words", {})
    spec = {"world_size": 1, "steps": STEPS, "step": SLOW_READS, "workers": 2, "mounts": [*mounts], "words": words}
    ended(folder, Spec(**(spec | own)))
    ledgers, problems = read_directory(str(folder), steps=True)
    assert not problems
    return ledgers


def advice_of(folder: Path, *mounts: dict[str, Any], counters: Counters | None = None, **own: Any) -> dict[str, Advice]:
    ledgers = ledgers_of(folder, mounts, **own)
    case = case_of(run_of(ledgers[0]), ledgers, time.monotonic_ns(), counters or Counters())
    return {one.id: one for one in advise(case)}


def test_no_more_workers_are_advised_for_a_mount_at_its_bandwidth(tmp_path: Path) -> None:
    """With half of the files on a mount of 8 MB/s, `num_workers=14` was promised to save 83 %, and saved -2 %."""
    found = advice_of(tmp_path, BANDWIDTH, mount(FAST, data=0.3, looks=12))
    assert "data.workers" not in found
    assert "data.cache" in found


@pytest.mark.parametrize(("where", "helps"), [(BANDWIDTH, False), (LATENCY, True)], ids=["bandwidth", "latency"])
def test_more_threads_without_a_loader_are_advised_only_if_the_mount_has_more(
    where: dict[str, Any], helps: bool, tmp_path: Path
) -> None:
    found = advice_of(tmp_path, where, workers=-1, words={"data_awaited_ns": 20 * 10**9})
    assert ("data.ahead" in found) is helps
    assert "data.cache" in found


def test_a_copy_is_advised_for_batches_that_looks_found_in_the_loops_own_code(tmp_path: Path) -> None:
    words = {"data_looks": 40, "data_blocked_on": 40, "blocked_looks": 40}
    step = {"compute": 0.05, "host_blocked": 0.2}
    slow = mount(own=20, rates=[7.9, 7.9])
    found = advice_of(tmp_path, slow, workers=-1, words=words, step=step, strings={"data_below": "t.py:9 get_batch"})
    assert found["data.cache"].gain.share == pytest.approx(0.8, abs=0.01)


def test_nor_for_the_little_that_its_workers_compute(tmp_path: Path) -> None:
    step = SLOW_READS | {"data_cpu": 0.02}
    assert "data.workers" not in advice_of(tmp_path, BANDWIDTH, counters=Counters(cpus=16), step=step)


@pytest.mark.parametrize("limited", [{"limit": 8 * MB, "limit_by": "blkio.throttle"}, {}], ids=["limit", "growth"])
def test_what_if_promises_nothing_of_workers_at_a_mount_at_its_bandwidth(
    limited: dict[str, Any], tmp_path: Path
) -> None:
    ledgers = ledgers_of(tmp_path, [mount(data=19, rates=[0, 7.9] if limited else [7.9, 7.9], **limited)])
    [row] = answer(run_of(ledgers[0]), ledgers, time.monotonic_ns(), Changes(workers=12))["changes"]  # type: ignore[misc]
    assert row["share"] == pytest.approx(0, abs=0.01)
    assert row["most"] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("slow", "share", "least"),
    [
        (LATENCY, 0.67, 0.67),  # 6 workers read in a third of the time: 73 of 220 ms
        (LIMITED_LATENCY, 0.5, 0.5),  # from 6 to 12 MB/s
        (UNKNOWN, 0.67, 0.0),
    ],
    ids=["latency", "latency up to a limit", "not known"],
)
def test_what_if_more_workers_read_as_the_mount_allows(
    slow: dict[str, Any], share: float, least: float, tmp_path: Path
) -> None:
    ledgers = ledgers_of(tmp_path, [slow])
    [row] = answer(run_of(ledgers[0]), ledgers, time.monotonic_ns(), Changes(workers=4))["changes"]  # type: ignore[misc]
    assert row["share"] == pytest.approx(share, abs=0.05)
    assert row["least"] == pytest.approx(least, abs=0.05)


def test_workers_are_advised_for_latency_with_what_they_surely_gain(tmp_path: Path) -> None:
    found = advice_of(tmp_path, LATENCY)["data.workers"]
    assert found.gain.least == pytest.approx(found.gain.share, abs=0.1)
    assert "/mnt/slow (ext4, loop0): each reader is as fast as alone" in found.evidence


@pytest.mark.parametrize("mounts", [[UNKNOWN], []], ids=["one number of readers", "nobody looked"])
def test_workers_may_gain_nothing_if_it_is_not_known_what_limits_the_mount(
    mounts: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = advice_of(tmp_path, *mounts)["data.workers"]
    assert found.gain.share > 0.5
    assert found.gain.least == 0.0
    assert found.gain.untold
    assert any("saves up to 86 %, or nothing" in line for line in render(entries([found]), "GPU-hours", "$"))


@pytest.mark.parametrize(
    ("slow", "least"), [(BANDWIDTH, None), (UNKNOWN, 0.0), (LATENCY, 0.9)], ids=["bandwidth", "not known", "latency"]
)
def test_larger_reads_help_against_latency_alone(slow: dict[str, Any], least: float | None, tmp_path: Path) -> None:
    found = advice_of(tmp_path, slow, counters=Counters(bytes_per_read=16384)).get("data.shards")
    assert (found and found.gain.least) == (least if least is None else pytest.approx(least, abs=0.1))


@pytest.mark.parametrize(("looked", "decoded"), [(60, False), (200, True)], ids=["always busy", "not always"])
def test_no_decoding_in_advance_if_workers_decode_while_others_read_from_a_full_mount(
    looked: int, decoded: bool, tmp_path: Path
) -> None:
    full = mount(data=19, rates=[7.9, 7.9], looks=58)
    step = SLOW_READS | {"data_cpu": 0.1}
    found = advice_of(tmp_path, full, step=step, words={"mount_looks_all": looked, "samples": STEPS})
    assert ("data.decode" in found) is decoded


def test_looks_know_the_size_of_reads_of_a_run_that_has_ended(tmp_path: Path) -> None:
    small = LATENCY | {"calls_seen": 100, "call_bytes": 100 * 16384}
    found = advice_of(tmp_path, small)["data.shards"]
    assert "returns 16 KiB on average" in found.evidence[0]
    assert "read each shard from its beginning to its end" in found.change  # samples may be in one large file already


def test_the_size_of_what_is_asked_of_a_server_is_not_known(tmp_path: Path) -> None:
    store = mount(("10.0.0.7:9000", "", "tcp", ""), data=19, rates=[4, 8])
    assert "data.shards" not in advice_of(tmp_path, store, counters=Counters(bytes_per_read=16384))


def test_a_copy_takes_as_long_as_reading_once_from_a_mount_at_its_bandwidth(tmp_path: Path) -> None:
    found = advice_of(tmp_path, mount(data=19, rates=[8, 8]))["data.cache"]
    assert "from /mnt/slow (ext4, loop0) to a local disk" in found.change
    assert found.gain.least == 0.0
    assert any("at 8 MB/s a copy of each GB from /mnt/slow (ext4, loop0) takes 125 s" in one for one in found.evidence)


def test_a_copy_does_not_help_a_rank_that_reads_elsewhere(tmp_path: Path) -> None:
    own = Spec(world_size=2, steps=STEPS, step=SLOW_READS, workers=2, words=TOGETHER, mounts=[BANDWIDTH])
    step, elsewhere = {"compute": 0.12, "data_read": 0.08}, [mount(FAST, data=8, rates=[8, 8])]
    for one in (own, replace(own, rank=1, step=step, mounts=elsewhere)):
        ended(tmp_path, one)
    ledgers, _ = read_directory(str(tmp_path), steps=True)
    case = case_of(run_of(ledgers[0]), ledgers, time.monotonic_ns(), Counters())
    [found] = [one for one in advise(case) if one.id == "data.cache"]
    assert found.change.startswith("Copy the data from /mnt/slow (ext4, loop0) to a local disk")
    assert found.gain.share == pytest.approx(0.2 / (0.22 + 0.20), abs=0.03)


SAVES = {"compute": 0.03, "checkpoint_write": 0.07}


@pytest.mark.parametrize("rates", [[8, 8], [0, 8]], ids=["bandwidth", "not known"])
def test_an_asynchronous_save_hides_no_more_than_the_time_between_saves(rates: list[float], tmp_path: Path) -> None:
    found = advice_of(tmp_path, mount(save=7, rates=rates), step=SAVES)["checkpoint.async"]
    assert found.gain.share == pytest.approx(0.3, abs=0.02)
    assert found.gain.least <= found.gain.share <= found.gain.most


ROOM = Counters(rooms={KEY: Room("/fast", 10**12)})
BENCHED = Counters(rooms={KEY: Room("/fast", 10**12, read=800 * MB, write=400 * MB)})
QUICK = mount(FAST, data=0.3, rates=[80])


@pytest.mark.parametrize(
    ("mounts", "counters", "said"),
    [
        ([BANDWIDTH, QUICK], ROOM, "the run itself moved 80 MB/s there"),
        ([BANDWIDTH], BENCHED, "`whyidle bench storage` read 800 MB/s there"),
        ([BANDWIDTH, QUICK], Counters(), None),  # nobody knows whether it has room
        ([BANDWIDTH, QUICK], Counters(rooms={KEY: Room("/fast", 1000)}), None),  # too full
        ([BANDWIDTH], ROOM, None),  # not measured
        ([BANDWIDTH, mount(FAST, data=0.3, rates=[80], counted=0)], ROOM, None),  # the page cache may be meant
        ([BANDWIDTH, mount(FAST, data=0.3, rates=[12])], ROOM, None),  # hardly faster
        ([BANDWIDTH], Counters(rooms={SLOW_KEY: Room("/mnt/slow", 10**12, read=800 * MB)}), None),  # the same mount
        ([mount(data=19)], BENCHED, None),  # its rate is not known
    ],
    ids=["run", "bench", "no room known", "full", "not measured", "not counted", "hardly", "same", "no rate"],
)
def test_files_are_to_move_only_to_a_mount_that_was_measured(
    mounts: list[dict[str, Any]], counters: Counters, said: str | None, tmp_path: Path
) -> None:
    found = advice_of(tmp_path, *mounts, counters=counters).get("storage.mount")
    assert (said is None) == (found is None)
    if found and said:
        assert found.change == ("Move the files of the dataset from /mnt/slow (ext4, loop0) to /fast (xfs, nvme0n1)")
        assert f"/fast (xfs, nvme0n1) has 1 TB free, and {said}" in found.evidence
        assert 0.5 < found.gain.least <= found.gain.share <= found.gain.most < 0.92


def test_checkpoints_are_to_move_to_a_faster_mount(tmp_path: Path) -> None:
    found = advice_of(tmp_path, mount(save=7, rates=[8, 8]), step=SAVES, counters=BENCHED)["storage.mount"]
    assert found.change == "Move the checkpoints from /mnt/slow (ext4, loop0) to /fast (xfs, nvme0n1)"
    assert found.gain.share == pytest.approx(0.7 * (1 - 1 / 50), abs=0.01)


def test_checkpoints_are_never_to_move_to_memory(tmp_path: Path) -> None:
    rooms = {("/dev/shm", "tmpfs", "tmpfs"): Room("/dev/shm", 10**12, read=800 * MB, write=400 * MB)}
    found = advice_of(tmp_path, mount(save=7, rates=[8, 8]), step=SAVES, counters=Counters(rooms=rooms))
    assert "storage.mount" not in found

"""What a report says of mounts: a table of what looks found -> the words."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, ended
from support_mounts import MB, SECOND, SLOW, mount

from whyidle.cli.report import render_text
from whyidle.ledger.directory import read_directory, run_of
from whyidle.verdict import workers
from whyidle.verdict.accounts import account
from whyidle.verdict.mounts import BANDWIDTH, LATENCY, of_ranks
from whyidle.verdict.report import build_report

STEPS = 100
READ = {"compute": 0.05, "data_read": 0.2}
FAST = ("/data", "train", "xfs", "/dev/nvme0n1")
FILER = ("/data", "", "nfs4", "filer:/export")
CALLS: dict[str, Any] = {"calls_seen": 40, "call_bytes": 40 * MB}


def report_of(folder: Path, *specs: Spec) -> dict[str, Any]:
    ended(folder, *specs)
    ledgers, problems = read_directory(str(folder), steps=True)
    assert not problems
    return build_report(run_of(ledgers[0]), ledgers, time.monotonic_ns())


def spec_of(*mounts: dict[str, Any], step: dict[str, float] = READ, **own: Any) -> Spec:
    return Spec(**({"world_size": 1, "steps": STEPS, "step": step, "workers": 2, "mounts": [*mounts]} | own))


def summary_of(folder: Path, *mounts: dict[str, Any], **own: Any) -> str:
    return report_of(folder, spec_of(*mounts, **own))["verdict"]["summary"]


READS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "bandwidth": (
        [mount(data=19, rates=[7.9, 7.9], **CALLS)],
        "reads from /mnt/slow (ext4, loop0): 7.9 MB/s in reads of 1 MB, 190 ms each: bandwidth, not latency",
    ),
    "latency": (
        [mount(data=19, rates=[4, 8], **CALLS)],
        "reads from /mnt/slow (ext4, loop0): 6 MB/s in reads of 1 MB, 250 ms each: latency, not bandwidth",
    ),
    "not known": ([mount(data=19, rates=[4, 5.8])], "reads from /mnt/slow (ext4, loop0): 4.9 MB/s"),
    "one number of readers": ([mount(data=19, rates=[0, 5])], "reads from /mnt/slow (ext4, loop0): 5 MB/s"),
    "at a limit": (
        [mount(data=19, rates=[0, 7.9], limit=8 * MB, limit_by="blkio.throttle")],
        "reads from /mnt/slow (ext4, loop0): 7.9 MB/s: bandwidth (blkio.throttle allows 8 MB/s), not latency",
    ),
    "far from a limit": (
        [mount(data=19, rates=[0, 3], limit=8 * MB, limit_by="io.max")],
        "reads from /mnt/slow (ext4, loop0): 3 MB/s",
    ),
    "no rate": ([mount(data=19)], "reads from /mnt/slow (ext4, loop0)"),
    "an upper bound": (
        [mount(data=19, rates=[0, 8], counted=0, **CALLS)],
        "reads from /mnt/slow (ext4, loop0): at most 8 MB/s in reads of 1 MB, at least 250 ms each",
    ),
    "queueing": (
        [mount(FILER, data=19, rates=[0, 9], operations=500, queue_ns=9 * SECOND, trip_ns=2 * SECOND)],
        "reads from /data (nfs4, filer:/export): 9 MB/s: operations queue in this node's client",
    ),
    "metadata": (
        [mount(FILER, data=19, rates=[0.1, 0.2], metadata_looks=30)],
        "open and stat on /data (nfs4, filer:/export): each reader is as fast as alone",
    ),
    "files opened": (
        [mount(FILER, data=19, rates=[0.1, 0.2], metadata_looks=30, opened=400)],
        "open and stat on /data (nfs4, filer:/export): 40 files opened a second: each reader is as fast as alone",
    ),
    "mapped files": (
        [mount(data=19, rates=[0, 5], fault_looks=30)],
        "page faults of mapped files on /mnt/slow (ext4, loop0): 5 MB/s",
    ),
    "mapped files, not counted": (
        [mount(("/mnt/s3", "", "fuse.s3fs", "s3fs"), data=19, rates=[0, 0.1], counted=0, fault_looks=30)],
        "page faults of mapped files on /mnt/s3 (fuse.s3fs)",
    ),
    "an object store": (
        [mount(("10.0.0.7:9000", "", "tcp", ""), data=19, rates=[0, 5], counted=0)],
        "reads from 10.0.0.7:9000 (TCP): at most 5 MB/s",
    ),
    "by open files": ([mount(data=19, guesses=30)], "reads from /mnt/slow (ext4, loop0), by open files"),
    "the root": ([mount(("/", "scratch", "overlay", "overlay"), data=19)], "reads from /scratch (overlay)"),
    "a FUSE": ([mount(("/mnt/s3", "", "fuse.s3fs", "s3fs"), data=19)], "reads from /mnt/s3 (fuse.s3fs)"),
    "two slow mounts": (
        [mount(data=8, rates=[0, 5]), mount(FILER, data=11)],
        "reads from /data (nfs4, filer:/export); and on reads from /mnt/slow (ext4, loop0): 5 MB/s",
    ),
    "one of two": ([mount(data=17), mount(FILER, data=2)], "reads from /mnt/slow (ext4, loop0)"),
}


@pytest.mark.parametrize("case", READS)
def test_a_headline_names_the_mount_that_blocks_data_workers(case: str, tmp_path: Path) -> None:
    mounts, said = READS[case]
    assert summary_of(tmp_path, *mounts) == f"{workers.BLOCKED} on {said}"


@pytest.mark.parametrize(
    ("mounts", "words"),
    [
        ([], {}),
        ([mount(data=19, looks=3)], {}),
        ([mount(data=1.5)], {}),
        ([mount(data=7), mount(FILER, data=7), mount(FAST, data=6)], {}),  # nothing stands out
        ([mount(data=9)], {}),  # something else blocks the workers for longer
        ([mount(data=19, text="")], {}),
    ],
    ids=["no mount", "few looks", "little time", "three mounts", "elsewhere", "no name"],
)
def test_a_mount_that_is_not_at_fault_is_not_in_the_headline(
    mounts: list[dict[str, Any]], words: dict[str, int], tmp_path: Path
) -> None:
    assert summary_of(tmp_path, *mounts, words=words) == workers.BLOCKED


def test_a_loop_without_workers_is_blocked_itself(tmp_path: Path) -> None:
    said = summary_of(tmp_path, mount(data=19), workers=0)
    assert said == f"{workers.OWN_BLOCKED}, on reads from /mnt/slow (ext4, loop0)"


def test_threads_that_make_batches_without_a_loader_are_not_called_data_workers(tmp_path: Path) -> None:
    report = report_of(tmp_path, spec_of(mount(data=19), workers=-1, words={"data_awaited_ns": 20 * SECOND}))
    assert report["verdict"]["summary"] == f"{workers.MAKERS_BLOCKED} on reads from /mnt/slow (ext4, loop0)"
    assert any("waiting for a thread or process that makes batches" in each for each in report["verdict"]["evidence"])
    assert "data worker" not in render_text(report, colour=False)


def test_the_mount_of_a_logger_is_said(tmp_path: Path) -> None:
    logs = mount(own=19, rates=[8], sync_looks=40)
    said = summary_of(tmp_path, logs, step={"compute": 0.05, "logging": 0.2})
    assert said.endswith("loggers or callbacks block the loop, on writes to /mnt/slow (ext4, loop0): 8 MB/s")


def test_time_of_the_loops_own_code_that_looks_call_data_takes_its_mount_with_it(tmp_path: Path) -> None:
    """30 of 40 looks that found the thread blocked were below `get_batch`."""
    words = {"data_looks": 30, "data_blocked_on": 30, "blocked_looks": 40}
    step = {"compute": 0.05, "host_blocked": 0.2}
    strings = {"data_below": "train.py:9 get_batch"}
    report = report_of(tmp_path, spec_of(mount(own=20, rates=[8]), step=step, workers=-1, words=words, strings=strings))
    [found] = report["mounts"]
    assert found["seconds"] == {"data": pytest.approx(15), "save": 0, "own": pytest.approx(5)}
    said = "`get_batch` (train.py:9), on reads from /mnt/slow (ext4, loop0): 8 MB/s"
    assert report["verdict"]["summary"].endswith(said)


def test_a_rate_is_not_said_to_be_above_the_limit(tmp_path: Path) -> None:
    [found] = report_of(tmp_path, spec_of(mount(data=19, rates=[9.4], limit=8 * MB, limit_by="io.max")))["mounts"]
    assert (found["bytes_per_second"], found["limited_by"]) == (8 * MB, BANDWIDTH)


def test_a_healthy_run_hears_nothing_of_mounts(tmp_path: Path) -> None:
    report = report_of(tmp_path, spec_of(mount(data=0.4, rates=[9, 9]), step={"compute": 0.2, "data_read": 0.004}))
    assert not any("/mnt" in sentence for sentence in report["verdict"]["evidence"])
    assert "/mnt" not in render_text(report, colour=False)
    assert [entry["named"] for entry in report["mounts"]] == [False]


SAVES = {"compute": 0.05, "checkpoint_write": 0.08}
SAVED = {"checkpoints": 4, "checkpoint_bytes": 64 * MB}
STORE = ("10.0.0.7:9000", "", "tcp", "")
CKPT = ("/ckpt", "", "nfs4", "server:/export")


@pytest.mark.parametrize(
    ("words", "slow", "said"),
    [
        (
            SAVED,
            mount(CKPT, save=8, rates=[8], write_looks=12, sync_looks=28),
            "saves block the loop: 4 × 16 MB to /ckpt (nfs4, server:/export) at 8 MB/s, 70 % of it in fsync",
        ),
        ({}, mount(CKPT, save=8, write_looks=40), "saves block the loop: writes to /ckpt (nfs4, server:/export)"),
        (
            SAVED,
            mount(CKPT, save=8, rates=[8], limit=8 * MB, limit_by="io.max"),
            "saves block the loop: 4 × 16 MB to /ckpt (nfs4, server:/export) at 8 MB/s: bandwidth (io.max allows"
            " 8 MB/s), not latency",
        ),
        # The mount does not count: 64 MB in 8 s of saves.
        (
            SAVED,
            mount(CKPT, save=8, rates=[0, 5], counted=0),
            "saves block the loop: 4 × 16 MB to /ckpt (nfs4, server:/export) at 8 MB/s",
        ),
        # The rate is that of reads, too.
        (
            SAVED,
            mount(CKPT, save=8, data=8, rates=[8]),
            "saves block the loop: 4 × 16 MB to /ckpt (nfs4, server:/export)",
        ),
        (SAVED, mount(CKPT, data=8, rates=[8]), "saves block the loop"),
        (
            SAVED,
            mount(STORE, save=8, rates=[9], counted=0, write_looks=30),
            "saves block the loop: 4 × 16 MB to 10.0.0.7:9000 (TCP) at 8 MB/s",
        ),
    ],
)
def test_a_headline_on_saves_has_their_mount(
    words: dict[str, int], slow: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert summary_of(tmp_path, slow, step=SAVES, words=words) == said


def test_a_restore_names_its_mount(tmp_path: Path) -> None:
    step = {"compute": 0.05, "checkpoint_read": 0.08}
    said = summary_of(tmp_path, mount(CKPT, save=8, rates=[0, 9]), step=step)
    assert said == "restores block the loop: reads from /ckpt (nfs4, server:/export): 9 MB/s"


def test_a_loop_that_saves_in_its_own_way_uploads_to_a_server(tmp_path: Path) -> None:
    """Most looks find that it waits for the answer, which comes when the server has all of it."""
    step = {"compute": 0.05, "host_blocked": 0.08}
    looks = {"saving_looks": 20, "saving_blocked_on": 20, "blocked_looks": 20}
    said = summary_of(tmp_path, mount(STORE, own=8, rates=[9], counted=0, write_looks=10), step=step, words=looks)
    assert said.endswith("is blocked there, on uploads to 10.0.0.7:9000 (TCP): at most 9 MB/s")


def test_own_code_that_is_blocked_names_its_mount(tmp_path: Path) -> None:
    step = {"compute": 0.05, "host_blocked": 0.08}
    said = summary_of(tmp_path, mount(FILER, own=8, write_looks=30), step=step)
    assert said.endswith(", on writes to /data (nfs4, filer:/export)")


def test_attempts_and_ranks_are_summed(tmp_path: Path) -> None:
    slow = mount(data=9, rates=[8, 8], **CALLS)
    specs = [
        spec_of(slow, rank=rank, world_size=2, attempt=attempt, created=1 + attempt)
        for rank in (0, 1)
        for attempt in (0, 1)
    ]
    report = report_of(tmp_path, *specs)
    [entry] = report["mounts"]
    assert entry["seconds"]["data"] == pytest.approx(36)
    assert (entry["looks"], entry["ranks"], entry["bytes_per_second"]) == (160, [0, 1], 8 * MB)
    # Each of the other rank's 1.5 readers may be there at the same time: 3 x 1 MB / 8 MB/s.
    assert entry["call_seconds"] == pytest.approx(0.375)


def test_the_first_directory_is_dropped_if_ranks_use_several(tmp_path: Path) -> None:
    specs = [
        spec_of(mount(("/mnt/slow", first, *SLOW[2:]), data=9), rank=rank, world_size=2)
        for rank, first in enumerate(("a", "b"))
    ]
    assert [(entry["point"], entry["first"]) for entry in report_of(tmp_path, *specs)["mounts"]] == [("/mnt/slow", "")]


def test_one_rank_with_another_mount_is_said(tmp_path: Path) -> None:
    quick = mount(FAST, data=0.5, looks=12)
    healthy = {"compute": 0.25}
    specs = [spec_of(quick, rank=rank, world_size=3, step=healthy) for rank in (0, 2)]
    report = report_of(tmp_path, *specs, spec_of(mount(data=19), rank=1, world_size=3))
    said = "rank 1 uses /mnt/slow (ext4, loop0), while ranks 0 and 2 use /data (xfs, nvme0n1)"
    assert said in report["verdict"]["evidence"]
    assert "rank 1: data workers are blocked on reads from /mnt/slow" in report["verdict"]["summary"]


@pytest.mark.parametrize(
    ("specs", "kind"),
    [
        ([mount(data=9, rates=[8, 8])], BANDWIDTH),
        ([mount(data=9, rates=[8, 6])], BANDWIDTH),  # they hinder each other
        ([mount(data=9, rates=[4, 8])], LATENCY),
        ([mount(data=9, rates=[0, 0, 9, 20], readers=40 * 5)], LATENCY),  # "more" are 7
        ([mount(data=9, rates=[4, 5.7])], ""),
        ([mount(data=9, rates=[4, 8], looks=9)], ""),
        ([mount(data=9, rates=[0, 7.9], looks=9, limit=8 * MB)], BANDWIDTH),
        ([mount(data=9, rates=[0, 3], looks=9, limit=8 * MB)], ""),
        ([mount(data=9, rates=[0, 7.9], looks=3, limit=8 * MB)], ""),
        ([mount(data=9, rates=[4, 8], beside_ns=[SECOND // 2] * 2)], ""),
        # With several ranks of a node at the mount, its own counters show the bytes of all of them.
        ([mount(data=9, rates=[8, 8])] * 2, BANDWIDTH),
        ([mount(data=9, rates=[4, 8])] * 2, LATENCY),
        ([mount(data=9, rates=[8, 8.6])] * 16, ""),  # 16 ranks: one reader more is few
        # What a rank gets of a full mount grows with its readers.
        ([mount(data=9, rates=[4, 8], counted=0)] * 2, ""),
    ],
)
def test_bandwidth_and_latency_are_told_apart_by_the_readers_at_the_same_time(
    specs: list[dict[str, Any]], kind: str, tmp_path: Path
) -> None:
    ended(tmp_path, *(spec_of(each, rank=rank, world_size=len(specs)) for rank, each in enumerate(specs)))
    ledgers, _ = read_directory(str(tmp_path), steps=True)
    [found] = of_ranks(account(run_of(ledgers[0]), ledgers, time.monotonic_ns()).ranks)
    assert found.limited_by == kind


def test_evidence_has_what_is_known(tmp_path: Path) -> None:
    slow = mount(
        ("/data", "train", *FILER[2:]),
        data=19,
        rates=[4, 8],
        metadata_looks=10,
        operations=1000,
        queue_ns=SECOND,
        trip_ns=4 * SECOND,
        resent=3,
        opened=1200,
    )
    report = report_of(tmp_path, spec_of(slow))
    assert (
        "19.0 s of waits for batches were at /data (nfs4, filer:/export), in /data/train: 40 looks found 1.5"
        " readers at once there on average, 25 % in open and stat; 4 MB/s with 1 reader and 8 MB/s with 2 readers;"
        " 1000 operations took 4 ms each after 1 ms in the queue, and 3 were sent again; 120 files opened a second;"
        " each reader is as fast as alone" in report["verdict"]["evidence"]
    )
    assert report["mounts"][0]["files_opened_per_second"] == 120
    text = render_text(report, colour=False)
    assert "reads and writes by mount" in text
    assert "/data (nfs4, filer:/export)" in text


def test_on_an_accelerator_time_that_looks_call_data_takes_its_mount_with_it(tmp_path: Path) -> None:
    """200 of 1000 looks found no work, 100 of them below `get_batch`, which was blocked: 2.5 of 25 s. The thread was at
    the mount for longer, because the device worked at first."""
    words = {"looks": 1000, "empty_looks": 200, "work_looks": 200, "data_looks+2": 100, "data_blocked_on": 100}
    step = {"compute": 0.2, "host": 0.05}
    strings = {"data_below": "train.py:9 get_batch"}
    spec = spec_of(mount(own=4), step=step, workers=-1, words=words, strings=strings, device="cuda:0")
    [found] = report_of(tmp_path, spec)["mounts"]
    assert found["seconds"] == {"data": pytest.approx(2.5), "save": 0, "own": pytest.approx(1.5)}

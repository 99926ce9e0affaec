"""The study: real ranks in namespaces and on FUSE. It removes everything that it created, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_bottlenecks_disks import missing, slow_folder
from support_ledgers import DEADLINE_SECONDS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "study.py"


@pytest.fixture(autouse=True)
def _able() -> None:
    if lacks := "needs root" if os.getuid() else missing():
        pytest.skip(lacks)


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "old").write_bytes(b"old" * 1000)
    with slow_folder(tmp_path / "below", tmp_path / "at", read_ms=1, cached=True, bytes_per_second=50_000_000) as at:
        yield at


def test_a_slow_file_system_with_a_rate_takes_writes(limited: Path, tmp_path: Path) -> None:
    (limited / "new").write_bytes(b"new" * 100_000)
    (limited / "old").write_bytes(b"short")
    assert (limited / "new").read_bytes() == (tmp_path / "below" / "new").read_bytes() == b"new" * 100_000
    assert (tmp_path / "below" / "old").read_bytes() == b"short"


def left(pid: int) -> list[str]:
    """What a study has created and not removed."""
    places = [str(path) for path in Path("/run/netns").glob(f"whyidle-w{pid}-*")]
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if "whyidle-study-" in line]
    return places + mounts


@pytest.mark.long
@pytest.mark.alone
def test_a_study_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--steps", "1000", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as study:
        assert study.stderr
        try:
            started = study.stderr.readline()
            if "this machine" in started:
                pytest.skip(started)
            assert started == "object-100mbit: 1000 steps\n"
            assert left(study.pid)
            study.send_signal(signal.SIGINT)
            _, said = study.communicate(timeout=DEADLINE_SECONDS)
        finally:
            study.kill()
    assert (study.returncode, said) == (130, "study: stopped; nothing is left behind\n")
    assert left(study.pid) == []
    assert not (tmp_path / "out").exists()

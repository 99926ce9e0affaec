"""What the training thread reads itself: a loop that makes its batches by hand, from a file or from a mapped one."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from support_forks import Forks
from support_sites import report

from whyidle.torch_hooks.meters import files
from whyidle.torch_hooks.meters.files import ReadMeter


@pytest.mark.parametrize("how", ["mapped", "calls", "loader", "marked", "sleeps"])
def test_evidence_says_what_a_loop_reads_by_hand(how: str, tmp_path: Path, forks: Forks) -> None:
    (tmp_path / "tokens").write_bytes(bytes(8 << 20))
    with open(tmp_path / "tokens", "rb+") as file:
        os.fsync(file.fileno())  # pages that are not written yet cannot be dropped
    done, _ = forks.run(("reads.py", str(tmp_path / "tokens"), how), tmp_path / "out")
    assert done.returncode == 0, done.stderr
    told, [ledger] = json.loads(done.stdout), done.ledgers
    found = report(tmp_path / "out" / "ledgers")
    evidence = " ".join(found["verdict"]["evidence"])
    # On busy cores it takes long, so looks find it in `__iter__`: then they say that these are batches.
    sampled = any(one["to"] == "data_read" and one["seconds"] for one in found["per_rank"][0]["sampled"])
    assert ledger.thread_major_faults <= told["faults"] + 20
    # The recording begins with the first backward pass.
    assert ledger.marked_data == (told["steps"] - 1 if how == "marked" else 0)
    if how in ("mapped", "loader", "marked"):
        if told["faults"] < 400:
            pytest.skip("needs a folder for temporary files on a disk")
        assert ledger.thread_major_faults >= 0.9 * told["faults"]
    if how == "mapped":
        assert sampled or "page faults that had to wait for a read" in evidence
    elif how == "calls":
        assert told["bytes"] * 0.95 <= ledger.thread_read_bytes < told["bytes"] + (4 << 20)
        assert sampled or "the loop's own code read 5" in evidence
    else:  # what a loader reads is a wait for data, as in a marked loop, and a sleep reads nothing
        assert "the loop's own code read" not in evidence
        assert "page faults" not in evidence


def test_another_thread_is_not_asked() -> None:
    meter, found = ReadMeter(), []
    thread = threading.Thread(target=lambda: found.append(meter.read()))
    thread.start()
    thread.join()
    assert found == [None]
    assert meter.read() is not None


def test_a_kernel_that_does_not_count_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "_OWN_IO", str(tmp_path / "none"))
    meter = ReadMeter()
    Path(__file__).read_bytes()
    assert meter.read() is not None
    assert meter.read()[0] == 0  # type: ignore[index]
    (tmp_path / "none").write_text("rchar: many\n")
    assert meter.read()[0] == 0  # type: ignore[index]

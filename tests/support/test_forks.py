"""The process that forks training scripts."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import support_forks
from support_forks import Forked, Forks
from support_ledgers import until

HANGS = """
import time

def waits_for_ever():
    print("waits", flush=True)
    time.sleep(600)

waits_for_ever()
"""


def test_shows_the_stacks_of_scripts_that_do_not_end(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    monkeypatch.setattr(support_forks, "SCRIPTS", tmp_path)
    monkeypatch.setattr(support_forks, "LIMIT_SECONDS", 0.0)
    ran = tmp_path / "ran"

    def both_wait(_: list[Forked]) -> None:
        until(lambda: (ran / "stdout").read_text().count("waits") == 2)

    with pytest.raises(TimeoutError) as error:
        forks.run(("hangs.py",), ran, 2, meanwhile=both_wait)
    assert str(error.value).count("in waits_for_ever\n") == 2


def test_a_script_can_be_killed_before_it_begins(forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    monkeypatch.setattr(support_forks, "SCRIPTS", tmp_path)
    started = forks.start(("hangs.py",), tmp_path / "ran")
    started.kill()
    assert started.wait() == -signal.SIGKILL

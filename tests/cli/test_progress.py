"""Progress of a command, in a terminal and in a log."""

from __future__ import annotations

import io

import pytest

from whyidle.cli import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The value of `time.monotonic`: the last element."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[-1])
    return now


def test_a_log_gets_a_line_for_each_part_and_one_every_few_seconds(clock: list[float]) -> None:
    file = io.StringIO()
    with progress.Lines("bench storage", file) as lines:
        for now, part, done in ((100, "writes", 0), (101, "writes", 0.1), (106, "writes", 0.6), (107, "reads", 0)):
            clock.append(now)
            lines.show(part, done, "5 MB/s")
    assert file.getvalue().splitlines() == [
        "whyidle bench storage: writes",
        "whyidle bench storage: writes, 60 % · 5 MB/s",
        "whyidle bench storage: reads",
    ]


def test_a_terminal_gets_one_line_that_is_cleared_at_the_end(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    file = io.StringIO()
    with progress.Bar("bench storage", file) as bar:
        bar.show("reads", 0.5)
        bar.show("reads", 0.6)  # too soon to be drawn
        clock.append(101.0)
        bar.show("reads", 1.0, "a note that is longer than what the terminal has room for")
    drawn = file.getvalue().split("\r\x1b[K")
    assert drawn[1] == "━" * 16 + "╌" * 16 + "  50 %  reads"
    assert drawn[2].startswith("━" * 32 + " 100 %  reads · a note")
    assert len(drawn[2]) == 59
    assert drawn[3] == ""
    assert "\n" not in file.getvalue()


def test_prints_lines_if_the_output_is_not_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.sys, "stderr", io.StringIO())
    assert type(progress.open_progress("bench storage")) is progress.Lines

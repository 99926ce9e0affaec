"""Modes of torch in which programs are looked into are seen while they are on."""

from __future__ import annotations

import pytest
import torch

from whyidle.ledger.layout import LEDGER_BYTES, WORD_AT
from whyidle.ledger.modes import MODES
from whyidle.torch_hooks import modes


def counted() -> list[int]:
    words = memoryview(bytearray(LEDGER_BYTES)).cast("q")
    modes.count(words)
    at = WORD_AT["mode_looks"][0]
    return words[at : at + len(MODES)].tolist()


def test_counts_the_modes_that_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counted() == [0, 0, 0]
    with torch.autograd.set_detect_anomaly(True):
        assert counted() == [1, 0, 0]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert counted() == [0, 1, 0]
    monkeypatch.setattr(modes, "_BLOCKING", True)
    assert counted() == [0, 0, 1]


def test_a_profiler_counts_only_while_it_records() -> None:
    schedule = torch.profiler.schedule(wait=1, warmup=0, active=1, repeat=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as profiler:
        found = [counted()[1]]
        for _ in range(3):
            profiler.step()
            found.append(counted()[1])
    assert found == [0, 1, 0, 0]

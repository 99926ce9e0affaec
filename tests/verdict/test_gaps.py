"""Idle time in compute: the GPU's counters decide where they cover it, and a rank's looks decide about the rest."""

from __future__ import annotations

import pytest

from whyidle.verdict.gaps import LEAST_LOOKS, Idle, gaps

WINDOW = 100.0
LOOKS = 500

LOOPS = {  # on an H100, docs/gpu.md: shares of time in which the device had work, by looks and by GPM
    "200 tiny layers": (0.14, 0.08),
    "always busy": (0.99, 1.00),
    "evaluates between steps": (0.49, 0.52),
    "trains on another stream": (0.36, 0.39),
    "torch.compile": (0.18, 0.17),
    "torch.compile, reduce-overhead": (0.54, 0.43),
    "FSDP2": (0.23, 0.28),
    "FSDP2 clips gradients": (0.70, 0.75),
    "ResNet-50 behind a loader": (0.38, 0.32),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_the_counters_of_a_gpu_decide(loop: str) -> None:
    looked, counted = (1 - busy for busy in LOOPS[loop])
    found = gaps(WINDOW, Idle(counted * WINDOW, WINDOW), LOOKS, round(looked * LOOKS), WINDOW)
    assert found.seconds == pytest.approx(counted * WINDOW)
    assert found.error is None
    assert found.by_counters
    assert (found.looked, found.counted) == (pytest.approx(looked * WINDOW), pytest.approx(counted * WINDOW))


@pytest.mark.parametrize(
    ("idle", "looks", "empty", "expected"),
    [
        (None, LEAST_LOOKS - 1, 50, None),
        (None, LOOKS, 250, 50.0),
        (Idle(30.0), LEAST_LOOKS - 1, 50, 30.0),
        (Idle(30.0), LOOKS, 250, 30.0),  # samples of the utilisation, and looks: the smaller figure
        (Idle(70.0), LOOKS, 250, 50.0),
        (Idle(0.0, 40.0), LOOKS, 250, 30.0),  # looks stand for the 60 s that are not covered
        (Idle(10.0, 40.0), 0, 0, 10.0),  # nobody has looked at the rest
        (Idle(120.0, 100.0), LOOKS, 250, 100.0),
        (Idle(-1.0, 100.0), LOOKS, 250, 0.0),
    ],
)
def test_looks_decide_about_what_counters_do_not_cover(
    idle: Idle | None, looks: int, empty: int, expected: float | None
) -> None:
    assert gaps(WINDOW, idle, looks, empty, WINDOW).seconds == (expected and pytest.approx(expected))


def test_a_rank_without_compute_has_no_gaps() -> None:
    assert gaps(0.0, Idle(5.0, 0.0), LOOKS, 250, WINDOW).seconds == 0
    assert gaps(0.0, Idle(5.0, 9.0), LOOKS, 250, WINDOW).seconds == 0

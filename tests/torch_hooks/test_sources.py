"""Batches that do not come from torch's loader: a table of sources -> the cause that must have most of the wait.

The libraries themselves are not needed: the script has stand-ins with their names and their way to call.
"""

from __future__ import annotations

import functools
import json
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support_forks import Forks

from whyidle.torch_hooks.hooks.samples import sample_count
from whyidle.torch_hooks.hooks.sources import samples_of
from whyidle.torch_hooks.meters import source
from whyidle.torch_hooks.session import Session
from whyidle.torch_hooks.splits import split_source

pytestmark = pytest.mark.xdist_group("machine")  # shares of time: no other test may use the CPU meanwhile

WAYS = {"sleeps": "data_read", "burns": "data_cpu"}
SOURCES = (
    "thread",
    "timeout",
    "looks",
    "pool",
    "loader_in_thread",
    "process",
    "future",
    "nodes",
    "generator",
    "call",
    "phase",
)
CASES = {f"{source}:{how}": cause for source in SOURCES for how, cause in WAYS.items()}
ATTEMPTS = 3


def run(forks: Forks, folder: Path, *names: str) -> dict[str, dict[str, Any]]:
    done, _ = forks.run(("sources.py", *names), folder, recorded=False)
    assert done.returncode == 0, done.stderr
    assert "whyidle:" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Callable[[int], dict[str, dict[str, Any]]]:
    """All sources, measured again for each attempt."""

    @functools.cache
    def attempt(number: int) -> dict[str, dict[str, Any]]:
        return run(forks, tmp_path_factory.mktemp(f"sources-{number}"), *CASES, "not_batches", "work_between")

    return attempt


@pytest.mark.parametrize(("name", "cause"), CASES.items(), ids=CASES.keys())
def test_most_of_a_wait_has_the_expected_cause(
    tables: Callable[[int], dict[str, dict[str, Any]]], name: str, cause: str
) -> None:
    def share(told: dict[str, Any]) -> float:
        """If other programs use the CPUs, who makes the batch also waits for a CPU."""
        waits = {one: ns for one, ns in told.items() if one.startswith("data_") and one != "data_queue"}
        return waits[cause] / max(sum(waits.values()), 1)

    assert any(share(tables(number)[name]) > 0.5 for number in range(ATTEMPTS)), tables(0)[name]


@pytest.mark.parametrize("name", CASES)
def test_counts_batches_and_samples(tables: Callable[[int], dict[str, dict[str, Any]]], name: str) -> None:
    told = tables(0)[name]
    if name.startswith("phase"):
        assert told["batches"] == 0  # a phase may have any number of them
        return
    again = name.startswith("call")  # its constructor has asked for the first batch, which then comes once more
    assert told["batches"] == told["steps"] + again
    assert told["samples"] == 2 * told["batches"]
    assert (told["eval_batches"], told["faults"]) == (0, 0)


def test_what_is_not_a_batch_is_not_data(tables: Callable[[int], dict[str, dict[str, Any]]]) -> None:
    told = tables(0)["not_batches"]
    assert (told["batches"], told["steps"]) == (0, 10)
    assert sum(ns for cause, ns in told.items() if cause.startswith("data_")) == 0


def test_a_polled_queue_is_one_wait(tables: Callable[[int], dict[str, dict[str, Any]]]) -> None:
    def waited(told: dict[str, Any]) -> float:
        data = sum(ns for cause, ns in told.items() if cause.startswith("data_"))
        return data / max(data + told["host"] + told["compute"] + told["host_blocked"], 1)

    for name in ("timeout:sleeps", "looks:sleeps"):
        assert any(waited(tables(number)[name]) > 0.8 for number in range(ATTEMPTS)), tables(0)[name]


def test_work_between_two_questions_is_not_a_wait(tables: Callable[[int], dict[str, dict[str, Any]]]) -> None:
    told = tables(0)["work_between"]
    assert told["batches"] == told["steps"] == 10
    assert sum(ns for cause, ns in told.items() if cause.startswith("data_")) < 0.1 * told["compute"] + told["host"]


def test_training_is_bit_identical(tmp_path: Path, forks: Forks) -> None:
    names = [f"{source}:sleeps" for source in SOURCES]
    recorded, plain = (
        {name: told["loss"] for name, told in run(forks, tmp_path / str(len(more)), *names, *more).items()}
        for more in ((), ("--plain",))
    )
    assert recorded == plain


@pytest.mark.parametrize(
    ("item", "samples"),
    [
        ("text", 0),
        (None, 0),
        (7, 0),
        ({}, 0),
        ([], 0),
        ((3, {"ids": [1, 2]}), 0),
        ([[[[[1.0]]]]], 0),
    ],
)
def test_an_item_without_an_array_is_not_a_batch(item: Any, samples: int) -> None:
    assert samples_of(item) == samples


def test_finds_the_samples_of_a_batch() -> None:
    import numpy
    import torch

    assert samples_of(torch.ones(8, 2)) == samples_of(numpy.ones((8, 2))) == 8
    assert samples_of([{"x": torch.ones(8, 2)}]) == samples_of((3, {"n": 3, "x": torch.ones(8)})) == 8
    assert samples_of(torch.tensor(1.0)) == 0


def test_counts_samples_of_mappings_that_are_not_dicts() -> None:
    """Such as the BatchEncoding of transformers 5.23, which its collators return."""
    import torch

    batch: UserDict[str, torch.Tensor] = UserDict({"input_ids": torch.ones(8, 2), "labels": torch.ones(8)})
    assert sample_count(batch) == 8


def test_an_object_that_fails_is_not_a_batch() -> None:
    class Fails:
        @property
        def shape(self) -> Any:
            raise RuntimeError("not now")

    assert samples_of(Fails()) == 0


def parts(*args: Any, receives: bool = True) -> dict[int, int]:
    return dict(split_source(*args, receives=receives))


def test_a_process_that_is_idle_does_not_hide_one_that_computes() -> None:
    from whyidle.ledger.causes import CAUSE

    split = parts(1000, 0, 0, 0, 0, [(1000, 0), (0, 0)])
    assert split[CAUSE["data_cpu"]] == 1000
    split = parts(1000, 0, 0, 0, 0, [(600, 400), (400, 200)])
    assert (split[CAUSE["data_cpu"]], split[CAUSE["data_queue"]]) == (500, 300)
    split = parts(1000, 10, 0, 0, 0, [(20, 0), (0, 0)])
    assert (split[CAUSE["data_cpu"]], split[CAUSE["data_handoff"]]) == (0, 10)


def test_a_loop_that_polls_a_queue_is_seldom_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings before calls that bring no batch take at most a hundredth of the time."""
    clock = [10**12]
    monkeypatch.setattr(source, "_now", lambda: clock[0])
    monkeypatch.setattr(source.SourceMeter, "_find", lambda meter: [])
    session = Session()
    meter = source.SourceMeter(session, receives=True)
    measured = 0
    for _ in range(100_000):  # a call each 10 µs, for a second
        clock[0] += 10_000
        if meter.can_afford():
            measured += 1
            meter.begin()
            meter.was_in_vain()
    assert 10 < measured * source._PLAIN_NS < 1_000_000_000 // source._IN_VAIN * 1.1
    clock[0] += 1_000_000_000
    assert meter.can_afford()


def test_an_interrupted_reading_does_not_hide_the_next_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The readings before a call in vain were slow because another program got the CPU."""
    clock, took = [10**12], [0]

    def find(meter: source.SourceMeter) -> list[Any]:
        clock[0] += took[0]
        return []

    monkeypatch.setattr(source, "_now", lambda: clock[0])
    monkeypatch.setattr(source.SourceMeter, "_find", find)
    meter = source.SourceMeter(Session(), receives=True)
    for ns in (10_000, 10_000_000):
        took[0] = ns
        clock[0] += 10**9
        meter.begin()
        meter.was_in_vain()
    assert meter.can_afford()

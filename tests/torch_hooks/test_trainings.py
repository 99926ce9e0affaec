"""Several trainings in one process: counted, and the time between them is outside the loop."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

whyidle = pytest.importorskip("whyidle")
torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from whyidle.ledger.reader import Ledger, parse_ledger  # noqa: E402
from whyidle.torch_hooks.attach import own_ledger  # noqa: E402
from whyidle.verdict.report import build_report  # noqa: E402

PAUSE = 0.3


@pytest.fixture(autouse=True)
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("WHYIDLE_DIR", str(tmp_path))
    monkeypatch.delenv("WHYIDLE", raising=False)
    assert whyidle.attach()
    yield
    whyidle.detach()


def ledger() -> Ledger:
    own = own_ledger()
    assert own is not None
    return parse_ledger(own[1] + b"", own[0], alive=True)


def batches() -> Any:
    return DataLoader(TensorDataset(torch.randn(80, 8), torch.randn(80, 1)), batch_size=16)


def train(model: Any, optimizer: Any) -> None:
    for x, y in batches():
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()


def test_three_trainings_are_counted_and_what_is_between_them_is_outside_the_loop() -> None:
    for rate in (0.1, 0.01, 0.001):
        model = nn.Linear(8, 1)
        train(model, torch.optim.SGD(model.parameters(), lr=rate))
        with torch.no_grad():
            for x, _ in batches():  # a final test
                model(x)
        if rate > 0.001:
            time.sleep(PAUSE)
    found = ledger()
    assert (found.trainings, found.steps) == (3, 15)
    between = found.cause_ns["between"] / 1e9
    assert between >= 2 * PAUSE
    report: Any = build_report((found.owner, found.run), [found], time.monotonic_ns())
    assert report["outside_seconds"]["between"] == pytest.approx(between)
    assert report["unaccounted_seconds"] == pytest.approx(0, abs=1e-6)
    assert report["seconds"]["host_blocked"] + report["seconds"]["host"] < report["wall_seconds"]
    assert all(step.wall_ns < PAUSE * 1e9 for step in found.ring)
    assert all(min(step.causes) >= 0 for step in found.ring)
    assert any("has trained 3 models" in remark for remark in report["remarks"])


def test_a_second_optimizer_of_the_same_parameters_is_the_same_training() -> None:
    model = nn.Linear(8, 1)
    for rate in (0.1, 0.01):
        train(model, torch.optim.SGD(model.parameters(), lr=rate))
        time.sleep(0.05)
    found = ledger()
    assert (found.trainings, found.cause_ns["between"]) == (1, 0)


def test_the_two_networks_of_a_gan_are_one_training() -> None:
    one, other = nn.Linear(8, 1), nn.Linear(8, 1)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (one, other)]
    for number, (x, y) in enumerate(batches()):
        for module, optimizer in zip((one, other), optimizers, strict=True):
            if module is one or number >= 3:
                (module(x) - y).square().mean().backward()
                optimizer.step()
    found = ledger()
    assert (found.trainings, found.steps, found.cause_ns["between"]) == (1, 5, 0)


def test_two_networks_of_which_one_is_trained_more_often_are_one_training() -> None:
    one, other = nn.Linear(8, 1), nn.Linear(8, 1)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (one, other)]
    for module, optimizer, times in ((one, optimizers[0], 1), (other, optimizers[1], 4)):
        for _ in range(times):
            train(module, optimizer)
    found = ledger()
    assert (found.trainings, found.cause_ns["between"]) == (1, 0)


def test_trainings_whose_optimizers_are_kept_are_counted_without_a_pause() -> None:
    kept = []
    for _ in range(3):
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(16):
            train(model, optimizer)
        kept.append(optimizer)
    found = ledger()
    assert (found.trainings, found.steps, found.cause_ns["between"]) == (3, 3 * 16 * 5, 0)


def test_two_networks_in_long_turns_are_one_training() -> None:
    """A policy and its value function, for example."""
    models = [nn.Linear(8, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for turn in range(4):
        for _ in range(80):
            models[turn % 2](torch.ones(4, 8)).sum().backward()
            optimizers[turn % 2].step()
    found = ledger()
    assert (found.trainings, found.steps, found.cause_ns["between"]) == (1, 320, 0)


def test_the_first_forward_pass_of_a_second_network_is_not_between_two_trainings() -> None:
    models = [nn.Linear(8, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for number in range(30):
        for model, optimizer in zip(models, optimizers, strict=True):
            if model is models[0] or number >= 20:
                if model is models[1] and number == 20:
                    time.sleep(1.1)  # it is compiled
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
    found = ledger()
    assert (found.trainings, found.steps, found.cause_ns["between"]) == (1, 30, 0)


def test_a_slow_batch_in_the_next_training_is_not_between_the_two() -> None:
    def steps(model: Any, optimizer: Any, number: int) -> None:
        for _ in range(number):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()

    models = [nn.Linear(8, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    steps(models[0], optimizers[0], 10)
    steps(models[1], optimizers[1], 2)
    time.sleep(1.1)
    steps(models[1], optimizers[1], 5)
    found = ledger()
    assert (found.trainings, found.steps, found.cause_ns["between"]) == (1, 17, 0)


def test_short_trainings_are_rounds_of_one_loop() -> None:
    """Clients of a federated training. Those before are few enough to be trainings."""
    for _ in range(10):
        model = nn.Linear(8, 1)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
        time.sleep(0.1)
    found = ledger()
    assert (found.trainings, found.steps) == (10, 50)
    assert 0.3 <= found.cause_ns["between"] / 1e9 < 0.5


def test_no_parameter_is_kept_alive() -> None:
    from whyidle.torch_hooks import attach

    model = nn.Linear(8, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    trained = attach._session.loop.trainings._trained
    assert len(trained) == 2
    del model
    assert not trained


def test_a_training_in_another_thread_does_not_change_the_steps_of_the_recorded_one() -> None:
    def steps(number: int, seconds: float) -> None:
        model = nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(number):
            model(torch.ones(64, 64)).sum().backward()
            optimizer.step()
            time.sleep(seconds)

    other = threading.Thread(target=steps, args=(300, 0.001))
    steps(10, 0.01)
    other.start()
    steps(90, 0.01)
    other.join()
    words = ledger().words
    assert (words["steps"], words["backwards"], words["faults"]) == ((100,), (100,), (0,))

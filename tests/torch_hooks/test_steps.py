"""The step detector, as a table of loops: what happens in one cycle -> how many steps that is."""

from __future__ import annotations

import pytest

from whyidle.torch_hooks.steps import Captured, StepDetector

# b: a backward pass; A, B: an optimizer's step; (…): inside a backward pass
LOOPS = {
    "plain": ("bA", 1),
    "accumulation": ("bbbbA", 1),
    "a subclass that calls super().step(): the hook fires twice": ("bAA", 1),
    "GAN: two optimizers in turn": ("bAbB", 1),
    "two optimizers after one backward": ("bAB", 1),
    "optimizer in backward: once per parameter": ("(AAA)", 1),
    "LBFGS: backward passes inside the step": ("bbbbbA", 1),
    "WGAN: five critic steps to one generator step": ("bAbAbAbAbAbB", 5),
    "a step without a backward pass": ("A", 0),
    "evaluation": ("", 0),
}


def count(loop: str, cycles: int) -> int:
    detector = StepDetector()
    steps = 0
    for event in loop * cycles:
        if event == "b":
            detector.backward_begins()
            steps += detector.backward_ends()
        elif event == "(":
            detector.backward_begins()
        elif event == ")":
            steps += detector.backward_ends()
        else:
            steps += detector.optimizer_stepped(ord(event))
    return steps


@pytest.mark.parametrize(("loop", "expected"), LOOPS.values(), ids=LOOPS.keys())
def test_counts_the_steps_of_a_cycle(loop: str, expected: int) -> None:
    assert count(loop, 10) == 10 * expected


# What CUDA graphs contain, in the order of their replays, and what runs beside them -> steps a cycle
REPLAYS = {
    "the whole step": (["bA"], 1),
    "two optimizers in one graph": (["bAbB"], 1),
    "a graph for the gradients, one for the optimizer": (["b", "A"], 1),
    "accumulation": (["b", "b", "bA"], 1),
    "a forward pass only": ([""], 0),
}


@pytest.mark.parametrize(("graphs", "expected"), REPLAYS.values(), ids=REPLAYS.keys())
def test_counts_the_steps_of_replays(graphs: list[str], expected: int) -> None:
    detector, steps = StepDetector(), 0
    for graph in graphs * 10:
        captured = Captured()
        captured.backwards = graph.count("b")
        captured.optimizers = [ord(event) for event in graph if event != "b"]
        steps += detector.replayed(captured)
    assert steps == 10 * expected


def test_a_replay_inside_a_backward_pass_belongs_to_it() -> None:
    detector, captured = StepDetector(), Captured()
    captured.backwards = 1
    for _ in range(10):
        detector.backward_begins()
        assert not detector.replayed(captured)
        assert not detector.backward_ends()
        assert detector.optimizer_stepped(1)


def test_a_loop_that_moves_on_to_another_optimizer_is_followed() -> None:
    detector = StepDetector()

    def cycle(optimizer: int) -> int:
        detector.backward_begins()
        detector.backward_ends()
        return detector.optimizer_stepped(optimizer)

    assert sum(cycle(1) for _ in range(10)) == 10
    assert sum(cycle(2) for _ in range(20)) == 20
    detector.forget(2)
    assert sum(cycle(optimizer) for optimizer in (3, 4) * 10) == 10  # a GAN in the next training


def test_an_optimizer_that_steps_after_each_pause_is_not_followed() -> None:
    detector, paused, steps = StepDetector(lambda: paused), False, 0
    for number in range(100):
        for optimizer in (1, 2) if number % 20 == 19 else (1,):
            paused = optimizer == 2
            detector.backward_begins()
            detector.backward_ends()
            steps += detector.optimizer_stepped(optimizer)
    assert steps == 100


# Loops with the letters above -> steps. The optimizer before may still exist.
OTHERS = {
    "one training after another": (10 * "bA" + 20 * "bB" + 20 * "bC", 50),
    "in turns": (10 * "bA" + 20 * "bB" + 20 * "bA", 50),
    "GAN whose first network is trained alone first": (10 * "bA" + 20 * "bAbB", 31),  # one too many
    "the other way round": (10 * "bA" + 20 * "bBbA", 31),
    "WGAN with many steps of the critic": (10 * (10 * "bA" + "bB"), 101),
    "blocks in turns": (4 * (20 * "bA" + 20 * "bB"), 160),
    "blocks in turns, of which one is short": (4 * (20 * "bA" + 4 * "bB"), 84),  # four too many
    "another optimizer joins": (10 * "bA" + 20 * "bAB", 30),
    "it steps first": (10 * "bA" + 20 * "bBA", 30),
}


@pytest.mark.parametrize(("loop", "expected"), OTHERS.values(), ids=OTHERS.keys())
def test_an_optimizer_that_comes_later_may_be_another_training(loop: str, expected: int) -> None:
    assert count(loop, 1) == expected


def test_a_nested_backward_pass_counts_once() -> None:
    detector = StepDetector()
    detector.backward_begins()
    detector.backward_begins()
    detector.optimizer_stepped(1)
    assert not detector.backward_ends()
    assert detector.backward_ends()


def test_the_users_own_steps_switch_the_detector_off() -> None:
    detector = StepDetector()
    detector.manual = True
    detector.backward_begins()
    detector.backward_ends()
    assert not detector.optimizer_stepped(1)


def test_an_update_ends_one_step_however_often_its_optimizers_step() -> None:
    detector = StepDetector()
    steps = 0
    for _ in range(10):
        detector.backward_begins()
        detector.backward_ends()
        detector.update_begins()  # Megatron's chained optimizer: an update for each of its optimizers, inside its own
        for optimizer in (1, 2, 2):
            detector.update_begins()
            assert not detector.optimizer_stepped(optimizer)
            assert not detector.update_ends()
        steps += detector.update_ends()
        detector.update_begins()  # an update that skips its step
        assert not detector.update_ends()
    assert steps == 10


def test_the_end_of_an_update_whose_begin_was_not_seen_changes_nothing() -> None:
    detector = StepDetector()
    assert not detector.update_ends()
    detector.backward_begins()
    detector.backward_ends()
    assert detector.optimizer_stepped(1)

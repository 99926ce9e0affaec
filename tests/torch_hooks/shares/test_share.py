"""`whyidle.share`: weights, equal shares while nothing is known, and real trainings of several ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support_forks import Forks
from torch import nn

import whyidle
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks.exchange.operations import Lost
from whyidle.torch_hooks.session import Session
from whyidle.torch_hooks.shares.plan import Pace, counts_of
from whyidle.torch_hooks.shares.share import (
    COMPARING,
    MEETING,
    NO_STORE,
    NO_TOTAL,
    NOT_RECORDED,
    ONE_RANK,
    Share,
    Shares,
)

EXAMPLE = Path(whyidle.__file__).parent / "examples" / "even_load.py"
LINE = re.compile(r"step (\d+) counts (\[.*?\]) loss (\S+) seconds \S+ ?(.*)")


def finished(work: Any) -> None:
    pass


# -- weights


@given(total=st.integers(1, 40), paces=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_the_gradient_is_that_of_the_mean_over_all_units(total: int, paces: list[int]) -> None:
    ranks, losses = len(paces), torch.arange(1.0, total + 1, dtype=torch.float64)
    each = averaged = start = 0.0
    for count in counts_of(total, ranks, paces):
        share = Share(count, int(start), total, ranks, "")
        mine = losses[int(start) : int(start) + count]
        each += float((share.weight * mine).sum()) / ranks  # frameworks divide by the number of ranks
        averaged += float(share.mean_weight * mine.mean()) / ranks if count else 0.0
        start += count
    assert each == pytest.approx(float(losses.mean()))
    assert averaged == pytest.approx(float(losses.mean()))


@pytest.mark.parametrize("counts", [(3, 3), (4, 2), (1, 5)])
def test_gradients_do_not_depend_on_the_split(counts: tuple[int, int]) -> None:
    torch.manual_seed(0)
    net, x, y = nn.Linear(8, 1).double(), torch.randn(6, 4, 8).double(), torch.randn(6, 4, 1).double()
    expected = torch.autograd.grad(nn.functional.mse_loss(net(x), y), list(net.parameters()))
    found, start = [torch.zeros_like(one) for one in expected], 0
    for count in counts:
        share = Share(count, start, 6, 2, "")
        for unit in range(start, start + count):
            loss = share.weight * nn.functional.mse_loss(net(x[unit]), y[unit])
            for total, one in zip(found, torch.autograd.grad(loss, list(net.parameters())), strict=True):
                total += one / 2
        start += count
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


# -- nothing is known, or nothing makes sense


@pytest.mark.parametrize("total", [None, "8", -1, 2.5, float("nan"), [], 1 + 1j])
def test_a_wrong_total_gives_nothing_and_says_why(total: Any) -> None:
    assert whyidle.share(total) == Share(0, 0, 0, 1, NO_TOTAL)


@pytest.mark.parametrize("total", [0, 1, 7, torch.tensor(5), True, 10**12])
def test_one_rank_has_all_units(total: Any) -> None:
    share = whyidle.share(total)
    assert (share.count, share.start, share.ranks, share.reason) == (int(total), 0, 1, ONE_RANK)
    assert share.weight == (1 / int(total) if total else 0.0)


def test_shares_are_equal_while_a_rank_is_not_recorded() -> None:
    found = [Shares(rank, (0, 1, 2), finished).share(8, None, False) for rank in range(3)]
    assert [(one.count, one.start) for one in found] == [(3, 0), (3, 3), (2, 6)]
    assert {one.reason for one in found} == {NOT_RECORDED}


def test_a_ledger_counts_the_units_of_a_rank() -> None:
    words, at = memoryview(bytearray(1 << 16)).cast("q"), WORD_AT["shared_units"][0]
    shares = Shares(0, (0, 1, 2), finished)
    assert [shares.share(8, words, False).count for _ in range(2)] == [3, 3]
    assert words[at] == 6
    assert shares.share(10**30, words, False).count > 10**29
    assert words[at] == 1 << 60


def test_shares_are_equal_without_a_store() -> None:
    class Alone:
        server = None

    shares = Shares(0, (0, 1), finished)
    shares.meet(Alone())  # pyright: ignore[reportArgumentType]
    assert shares.share(8, memoryview(bytearray(1 << 16)).cast("q"), False).reason == NO_STORE


def test_a_failure_gives_equal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        server = "127.0.0.1", 1
        groups = None

    shares = Shares(0, (0, 1), finished)
    monkeypatch.setattr("whyidle.torch_hooks.shares.meeting.CONNECT_SECONDS", 0.05)
    shares.meet(Broken())  # pyright: ignore[reportArgumentType]
    meeting = shares._meeting
    assert meeting is not None
    words = memoryview(bytearray(1 << 16)).cast("q")
    assert shares.share(8, words, False).reason == MEETING or meeting.failure
    meeting._thread.join(10)
    share = shares.share(8, words, False)
    assert (share.count, share.start) == (4, 0)
    assert share.reason.startswith("the ranks cannot be compared any more")
    shares.close()


def test_never_raises_into_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Session) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(Session, "find_group", broken)
    share = whyidle.share(8)
    assert share.count == 8
    assert "broken" in share.reason


class Network:
    """Stands for gloo between two ranks. A rank that is ``late`` is told of a round after the other one."""

    failure = ""

    def __init__(self, rank: int, sent: dict[int, dict[int, list[int]]]):
        self.operations = self
        self._rank, self._sent, self._begun = rank, sent, 0
        self.late = False

    def start(self, words: Any) -> Any:
        self._sent.setdefault(self._begun, {})[self._rank] = [*words]
        self._begun += 1
        return SimpleNamespace(number=self._begun - 1, words=None)

    def came_back(self, operation: Any) -> bool:
        if self.late:
            raise Lost("a rank stopped taking part")
        said = self._sent[operation.number]
        if len(said) == 2:
            operation.words = [min(both) for both in zip(*said.values(), strict=True)]
        return len(said) == 2

    def close(self, wait: bool = False) -> None: ...


@pytest.mark.parametrize("how", ["it waits too long", "no rank is recorded any more"])
def test_a_rank_that_gives_up_a_round_still_keeps_to_it_if_the_others_do(how: str) -> None:
    sent: dict[int, dict[int, list[int]]] = {}
    ranks = [Shares(rank, (0, 1), finished) for rank in range(2)]
    for rank, each in enumerate(ranks):
        each._meeting = Network(rank, sent)  # type: ignore[assignment]
        each.exchange = SimpleNamespace(groups=SimpleNamespace(slots=[]))  # type: ignore[assignment]
        each._meter.pace = lambda cost=rank + 1: Pace(100 * cost, 1)  # type: ignore[method-assign]
    words: memoryview | None = memoryview(bytearray(1 << 20)).cast("q")
    counts, given_up = [], 0
    for call in range(600):
        if 1 in sent and not given_up and ranks[0]._operation is not None:
            given_up = call
            ranks[0]._meeting.late = True  # type: ignore[union-attr]
            words = None if how != "it waits too long" else words
        ranks[0]._meeting.late = ranks[0]._meeting.late and call < given_up + 3  # type: ignore[union-attr]
        found = [each.share(16, words, False) for each in ranks]
        assert [found[0].count, sum(one.count for one in found)] == [found[1].start, 16]
        counts.append(found[0].count)
    assert given_up
    assert counts[-1] > 8


# -- real trainings


def train(forks: Forks, folder: Path, *words: str, ranks: int) -> list[tuple[list[int], float, str]]:
    """Counts, loss and reason, 20 steps at a time."""
    outcome, codes = forks.run((str(EXAMPLE), *words), folder, ranks, recorded=False)
    assert not any(codes), outcome.stderr
    found = [LINE.fullmatch(line) for line in outcome.stdout.splitlines()]
    return [(json.loads(one[2]), float(one[3]), one[4]) for one in found if one]


def given_back(counts: list[int]) -> float:
    """The share of the lost time that these counts give back if the last rank needs half as much again for each."""
    paces = [1.0] * (len(counts) - 1) + [1.5]
    total = sum(counts)
    equal, ideal = total / len(counts) * max(paces), total / sum(1 / pace for pace in paces)
    return (equal - max(count * pace for count, pace in zip(counts, paces, strict=True))) / (equal - ideal)


@pytest.mark.parametrize("framework", [(), ("--fsdp2",)], ids=["ddp", "fsdp2"])
def test_ranks_meet_and_share(tmp_path: Path, forks: Forks, framework: tuple[str, ...]) -> None:
    words = ("--steps", "60", "--total", "8", "--work", "0.003", *framework)
    found = train(forks, tmp_path, *words, ranks=2)
    assert len(found) == 3
    assert all(sum(counts) == 8 for counts, _, _ in found)
    assert found[-1][2] in ("", COMPARING)


@pytest.mark.alone
@pytest.mark.long
def test_a_slow_rank_gets_less_and_losses_stay_the_same(tmp_path: Path, forks: Forks) -> None:
    words = ("--steps", "120", "--work", "0.02", "--slow", "3", "--fsdp2")
    even = train(forks, tmp_path / "even", *words, "--equal", ranks=4)
    shared = train(forks, tmp_path / "shared", *words, ranks=4)
    assert {tuple(counts) for counts, _, _ in even} == {(8, 8, 8, 8)}
    assert all(sum(counts) == 32 for counts, _, _ in shared)
    assert given_back(shared[-1][0]) >= 0.7
    assert not shared[-1][2]
    assert [loss for _, loss, _ in shared] == pytest.approx([loss for _, loss, _ in even], rel=1e-4)

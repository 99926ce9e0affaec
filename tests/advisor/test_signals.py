"""`whyidle.signals()`: what a training learns about its rank and its run."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support_ledgers import Spec, ended, write

import whyidle
from whyidle.advisor.signals import Signals, signals
from whyidle.ledger.causes import CAUSE
from whyidle.ledger.layout import SEQUENCE, WORD_AT
from whyidle.ledger.writer import LedgerWriter

SLOW = Spec(world_size=1, steps=100, step={"compute": 0.05, "data_read": 0.04, "host": 0.01}, workers=1)
NOTHING = Signals()


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[LedgerWriter]:
    writer = write(str(tmp_path), SLOW)
    yield writer
    writer.close()


def ask(writer: LedgerWriter, since: Signals = NOTHING) -> Signals:
    return signals(lambda: (writer.path, writer.copy()), since)


def test_returns_shares_and_advice(rank: LedgerWriter) -> None:
    said = ask(rank)
    assert (said.reason, said.ranks, said.world_size, said.steps) == ("", 1, 1, 100)
    assert said.seconds >= 10  # it is alive
    assert said.causes["data_read"] * said.seconds == pytest.approx(4)
    assert sum(said.families.values()) == pytest.approx(1)
    assert said.run_families == said.families
    workers = said.find("data.workers")
    assert workers
    assert workers.settings == {"num_workers": 2}
    assert said.find("host.gc") is None
    assert pickle.loads(pickle.dumps(said)) == said  # one rank may send it to the others


def test_a_window_starts_at_the_earlier_answer(rank: LedgerWriter) -> None:
    before = ask(rank)
    rank.words[WORD_AT["cause_ns"][0] + CAUSE["data_cpu"]] += 3_000_000_000
    said = ask(rank, before)
    assert said.causes["data_cpu"] * said.seconds == pytest.approx(3)
    assert said.causes["data_read"] == 0
    assert said.steps == 0
    assert said.find("data.workers") is None  # no step has ended since


def test_includes_other_ranks_of_the_run_and_no_other_runs(tmp_path: Path, rank: LedgerWriter) -> None:
    idle = replace(SLOW, rank=1, step={"compute": 0.1})
    ended(tmp_path, idle, replace(idle, rank=2, run="other"), replace(idle, rank=3, attempt=1))
    (tmp_path / "bad.ledger").write_bytes(b"nonsense")
    said = ask(rank)
    assert said.ranks == 2
    assert said.families["storage"] * said.seconds == pytest.approx(4)
    assert said.run_families["storage"] * (said.seconds + 10) == pytest.approx(4)


def test_the_rank_stays_alive_for_other_readers(rank: LedgerWriter) -> None:
    """A process that opens and closes its own ledger would drop the lock."""
    ask(rank)
    code = "import sys; from whyidle.ledger.reader import read_ledger; print(read_ledger(sys.argv[1]).alive)"
    done = subprocess.run([sys.executable, "-c", code, rank.path], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_waits_for_an_unfinished_update_without_an_error(rank: LedgerWriter) -> None:
    rank.words[SEQUENCE] += 1
    assert ask(rank).reason == ""
    rank.words[SEQUENCE] += 1


def test_gives_a_reason_if_there_is_no_answer(tmp_path: Path, rank: LedgerWriter) -> None:
    assert "attach" in whyidle.signals().reason
    assert "cannot be read" in signals(lambda: (rank.path, b"nonsense")).reason
    assert "cannot be read" in signals(lambda: 1 / 0).reason  # pyright: ignore[reportArgumentType]
    young = write(str(tmp_path), replace(SLOW, rank=1, steps=0))
    assert "first step" in ask(young).reason
    young.close()
    assert ask(rank, replace(NOTHING, past={0: object()})).reason  # pyright: ignore[reportArgumentType]

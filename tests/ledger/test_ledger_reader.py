"""Ledgers are untrusted input: for any file in the directory, a reader says what is wrong and reads the others."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import support_ledgers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support_ledgers import DEADLINE_SECONDS, Child, Spec, children, ended, sealed, until

from whyidle.agent.ledgers import LedgerStore
from whyidle.ledger.causes import CAUSES
from whyidle.ledger.directory import MAX_LEDGERS, read_directory, reap, sentences
from whyidle.ledger.layout import HEAD_BYTES, LEDGER_BYTES, MAGIC, RING_STEPS, VERSION, WORD_AT
from whyidle.ledger.reader import LEDGER_REASONS, LedgerError, read_ledger
from whyidle.verdict.report import build_report, runs

STEPPING = Spec(steps=20, step={"compute": 0.04, "network": 0.01})


@pytest.fixture(scope="module")
def sound() -> Iterator[bytes]:
    """The bytes of a valid ledger."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(ended(directory, STEPPING)[0]).read_bytes()


def test_reads_what_was_written(tmp_path: Path) -> None:
    spec = Spec(rank=3, run="näme", world_size=8, attempt=2, steps=5, step={"compute": 0.2}, hooks={"step": "active"})
    with children(tmp_path, spec) as [child]:
        ledger = read_ledger(child.path, steps=True)
        assert (ledger.run, ledger.rank, ledger.world_size, ledger.attempt) == ("näme", 3, 8, 2)
        assert ledger.alive
        assert not ledger.died_mid_write
        assert ledger.cause_ns["compute"] == 1_000_000_000
        assert ledger.hook_states["step"] == "active"
        assert [step.number for step in ledger.ring] == [1, 2, 3, 4, 5]
        assert all(step.wall_ns == sum(step.causes) == 200_000_000 for step in ledger.ring)
        child.end()
        ledger = read_ledger(child.path)
        assert not ledger.alive
        assert ledger.ended == 1


def test_the_ring_keeps_the_last_steps_in_order(tmp_path: Path) -> None:
    written = RING_STEPS + 7
    [path] = ended(tmp_path, Spec(steps=written, step={"compute": 0.001}))
    assert [step.number for step in read_ledger(path, steps=True).ring] == list(range(9, written + 1))


# -- what is wrong with a file, and the reason under which it is counted


def _truncated(path: Path, sound: bytes) -> None:
    path.write_bytes(sound[:1000])


def _too_long(path: Path, sound: bytes) -> None:
    path.write_bytes(sound + b"\0")


def _empty(path: Path, sound: bytes) -> None:
    path.write_bytes(b"")


def _other_version(path: Path, sound: bytes) -> None:
    path.write_bytes(MAGIC + (VERSION + 1).to_bytes(8, "little") + sound[16:])


def _random_bytes(path: Path, sound: bytes) -> None:
    path.write_bytes(random.Random(7).randbytes(len(sound)))


def _symlink(path: Path, sound: bytes) -> None:
    target = path.with_suffix(".target")
    target.write_bytes(sound)
    path.symlink_to(target)


def _fifo(path: Path, sound: bytes) -> None:
    os.mkfifo(path)


def _directory(path: Path, sound: bytes) -> None:
    path.mkdir()


def _absurd(word: str, value: int) -> Callable[[Path, bytes], None]:
    def spoil(path: Path, sound: bytes) -> None:
        at = WORD_AT[word][0] * 8
        path.write_bytes(sealed(sound[:at] + value.to_bytes(8, "little", signed=True) + sound[at + 8 :]))

    return spoil


FAULTS: list[tuple[Callable[[Path, bytes], None], str]] = [
    (_truncated, "short"),
    (_too_long, "short"),
    (_empty, "short"),
    (_other_version, "version"),
    (_random_bytes, "foreign"),
    (_symlink, "not_regular"),
    (_fifo, "not_regular"),
    (_directory, "not_regular"),
    (_absurd("rank", -1), "nonsense"),
    (_absurd("rank", 1 << 40), "nonsense"),
    (_absurd("phase", 99), "nonsense"),
    (_absurd("steps", -5), "nonsense"),
    (_absurd("slot_latency_ns", -1), "nonsense"),
    (_absurd("slot_link", 1 << 40), "nonsense"),
    (_absurd("cause_ns", 1 << 60), "nonsense"),
    (_absurd("phase_since_ns", 1 << 60), "nonsense"),
]


@pytest.mark.ages
@pytest.mark.parametrize(("spoil", "reason"), FAULTS)
def test_a_bad_file_is_named_and_the_others_are_read(
    tmp_path: Path, sound: bytes, spoil: Callable[[Path, bytes], None], reason: str
) -> None:
    (tmp_path / "0-1-good.ledger").write_bytes(sound)
    bad = tmp_path / "0-2-bad.ledger"
    spoil(bad, sound)
    with pytest.raises(LedgerError) as raised:
        read_ledger(str(bad), steps=True)
    assert raised.value.reason == reason
    ledgers, errors = read_directory(str(tmp_path), steps=True)
    assert [ledger.words["steps"][0] for ledger in ledgers] == [20]
    assert [error.reason for error in errors] == [reason]


def test_the_name_of_a_bad_file_does_not_move_the_cursor(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2J\nb.ledger").touch()
    [problem] = read_directory(str(tmp_path))[1]
    assert "a�[2J�b.ledger" in problem.detail
    assert problem.detail.isprintable()


def test_names_a_file_without_read_permission(sound: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = Path(directory) / "0-1-secret.ledger"
        path.write_bytes(sound)
        path.chmod(0)
        root = os.geteuid() == 0
        try:
            if root:
                os.seteuid(65534)  # root may read everything
            with pytest.raises(LedgerError) as raised:
                read_ledger(str(path))
        finally:
            if root:
                os.seteuid(0)
        assert raised.value.reason == "denied"


def test_rejects_a_directory_that_is_a_file_or_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert [error.reason for error in read_directory(str(tmp_path / "file"))[1]] == ["directory"]
    assert read_directory(str(tmp_path / "absent")) == ([], [])


def test_reads_a_bounded_number_of_directory_entries(tmp_path: Path) -> None:
    for number in range(MAX_LEDGERS + 1):
        (tmp_path / f"{number}.ledger").touch()
    ledgers, errors = read_directory(str(tmp_path))
    assert not ledgers
    assert [error.reason for error in errors] == ["short"] * MAX_LEDGERS + ["too_many"]
    told = sentences(errors)
    assert len(told) == 2, "people want to know once that 1024 ledgers are short"
    assert told[0].startswith(f"{MAX_LEDGERS} ledgers have the same problem as this one: {tmp_path}/")
    assert sentences(errors[-4:]) == [error.detail for error in errors[-4:]], "a few problems are told one by one"


def test_reads_stale_ledgers_and_two_runs_in_one_directory(tmp_path: Path) -> None:
    ended(tmp_path, *(Spec(run="old", rank=rank, world_size=64, created=1 + rank) for rank in range(64)))
    with children(tmp_path, Spec(run="a"), Spec(run="b")):
        ledgers, problems = read_directory(str(tmp_path))
        assert not problems
        assert sorted(ledger.run for ledger in ledgers if ledger.alive) == ["a", "b"]
        assert len(ledgers) == 66


# -- a writer that dies, and one that never pauses

SCRIPT = """
    import json, sys
    from support_ledgers import Spec, write
    from whyidle.ledger.layout import WORD_AT
    from whyidle.ledger.layout import SEQUENCE

    ledger = write(sys.argv[1], Spec(**json.loads(sys.argv[2])[0]))
    words = ledger.words
    first, count = WORD_AT["cause_ns"]
    {body}
"""
STOPS_IN_A_FLUSH = """
    import os
    from whyidle.torch_hooks.books import Books
    from whyidle.torch_hooks.wait_codes import wait_code

    ledger.file.flush()
    pwrite, calls = os.pwrite, 0

    def stops(fd, what, at):
        global calls
        calls += 1
        written = pwrite(fd, what if calls <= WHOLE_WRITES else what[:8192], at)
        if calls > WHOLE_WRITES or calls == WHOLE_WRITES == ALL_BUT_THE_HEAD:
            print(ledger.path, flush=True)
            sys.stdin.read()
        return written

    os.pwrite = stops
    books, now = Books(words), words[WORD_AT["phase_since_ns"][0]]
    books.hold(0, (), whole=True)
    for number in range(1, NEW_STEPS + 1):
        words[WORD_AT["cause_ns"][0]] += 10
        books.charge_wait(wait_code(0), 10, 0, now, ())
        books.close_step(now + number * 20)
    ledger.file.flush()
"""
NEVER_PAUSES = """
    print(ledger.path, flush=True)
    number = 0
    while True:
        number += 1
        words[SEQUENCE] += 1
        for at in range(first, first + count):
            words[at] = number
        words[WORD_AT["steps"][0]] = number
        words[SEQUENCE] += 1
        ledger.file.flush()
"""


def _script(tmp_path: Path, body: str) -> Path:
    script = tmp_path / "child.py"
    here = f"import sys; sys.path.insert(0, {str(Path(support_ledgers.__file__).parent)!r})\n"
    script.write_text(here + textwrap.dedent(SCRIPT.format(body=body.strip())))
    return script


def _stops(tmp_path: Path, *, new_steps: int, after: int, in_the_head: bool) -> Path:
    """A writer that stops during a flush: after this many writes, or in the middle of the next one."""
    body = STOPS_IN_A_FLUSH.replace("NEW_STEPS", str(new_steps)).replace("WHOLE_WRITES", str(after))
    return _script(tmp_path, body.replace("ALL_BUT_THE_HEAD", "0" if in_the_head else str(after)))


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_reads_the_ledger_of_a_writer_blocked_between_two_writes(tmp_path: Path, after: int) -> None:
    """The state of its thread when it has released Python's lock, and training then blocks while it holds the lock."""
    script = _stops(tmp_path, new_steps=5, after=after, in_the_head=False)
    before = Spec(steps=RING_STEPS + 20, step={"compute": 0.04, "network": 0.01})
    with children(tmp_path / "ledgers", before, script=script) as [child]:
        ledger = read_ledger(child.path, steps=True)
        assert ledger.alive
        assert ledger.steps == RING_STEPS + 20
        # The ring has the differences of RING_STEPS entries, minus the five that are overwritten.
        assert [step.number for step in ledger.ring] == list(range(27, RING_STEPS + 21))
        assert all(step.wall_ns == sum(step.causes) == 50_000_000 for step in ledger.ring)
        assert ledger.first_whole_step == 27


def test_steps_that_overwrite_the_whole_ring_leave_the_head_readable(tmp_path: Path) -> None:
    script = _stops(tmp_path, new_steps=2 * RING_STEPS, after=1, in_the_head=False)
    with children(tmp_path / "ledgers", STEPPING, script=script) as [child]:
        ledger = read_ledger(child.path, steps=True)
        assert (ledger.steps, ledger.ring, ledger.first_whole_step) == (20, [], 21)


def test_reads_the_ledger_of_a_writer_killed_during_a_write(tmp_path: Path) -> None:
    directory = tmp_path / "ledgers"
    # The four writes before: the start, the steps, the waits, the snapshots.
    script = _stops(tmp_path, new_steps=1, after=4, in_the_head=True)
    with children(directory, STEPPING, script=script) as [child]:
        with pytest.raises(LedgerError) as raised:
            read_ledger(child.path)
        assert raised.value.reason == "torn"  # it is alive and may still finish
        child.process.send_signal(signal.SIGKILL)
        child.process.wait(DEADLINE_SECONDS)
        ledger = read_ledger(child.path)
        assert ledger.died_mid_write
        assert not ledger.alive
        assert ledger.words["steps"][0] in (20, 21)
        ledgers, errors = read_directory(str(directory))
        assert len(ledgers) == 1
        assert [error.reason for error in errors] == ["died_mid_write"]


def test_reads_are_never_torn_while_a_writer_writes_without_pause(tmp_path: Path) -> None:
    script = _script(tmp_path, NEVER_PAUSES.replace("\n    ", "\n").replace("\n", "\n    "))
    with children(tmp_path / "ledgers", Spec(), script=script) as [child]:
        seen = _updates_seen(child, 100)
    assert len(set(seen)) >= 100
    assert seen == sorted(seen)


def _updates_seen(child: Child, wanted: int) -> list[int]:
    """Reads until this many different updates were seen. Each copy must be from one update."""
    seen: list[int] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(set(seen)) < wanted and time.monotonic() < deadline:
        ledgers, errors = read_directory(os.path.dirname(child.path))
        assert all(error.reason == "torn" for error in errors)
        for ledger in ledgers:
            number = ledger.words["steps"][0]
            if number:  # the loop has begun
                assert ledger.words["cause_ns"] == (number,) * len(CAUSES)
                seen.append(number)
    return seen


# -- anything at all


@given(raw=st.binary(max_size=200))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes_raise_only_ledger_errors(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "0-1-x.ledger"
    for start in (b"", MAGIC, MAGIC + VERSION.to_bytes(8, "little")):
        path.write_bytes(start + raw)
        with pytest.raises(LedgerError) as raised:
            read_ledger(str(path), steps=True)
        assert raised.value.reason in LEDGER_REASONS


EDGES = st.sampled_from([time.monotonic_ns(), 1 << 61, 1 << 62])
WORDS_OF_INTEREST = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-2, 100), EDGES)
MUTATIONS = st.lists(st.tuples(st.integers(0, HEAD_BYTES // 8 - 1), WORDS_OF_INTEREST), min_size=1, max_size=6)


@given(mutations=MUTATIONS, cut=st.one_of(st.just(LEDGER_BYTES), st.integers(0, LEDGER_BYTES)), seal=st.booleans())
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_corrupt_ledger_stops_neither_agent_nor_report(
    tmp_path: Path, sound: bytes, mutations: list[tuple[int, int]], cut: int, seal: bool
) -> None:
    raw = bytearray(sound)
    for word, value in mutations:
        raw[8 * word : 8 * word + 8] = value.to_bytes(8, "little", signed=True)
    (tmp_path / "0-1-spoilt.ledger").write_bytes((sealed(raw) if seal else raw)[:cut])
    (tmp_path / "1-1-sound.ledger").write_bytes(sound)
    snapshot = LedgerStore(str(tmp_path), 1e12).look()
    assert snapshot.ranks
    ledgers, problems = read_directory(str(tmp_path), steps=True)
    for run in runs(ledgers):
        build_report(run, ledgers, time.monotonic_ns(), problems)


# -- removing ended ledgers


@pytest.mark.ages
def test_reap_removes_ended_and_half_made_ledgers_only(tmp_path: Path) -> None:
    with children(tmp_path, Spec(run="lives", idle=200.0)) as [child]:
        ended(tmp_path, Spec(run="old", idle=200.0), Spec(run="recent"))
        (tmp_path / "foreign.ledger").write_bytes(b"somebody else's" * 10)
        (tmp_path / "notes.txt").write_text("keep")
        half_made = tmp_path / ".0-1-x.new"
        half_made.touch()
        os.utime(half_made, (1, 1))
        assert reap(str(tmp_path), 100.0) == 2
        left = read_directory(str(tmp_path))[0]
        assert sorted(ledger.run for ledger in left) == ["lives", "recent"]
        assert os.path.exists(child.path)
        assert sorted(name for name in os.listdir(tmp_path) if not name[0].isdigit()) == ["foreign.ledger", "notes.txt"]


@pytest.mark.ages
def test_reap_removes_an_invalid_ledger_by_the_age_of_its_file(tmp_path: Path) -> None:
    for name in ("old", "young"):
        [path] = ended(tmp_path, Spec(run=name))
        with open(path, "r+b") as file:
            file.seek(WORD_AT["phase_since_ns"][0] * 8)
            file.write((time.monotonic_ns() + 10**15).to_bytes(8, "little"))
        os.rename(path, tmp_path / f"{name}.ledger")
    os.utime(tmp_path / "old.ledger", (1, 1))
    assert {error.reason for error in read_directory(str(tmp_path))[1]} == {"nonsense"}
    assert reap(str(tmp_path), 100.0) == 1
    assert os.listdir(tmp_path) == ["young.ledger"]


@pytest.mark.ages
def test_reap_removes_an_old_ledger_of_another_version_that_nobody_holds(tmp_path: Path) -> None:
    with children(tmp_path, Spec(run="lives")) as [child]:
        [path] = ended(tmp_path, Spec(run="ended"))
        for old in (child.path, path):
            with open(old, "r+b") as file:
                file.seek(8)
                file.write((VERSION + 1).to_bytes(8, "little"))
        assert {error.reason for error in read_directory(str(tmp_path))[1]} == {"version"}
        assert reap(str(tmp_path), 100.0) == 0, "both were written just now"
        os.utime(child.path, (1, 1))
        os.utime(path, (1, 1))
        assert reap(str(tmp_path), 100.0) == 1
        assert os.listdir(tmp_path) == [os.path.basename(child.path)]


def test_a_killed_rank_is_dead_at_once_and_keeps_its_last_values(tmp_path: Path) -> None:
    with children(tmp_path, STEPPING) as [child]:
        child.kill()
        ledger = until(lambda: read_ledger(child.path))
        assert not ledger.alive
        assert not ledger.ended
        assert ledger.words["steps"][0] == 20

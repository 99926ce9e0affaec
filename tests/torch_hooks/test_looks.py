"""Looks at the home stream: which count, and which find a device without work."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from support_ledgers import until

from whyidle.ledger.below import COPY
from whyidle.ledger.causes import PHASE, WORK_CAUSES
from whyidle.ledger.layout import WORD_AT
from whyidle.ledger.reader import Ledger, parse_ledger
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks import looks
from whyidle.torch_hooks.frames import NOWHERE, Call, Frames, Look
from whyidle.torch_hooks.looks import Looks
from whyidle.torch_hooks.machine import PhaseMachine
from whyidle.torch_hooks.thread_state import LOCK, RUNS
from whyidle.torch_hooks.threads import OwnThreads


class Rank:
    """A rank whose device is simulated by its answers."""

    def __init__(self, writer: LedgerWriter):
        self._writer = writer
        self.machine = PhaseMachine(writer.words, 0)
        self.machine.device = SimpleNamespace(dead=False, closed=False)  # type: ignore[assignment]
        self.machine.stepping = True
        self.backward = False
        self.looks = Looks(self.machine, lambda: self.backward)
        self.twice = False
        self.looks._random = SimpleNamespace(random=lambda: 0.0 if self.twice else 1.0)  # type: ignore[assignment]
        self.asked = 0
        self.now = self.looked = 10.0
        self.queued = 0.0
        self.looks._late._queue = lambda: round(self.queued * 1e9)
        self.oversleeps = 0.0
        self.answer: bool | Exception | None = True
        self.answers: list[bool] | None = None

    def empty(self) -> bool | None:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if self.answers is None else self.answers[self.asked - 1]

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.oversleeps

    def look(
        self,
        phase: str = "compute",
        answer: bool | Exception | None = True,
        late: float = 0.0,
        queued: float = 0.0,
        brief: bool = False,
    ) -> None:
        """``queued``: for how long the look waited for a CPU. ``late`` does not include that."""
        self.machine.words[self._phase_at] = PHASE[phase]
        self.machine.words[WORD_AT["phase_since_ns"][0]] += 1
        self.answer = answer
        due = self.now - late - queued
        self.looks.expect(round(due * 1e9), round((due - self.looked) * 1e9))
        self.looked = self.now
        self.queued += queued
        self.looks.look(self, brief)  # type: ignore[arg-type]

    def ends(self) -> Ledger:
        """The open interval ends."""
        self.machine.words[WORD_AT["phase_since_ns"][0]] += 1
        self.looks.settle()
        return parse_ledger(bytes(self._writer.words), "here", alive=True)

    @property
    def _phase_at(self) -> int:
        return WORD_AT["phase"][0]

    @property
    def line(self) -> tuple[str, int, int]:
        ledger = parse_ledger(bytes(self._writer.words), "here", alive=True)
        return ledger.strings["line"], ledger.line_looks, ledger.busy_looks

    @property
    def counted(self) -> tuple[int, int]:
        ledger = self.ends()
        return ledger.looks, ledger.empty_looks

    @property
    def in_host(self) -> int:
        return self.ends().words["empty_host_looks"][0]


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    strings = {"run": "r", "node": "n", "device": "sim:0", "uuid": ""}
    writer = LedgerWriter(str(tmp_path), strings, {"rank": 0, "world_size": 1, "device_index": 0})
    one = Rank(writer)
    monkeypatch.setattr(looks, "time", SimpleNamespace(monotonic_ns=lambda: round(one.now * 1e9), sleep=one.sleep))
    yield one
    writer.close()


@pytest.mark.parametrize(
    ("phase", "answer", "counted"),
    [
        ("compute", True, (1, 1)),
        ("eval", True, (1, 1)),
        ("compute", False, (1, 0)),
        ("data", True, (1, 0)),  # a bracket charges this time already
        ("host", True, (1, 0)),
        ("compute", None, (0, 0)),  # it could not be asked
    ],
)
def test_counts_a_look(rank: Rank, phase: str, answer: bool | None, counted: tuple[int, int]) -> None:
    rank.look(phase, answer)
    assert rank.counted == counted


@pytest.mark.parametrize(
    ("late", "counted"),
    [
        (0.0, (1, 1)),
        (sys.getswitchinterval() + 0.0002, (1, 1)),  # the training thread ran Python code
        (0.5 * sys.getswitchinterval(), (0, 0)),  # it did, and called torch; or it held the lock in a call
        (0.1, (1, 0)),  # it held the lock in a call, which may have waited for the device
    ],
)
def test_a_look_that_only_a_call_can_have_made_late_does_not_find_an_idle_device(
    rank: Rank, late: float, counted: tuple[int, int]
) -> None:
    rank.look(late=late)
    assert rank.counted == counted


def test_where_another_python_thread_computes_a_late_look_says_what_it_finds(rank: Rank) -> None:
    rank.looks._frames = cast(
        Any,
        SimpleNamespace(
            crowded_until_ns=1 << 62,
            call=lambda: None,
            idle_look=lambda *_: None,
            device_idle=lambda *_: None,
            device_answers=True,
        ),
    )
    rank.look("compute", True, late=0.1)
    rank.look("eval", False, late=0.1)
    assert rank.counted == (2, 1)


@pytest.mark.parametrize(("late", "long"), [(0.5 * sys.getswitchinterval(), False), (0.1, True)])
@pytest.mark.parametrize(
    ("kept", "answer", "counted"), [(True, True, (1, 1)), (True, False, (1, 0)), (False, True, None)]
)
def test_where_code_of_the_training_kept_the_lock_a_late_look_says_what_it_finds(
    rank: Rank, late: float, long: bool, kept: bool, answer: bool, counted: tuple[int, int] | None
) -> None:
    asked: list[tuple[bool, ...]] = []
    frames = SimpleNamespace(crowded_until_ns=0, kept_the_lock=lambda _: kept, device_idle=lambda *_: None)
    frames.call = lambda: Call(("train.py", 7), Look([], None, False, False, False) if kept else None)
    frames.idle_look = lambda *how: asked.append(how)
    rank.looks._frames = cast(Any, frames)
    rank.look("compute", answer, late=late)
    assert rank.counted == (counted or ((1, 0) if long else (0, 0)))
    assert asked == [(True, True, False)] * (kept and answer and not long)


def test_only_looks_at_an_idle_device_find_what_follows_an_evaluation(rank: Rank) -> None:
    found: list[bool] = []
    frame = sys._getframe()
    rank.looks._frames = cast(
        Any,
        SimpleNamespace(
            crowded_until_ns=0, stack=lambda: frame, idle_look=lambda *_: None, device_idle=lambda *_: None
        ),
    )
    rank.machine.after = cast(Any, SimpleNamespace(count=lambda frame, _: found.append(frame is not None)))
    for phase, answer in (("host", True), ("compute", True), ("compute", False), ("checkpoint", True)):
        rank.look(phase, answer)
    assert found == [True, True, False, False]


def test_counts_by_cause_in_which_the_device_has_no_work(rank: Rank) -> None:
    for phase, answer in (("compute", True), ("eval", True), ("eval", True), ("eval", False)):
        rank.now += 0.5
        rank.look(phase, answer)
    words = rank.ends().words
    by_cause = dict(zip(WORK_CAUSES, words["empty_by_ns"], strict=True))
    assert sum(by_cause.values()) == words["empty_ns"][0]
    assert by_cause["evaluation"] > by_cause["compute"] > 0


def test_a_wait_for_a_cpu_does_not_make_a_look_late(rank: Rank) -> None:
    rank.look(queued=0.002)
    rank.look(late=0.1, queued=0.002)
    assert rank.counted == (2, 1)


def test_late_looks_count_like_as_many_that_found_python_code(rank: Rank) -> None:
    """They may have been due in its last moments."""
    forced, held = sys.getswitchinterval() + 0.0002, 0.5 * sys.getswitchinterval()
    for late, counted in ((0.1, (1, 0)), (held, (1, 0)), (forced, (3, 2)), (held, (3, 2)), (forced, (5, 4))):
        rank.look(late=late)
        assert rank.counted == counted


@pytest.mark.parametrize(("wait", "step", "most"), [(0.003, 0.01, 0.15), (0.008, 0.015, 0.3), (0.05, 0.1, 0.05)])
def test_a_call_that_holds_the_lock_while_the_device_works_hardly_seems_idle(
    rank: Rank, wait: float, step: float, most: float
) -> None:
    """The device works all the time, and its stream is empty just after the wait."""
    for number in range(1000):
        due = (number + 0.5) / 1000 * step
        interval = sys.getswitchinterval()
        late = max(0.0, wait - due)
        rank.look("compute", late > 0, late if not interval <= late < interval + 0.001 else interval)
    looks, empty = rank.counted
    assert empty / looks < most


@pytest.mark.parametrize(("stepped", "counted"), [(True, (0, 0)), (False, (1, 1))])
def test_what_comes_after_the_last_step_is_not_in_the_loop(rank: Rank, stepped: bool, counted: tuple[int, int]) -> None:
    rank.look()
    rank.machine.stepped_ns = rank.machine.words[WORD_AT["phase_since_ns"][0]] if stepped else 0
    rank.looks.close()
    assert rank.counted == counted


@pytest.mark.parametrize(("turns", "counted"), [("data", 0), ("rollout", 1)])
def test_a_look_counts_in_what_its_interval_turns_out_to_be(rank: Rank, turns: str, counted: int) -> None:
    """As a wait for a queue: only what comes shows that it was a wait for a batch."""
    rank.look()
    assert parse_ledger(bytes(rank.machine.words), "here", alive=True).empty_looks == 0
    rank.machine.since = rank.machine.words[WORD_AT["phase_since_ns"][0]]
    rank.machine.was(PHASE[turns])
    assert rank.counted == (1, counted)


def test_only_a_full_look_stands_for_brief_ones(rank: Rank) -> None:
    """A brief look of which nothing tells where it was stands for itself."""
    found: list[tuple[Look | None, int]] = []
    frames = SimpleNamespace(
        crowded_until_ns=0,
        idle_look=lambda *_: None,
        device_idle=lambda _, look, ns: found.append((look, ns)),
        device_answers=True,
    )
    rank.looks._frames = cast(Any, frames)
    rank.machine.before = PHASE["host"]
    for phase, late, brief in (("host", 0.0, True), ("data", 0.003, True), ("host", 0.0, True), ("host", 0.0, False)):
        rank.now += 1
        rank.machine.words[WORD_AT["phase_since_ns"][0]] = round((rank.now - 0.001) * 1e9)
        rank.look(phase, late=late, brief=brief)
    empty_ns = rank.ends().words["empty_host_ns"][0]
    (first, own), (last, rest) = found
    assert (first, last) == (NOWHERE, None)
    assert own + rest == empty_ns
    assert rest > 1.9 * own


@pytest.mark.parametrize(
    ("before", "late", "open_for", "found"),
    [
        ("host", 0.003, 0.001, (1, 1)),
        ("host", 0.003, 0.004, (0, 0)),  # it was due in the wait for the batch, where the lock was held
        ("collective", 0.003, 0.001, (0, 0)),
        ("host", 0.0001, 0.00005, (1, 0)),  # to wake the thread takes as long
        ("host", 0.1, 0.001, (1, 0)),  # a call held the lock, and the thread is still at that line
    ],
)
def test_a_look_that_was_due_in_hosts_python_code_counts_there(
    rank: Rank, before: str, late: float, open_for: float, found: tuple[int, int]
) -> None:
    rank.machine.before, at = PHASE[before], WORD_AT["phase_since_ns"][0]
    rank.machine.words[at] = round((rank.now - open_for) * 1e9) - 1
    rank.look("data", late=late)
    ledger = rank.ends()
    assert (ledger.looks, ledger.words["empty_host_looks"][0]) == found
    assert ledger.empty_looks == 0


def test_looks_in_host_tell_when_the_device_has_no_work(rank: Rank) -> None:
    for answer, late, found in ((True, 0.0, 1), (False, 0.0, 1), (False, 0.5 * sys.getswitchinterval(), 2)):
        rank.look("host", answer, late)
        assert rank.in_host == found
    assert rank.counted == (3, 0)


@pytest.mark.parametrize(
    ("answers", "oversleeps", "counted"),
    [
        ([False, True], 0.0, (1, 1)),
        ([True, False], 0.0, (1, 0)),
        ([True, True], 0.1, (1, 0)),
    ],
)
def test_the_second_question_of_a_look_counts(
    rank: Rank, answers: list[bool], oversleeps: float, counted: tuple[int, int]
) -> None:
    rank.twice, rank.answers, rank.oversleeps = True, answers, oversleeps
    rank.look()
    assert (rank.asked, rank.counted) == (2, counted)


def test_a_look_that_a_call_has_made_late_asks_before_the_training_goes_on(rank: Rank) -> None:
    rank.twice, rank.answers = True, [True, False]
    frames = SimpleNamespace(crowded_until_ns=0, kept_the_lock=lambda _: True, device_idle=lambda *_: None)
    frames.call = lambda: Call(("train.py", 7), None)
    frames.idle_look = lambda *_: None
    rank.looks._frames = cast(Any, frames)
    rank.look(late=0.1)
    assert (rank.asked, rank.counted) == (1, (1, 1))


def test_what_has_kept_the_lock_is_seen_before_the_question_gives_it_up(rank: Rank) -> None:
    seen: list[int] = []
    frames = SimpleNamespace(crowded_until_ns=0, kept_the_lock=lambda _: True, device_idle=lambda *_: None)
    frames.call = lambda: seen.append(rank.asked) or Call(("train.py", 7), Look([], None, False, False, False))
    rank.looks._frames = cast(Any, frames)
    rank.look(late=0.1)
    assert (seen, rank.counted) == ([0], (1, 1))


def test_does_not_count_a_look_while_a_graph_is_launched(rank: Rank) -> None:
    rank.machine.replaying = True
    rank.look()
    assert (rank.asked, rank.counted) == (0, (0, 0))


def test_asks_nothing_during_a_capture(rank: Rank) -> None:
    rank.machine.pause()
    rank.look()
    assert (rank.asked, rank.counted) == (0, (0, 0))
    rank.machine.resume()
    rank.look()
    assert (rank.asked, rank.counted) == (1, (1, 1))


def test_a_device_that_cannot_be_asked_is_asked_once(rank: Rank) -> None:
    rank.look(answer=RuntimeError("no such question"))
    rank.look()
    assert (rank.asked, rank.counted) == (1, (0, 0))


def test_nothing_is_asked_before_the_first_step(rank: Rank) -> None:
    rank.machine.stepping = False
    rank.look()
    assert rank.asked == 0


def test_names_the_line_where_the_loop_is_while_its_device_has_work(rank: Rank) -> None:
    owner, lock, event = threading.get_ident(), threading.Lock(), threading.Event()

    def others_look(line: int, done: Callable[[], None]) -> None:
        until(lambda: line in {frame.f_lineno for frame, _ in traceback.walk_stack(sys._current_frames()[owner])})
        for _ in range(7):
            rank.look(answer=False)
        done()

    lock.acquire()
    line = sys._getframe().f_lineno + 2
    threading.Thread(target=others_look, args=(line, lock.release)).start()
    lock.acquire()
    assert rank.line == (f"{Path(__file__).name}:{line}", 7, 7)
    threading.Thread(target=others_look, args=(line + 3, event.set)).start()
    event.wait()  # a function of a library that waits: the line that calls it counts
    assert rank.line == (f"{Path(__file__).name}:{line}", 7, 14)


def test_no_line_counts_during_a_backward_pass(rank: Rank) -> None:
    rank.backward = True
    rank.look(answer=False)
    assert rank.line == ("", 0, 0)


def test_the_machine_switches_no_phase_during_a_capture(rank: Rank) -> None:
    machine = rank.machine
    machine.device = None
    old = machine.enter(PHASE["compile"])
    machine.pause()
    assert machine.enter(PHASE["data"]) == -1
    machine.resume()
    machine.leave(old)
    assert machine.enter(PHASE["data"]) != -1


@pytest.mark.parametrize(("phase", "kind"), [("compute", "outside"), ("host", "host")])
def test_names_what_the_loop_does_while_its_device_has_no_work(rank: Rank, phase: str, kind: str) -> None:
    owner, lock = threading.get_ident(), threading.Lock()
    rank.looks._frames = Frames(rank.machine, threading.get_native_id(), OwnThreads())

    def others_look() -> None:
        until(
            lambda: "waits" in {frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._current_frames()[owner])}
        )
        for _ in range(7):
            rank.look(phase)
        lock.release()

    def waits() -> None:
        lock.acquire()

    lock.acquire()
    threading.Thread(target=others_look).start()
    waits()
    ledger = rank.ends()
    assert [ledger.words[f"{one}_looks"][0] for one in (kind, "blocked")] == [7, 7]
    assert ledger.words["work_looks"][0] == (7 if phase == "compute" else 0)
    assert ledger.words[f"{kind}_looked_ns"][0] == ledger.words["looked_ns"][0] > 0
    assert ledger.strings[f"{kind}_line"].endswith(" waits -")


@pytest.mark.parametrize("last", [False, True])
def test_what_a_full_look_finds_stands_for_the_brief_ones_before_it(rank: Rank, last: bool) -> None:
    found: list[tuple[str, Look | None, int]] = []
    look = Look([], None, False, False, False)
    rank.looks._frames = cast(
        Any,
        SimpleNamespace(
            crowded_until_ns=0,
            idle_look=lambda *_: look,
            device_idle=lambda phase, look, ns: found.append((phase, look, ns)),
            device_answers=True,
        ),
    )
    at = iter(range(10, 20))
    compute, host = PHASE["compute"], PHASE["host"]
    for phase, brief in (("compute", True), ("compute", True), ("host", True), ("compute", last), ("host", True)):
        rank.now = next(at)
        rank.look(phase, brief=brief)
    ledger = rank.ends()
    assert (ledger.looks, ledger.empty_looks, ledger.words["empty_host_looks"][0]) == (5, 3, 2)
    assert found == ([] if last else [(compute, look, ledger.words["empty_ns"][0])])
    rank.looks.close()
    stand = ledger.words["empty_ns"][0], ledger.words["empty_host_ns"][0]
    assert sorted(found[-2:] if last else found[1:], key=lambda one: one[0]) == sorted(
        ([(compute, None, stand[0])] if last else []) + [(host, None, stand[1])]
    )


@pytest.mark.parametrize(
    ("states", "found"), [([RUNS, RUNS], (False, COPY)), ([RUNS, LOCK], (True, "")), ([LOCK], (True, ""))]
)
def test_what_goes_on_without_the_lock_is_on_the_cpu(rank: Rank, states: list[int], found: tuple[bool, str]) -> None:
    """A thread that launches is soon back for the lock."""
    owner, lock, seen = threading.get_ident(), threading.Lock(), list[Look | None]()
    frames = Frames(rank.machine, threading.get_native_id(), OwnThreads())
    left = iter(states)
    frames._task = cast(Any, SimpleNamespace(state=lambda: next(left), call=b"", tid=0))

    def others_look() -> None:
        until(lambda: sys._current_frames()[owner].f_code.co_name == "moves")
        seen.append(frames.idle_look(False))
        lock.release()

    def moves(batch: Any) -> None:
        torch.is_grad_enabled()
        batch.to()

    lock.acquire()
    threading.Thread(target=others_look).start()
    moves(SimpleNamespace(to=lock.acquire))
    [look] = seen
    assert look is not None
    assert (look.in_torch, look.stack[0].library) == found
    assert look.stack[0].function == "moves"

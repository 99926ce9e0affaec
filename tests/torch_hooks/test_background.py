"""A thread of whyidle never destroys what it used: torch's destructors let the interpreter end meanwhile, and then the
process aborts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks import background
from whyidle.torch_hooks.machine import PhaseMachine
from whyidle.torch_hooks.stuck import DeviceProbes
from whyidle.torch_hooks.watcher import Watcher

destroyed_in: list[str] = []


class Event:
    """Stands for an event of torch: notes in which thread it is destroyed."""

    def __del__(self) -> None:
        destroyed_in.append(threading.current_thread().name)


class Source:
    """Owns events, as the event source of an accelerator does."""

    def __init__(self) -> None:
        self.free = [Event(), Event()]

    def asker(self) -> object:
        return SimpleNamespace(passed=lambda event: True, empty=lambda: True, source=self)


@pytest.fixture(autouse=True)
def none_destroyed() -> None:
    background.release_ended()
    destroyed_in.clear()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[PhaseMachine]:
    strings = {"run": "r", "node": "n", "device": "sim:0", "uuid": ""}
    writer = LedgerWriter(str(tmp_path), strings, {"rank": 0, "world_size": 2, "device_index": 0})
    yield PhaseMachine(writer.words, 0)
    writer.close()


def test_the_watcher_that_ends_last_does_not_destroy_events(machine: PhaseMachine) -> None:
    watcher = Watcher(DeviceProbes(machine, Source().asker).probes(), "whyidle-device")  # type: ignore[arg-type]
    thread = watcher._thread
    assert thread is not None
    watcher.stop(wait=0)
    del watcher  # the thread has the last reference, except for the one in `background`
    thread.join(10)
    assert not thread.is_alive()
    assert not destroyed_in
    background.release_ended()
    assert destroyed_in == [threading.current_thread().name] * 2


def test_what_a_running_thread_uses_stays() -> None:
    go, source = threading.Event(), Source()

    def run(source: Source = source) -> None:
        go.wait(10)

    thread = background.start(run, "whyidle-test")
    del run, source
    background.release_ended()
    assert not destroyed_in
    go.set()
    thread.join(10)
    background.release_ended()
    assert destroyed_in == [threading.current_thread().name] * 2


def test_a_forked_child_does_not_destroy_what_the_parent_s_threads_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_of_parent", [])
    thread = background.start(Source().asker, "whyidle-test")  # type: ignore[arg-type]
    thread.join(10)  # to a child, all threads of its parent have ended
    background.after_fork_in_child()
    background.release_ended()
    assert not destroyed_in


def test_a_thread_that_cannot_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        background.start(Source().asker, "whyidle-test")  # type: ignore[arg-type]
    assert destroyed_in == [threading.current_thread().name] * 2

"""The wait for a batch, split by what the worker that owes it was doing; and the start of workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..causes import CAUSE, PHASE
from ..late_import import forget, when_imported
from ..machine import NOT_ENTERED
from ..patching import Patches
from ..tasks import OwnTask, TaskClock, split_data_wait, split_own_read

if TYPE_CHECKING:
    from types import ModuleType

    from ..books import Parts
    from ..session import Session

_START = PHASE["data_start"]
_ALL_HANDOFF: Parts = ((CAUSE["data_handoff"], -1),)
_CLOCKS = "_whyidle_clocks"
_MOST_CLOCKS = 64
"""Workers of one loader whose descriptors are kept open; those of the rest are not split."""


def install_dataloader(session: Session) -> Callable[[], None]:
    from torch.utils.data import dataloader

    patches = Patches()
    patches.replace(dataloader._BaseDataLoaderIter, "__next__", _around_next(session))
    patches.replace(dataloader.DataLoader, "__iter__", _around_iter(session))
    session.state("dataloader", "active")
    return patches.undo


def install_stateful_dataloader(session: Session) -> Callable[[], None]:
    """torchdata's loader has iterators of its own, with the same fields."""
    patches = Patches()

    def patch(module: ModuleType) -> None:
        patches.replace(module._StatefulBaseDataLoaderIter, "__next__", _around_next(session))
        patches.replace(module.StatefulDataLoader, "__iter__", _around_iter(session))
        session.state("stateful_dataloader", "active")

    when_imported("torchdata.stateful_dataloader.stateful_dataloader", patch)

    def undo() -> None:
        forget(patch)
        patches.undo()

    return undo


def _around_iter(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def __iter__(loader: Any) -> Any:
            machine = session.machine
            old = machine.enter_from_base(_START) if machine.stepping else NOT_ENTERED
            try:
                return original(loader)
            finally:
                machine.leave(old)

        return __iter__

    return make


def _around_next(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from torch import is_grad_enabled

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            old = session.batch_wanted()
            if old == NOT_ENTERED:
                return original(iterator)
            wait = _begin(session, iterator)
            try:
                batch = original(iterator)
            except BaseException:
                session.no_batch(old, _end(session, wait))
                raise
            session.batch_came(old, _end(session, wait), _samples(batch), is_grad_enabled())
            return batch

        return __next__

    return make


class _WorkerWait:
    """The wait for one worker."""

    __slots__ = ("before", "clock", "parent", "pin")

    def __init__(self, clock: TaskClock, pin: TaskClock | None):
        self.clock = clock
        self.pin = pin, (pin.read() if pin is not None else None)
        self.parent = time.thread_time_ns()
        self.before = clock.read()

    def parts(self) -> Parts | None:
        after = self.clock.read()
        handoff = time.thread_time_ns() - self.parent
        pin, pinned = self.pin
        if pin is not None and pinned is not None and (now := pin.read()) is not None:
            handoff += now.cpu - pinned.cpu
        return split_data_wait(self.before, after, handoff)


def _begin(session: Session, iterator: Any) -> _WorkerWait | OwnTask | None:
    """What to measure a wait by; None if the batch is there already, or nobody can be asked."""
    if not session.works("dataloader"):
        return None
    try:
        tasks = getattr(iterator, "_task_info", None)
        if tasks is None:
            return session.own_task()
        info = tasks.get(iterator._rcvd_idx)
        # One element: owed by that worker. Two: it came before its turn and lies ready.
        if info is None or len(info) != 1:
            return None
        clocks = iterator.__dict__.get(_CLOCKS)
        if clocks is None:
            clocks = iterator.__dict__[_CLOCKS] = {}
        worker = info[0]
        clock = clocks.get(worker)
        if clock is None:
            if len(clocks) >= _MOST_CLOCKS:
                return None
            clock = clocks[worker] = TaskClock(iterator._workers[worker].pid)
        return _WorkerWait(clock, _pin_clock(iterator, clocks))
    except Exception as error:  # the fence around the training
        session.fault("dataloader", error)
        return None


def _pin_clock(iterator: Any, clocks: dict[Any, TaskClock]) -> TaskClock | None:
    """The thread of this process that copies batches into pinned memory: a part of the handing over."""
    if not getattr(iterator, "_pin_memory", False):
        return None
    clock = clocks.get("pin")
    if clock is None:
        tid = getattr(getattr(iterator, "_pin_memory_thread", None), "native_id", None)
        if tid is None:
            return None
        clock = clocks["pin"] = TaskClock(os.getpid(), tid)
    return clock


def _end(session: Session, wait: _WorkerWait | OwnTask | None) -> Parts:
    try:
        if isinstance(wait, OwnTask):
            return split_own_read(*wait.spent())
        parts = wait.parts() if wait is not None else None
        return _ALL_HANDOFF if parts is None else parts
    except Exception as error:  # the fence around the training
        session.fault("dataloader", error)
        return _ALL_HANDOFF


def _samples(batch: Any) -> int:
    """The length of the first tensor's first dimension; 0 where that is not what a batch looks like."""
    try:
        for _ in range(3):
            if hasattr(batch, "size"):
                return batch.size(0)
            if isinstance(batch, dict):
                batch = next(iter(batch.values()))
            elif isinstance(batch, (list, tuple)):
                batch = batch[0]
            else:
                return 0
    except Exception:
        pass
    return 0

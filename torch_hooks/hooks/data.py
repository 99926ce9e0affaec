"""Records waits for batches, split by what the worker that owes the batch was doing, and the start of workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...ledger.causes import PHASE
from ...ledger.layout import WORD_AT
from ..dead_workers import around_check, note_of
from ..machine import NOT_ENTERED
from ..meters.data import OwnMeter, WorkerMeter
from ..patching import Patches
from .samples import pieces, sample_count

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_START = PHASE["data_start"]
_STARTS_AT, _ITERABLES_AT = WORD_AT["loader_starts"][0], WORD_AT["loader_iterables"][0]
_PREFETCH_AT, _PIECES_AT = WORD_AT["loader_prefetch"][0], WORD_AT["batch_pieces"][0]
_ITERABLE = 1
"""_DatasetKind.Iterable of torch/utils/data/dataloader.py"""
_METER = "_whyidle_meter"


def install_dataloader(session: Session) -> Callable[[], None]:
    from torch.utils.data import dataloader
    from torch.utils.data._utils import signal_handling

    patches = Patches()
    patches.replace(dataloader._BaseDataLoaderIter, "__next__", _around_next(session))
    patches.replace(dataloader.DataLoader, "__iter__", _around_iter(session))
    if hasattr(signal_handling, "_error_if_any_worker_fails"):
        patches.replace(signal_handling, "_error_if_any_worker_fails", around_check(session))
    session.state("dataloader", "active")
    return patches.undo


def install_stateful_dataloader(session: Session) -> Callable[[], None]:
    """Installs the hook on torchdata's loader, which has its own iterators with the same fields."""
    patches = Patches()

    def patch(module: ModuleType) -> None:
        patches.replace(module._StatefulBaseDataLoaderIter, "__next__", _around_next(session))
        patches.replace(module.StatefulDataLoader, "__iter__", _around_iter(session))
        session.state("stateful_dataloader", "active")

    patches.when_imported("torchdata.stateful_dataloader.stateful_dataloader", patch)

    return patches.undo


def _around_iter(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def __iter__(loader: Any) -> Any:
            machine = session.machine
            starts = machine.stepping and _starts_workers(loader)
            own = session.own_task() if starts else None
            old = machine.enter_from_base(_START) if starts else NOT_ENTERED
            try:
                return original(loader)
            finally:
                if own is not None and old != NOT_ENTERED:
                    own.spent()
                    machine.leave(old)

        return __iter__

    return make


def _starts_workers(loader: Any) -> bool:
    """A loader that keeps its workers starts them once. After that, its `__iter__` asks the sampler for batches."""
    return not (getattr(loader, "persistent_workers", False) and getattr(loader, "_iterator", None) is not None)


def _around_next(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from torch import is_grad_enabled

    loop = session.loop

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            old = loop.batch_wanted()
            if old == NOT_ENTERED:
                return original(iterator) if session.machine.mine() else _fetch(session, iterator, original)
            try:
                meter = iterator.__dict__.get(_METER) or _new_meter(session, iterator, is_grad_enabled())
                first = not iterator._num_yielded
                if time.monotonic_ns() >= meter.due_ns or first:
                    meter.begin(iterator)
                session.machine.fetching = meter
            except BaseException as error:  # the fence around the training
                if not session.absorbs("dataloader", error):
                    loop.no_batch(old, None)
                    raise
                meter, first = None, False
            try:
                batch = original(iterator)
                samples = sample_count(batch)
            except BaseException as error:  # also of a signal handler
                note_of(session, iterator, error)
                loop.no_batch(old, meter)
                raise
            loop.batch_came(old, meter, samples, is_grad_enabled())
            if first and session.writer is not None and is_grad_enabled():
                session.writer.words[_PIECES_AT] = pieces(batch)
            return batch

        return __next__

    return make


def _fetch(session: Session, iterator: Any, original: Callable[..., Any]) -> Any:
    """Another thread than the training one asks for a batch. The loop may wait for that thread (`SourceMeter`)."""
    loaders = session.loaders
    loaders.in_other_thread(iterator)
    try:
        return original(iterator)
    finally:
        loaders.in_other_thread(None)


def _new_meter(session: Session, iterator: Any, training: bool) -> WorkerMeter | OwnMeter:
    alone = getattr(iterator, "_task_info", None) is None
    workers = 0 if alone else len(getattr(iterator, "_workers", ()))
    loader = session.loaders.with_workers(workers, training=training)
    meter = OwnMeter(session.task, loader, session.threads) if alone else WorkerMeter(session.task, loader)
    iterator.__dict__[_METER] = meter
    if training and workers and session.writer is not None:
        session.writer.words[_PREFETCH_AT] = int(getattr(iterator, "_prefetch_factor", 0) or 0)
    if training and getattr(iterator, "_dataset_kind", None) == _ITERABLE:
        loader.add(_ITERABLES_AT, 1)
    if session.machine.stepping and not getattr(iterator, "_persistent_workers", False):
        loader.add(_STARTS_AT + 1, 1)
        if training:
            loader.add(_STARTS_AT, 1)
    return meter

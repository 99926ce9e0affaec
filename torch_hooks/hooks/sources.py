"""Records waits for batches that do not come from torch's loaders.

Libraries that have their own loaders are listed here. Loops that are written by hand often take batches from a thread
or a process that they started, through a queue or a future: such a wait counts as a wait for data if a tensor or an
array arrives. An item without an array is not a batch, and whyidle ignores it. A loop may also poll: see polls.py.

No library is imported here. Targets that a version does not have are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..handlers import pass_on
from ..machine import NOT_ENTERED
from ..meters.source import SourceMeter
from ..patching import NothingToHook, Patches
from ..polls import Polls
from ..returns import step_in
from .samples import sample_count

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_DEPTH = 3
_FIRST = 4
"""How many values of a tuple or a list are searched for a batch."""


class _Target(NamedTuple):
    module: str
    owner: str
    names: tuple[str, ...]


_LOADERS = (_Target("torchdata.nodes.loader", "LoaderIterator", ("__next__",)),)
"""Iterators of loaders: the first request for a batch begins the training, as with torch's loader."""

_MAKERS = (
    # A constructor of these calls __next__ too, so the call does not show that the training begins.
    _Target("nvidia.dali.plugin.pytorch", "DALIGenericIterator", ("__next__",)),
    _Target("nvidia.dali.plugin.pytorch", "DALIRaggedIterator", ("__next__",)),
    _Target("torchrl.data.replay_buffers.replay_buffers.base", "ReplayBuffer", ("sample",)),
)
"""Functions that return a batch, in a training or before it."""

_GENERATORS = (
    _Target("datasets.arrow_dataset", "Dataset", ("__iter__", "iter")),
    _Target("datasets.iterable_dataset", "IterableDataset", ("__iter__", "iter")),
)
"""Generator functions of datasets over which a loop may iterate without a loader, in a training or before it."""

_RECEIVERS = (
    _Target("queue", "Queue", ("get",)),
    _Target("multiprocessing.queues", "Queue", ("get",)),
    _Target("multiprocessing.queues", "SimpleQueue", ("get",)),
    _Target("concurrent.futures._base", "Future", ("result",)),
    _Target("multiprocessing.pool", "ApplyResult", ("get",)),
    _Target("multiprocessing.pool", "IMapIterator", ("next", "__next__")),
)
"""Functions that wait for the result of another thread or process."""

_QUESTIONS = {
    "empty": (True, tuple(target for target in _RECEIVERS if "Queue" in target.owner)),
    "qsize": (0, (_Target("queue", "Queue", ("qsize",)), _Target("multiprocessing.queues", "Queue", ("qsize",)))),
    "done": (False, (_Target("concurrent.futures._base", "Future", ("done",)),)),
    "ready": (False, (_Target("multiprocessing.pool", "ApplyResult", ("ready",)),)),
}
"""Functions that do not wait -> (their answer if nothing has come, where they are). A loop asks them repeatedly."""


def install(session: Session) -> Callable[[], None]:
    patches = Patches()
    polls = Polls(session, SourceMeter(session, receives=True))
    for targets, make in (
        (_LOADERS, _around_maker(session, begins=True)),
        (_MAKERS, _around_maker(session, begins=False)),
        (_GENERATORS, _around_generator(session)),
        (_RECEIVERS, _around_receiver(polls)),
        *(
            ([target._replace(names=(name,)) for target in targets], _around_question(polls, nothing))
            for name, (nothing, targets) in _QUESTIONS.items()
        ),
    ):
        for target in targets:
            patches.when_imported(target.module, _patch(patches, target, make))
    session.state("sources", "active")
    return patches.undo


def _patch(
    patches: Patches, target: _Target, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[ModuleType], None]:
    def patch(module: ModuleType) -> None:
        owner = getattr(module, target.owner, None)
        for name in target.names:
            try:
                patches.replace(owner, name, make)
            except NothingToHook:
                continue

    return patch


def _around_maker(session: Session, *, begins: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``begins``: whether the first call begins the training."""
    from torch import is_grad_enabled

    loop = session.loop
    meter = SourceMeter(session, receives=False)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            old = loop.batch_wanted(meter) if begins or session.machine.stepping else NOT_ENTERED
            if old == NOT_ENTERED:
                return original(*args, **kwargs)
            try:
                item = original(*args, **kwargs)
            except BaseException:
                loop.no_batch(old, meter)
                raise
            loop.batch_came(old, meter, sample_count(item), is_grad_enabled())
            if not begins:
                loop.others_may_follow()
            return item

        return call

    return make


def _around_generator(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from torch import is_grad_enabled

    loop = session.loop
    meter = SourceMeter(session, receives=False)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        batched = original.__name__ == "iter"

        def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            items = iter(original(*args, **kwargs))
            while True:
                old = loop.batch_wanted(meter) if session.machine.stepping else NOT_ENTERED
                try:
                    item = [next(items)]
                except BaseException as end:
                    loop.no_batch(old, meter)
                    if isinstance(end, StopIteration):
                        return
                    raise
                if old != NOT_ENTERED:
                    loop.batch_came(old, meter, sample_count(item[0]) if batched else 0, is_grad_enabled())
                    loop.others_may_follow()
                yield item.pop()  # so that no reference to the batch is left here

        return generate

    return make


def _around_receiver(polls: Polls) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from torch import is_grad_enabled

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            asks = polls.asks(type(args[0]) if args else object)
            try:
                item = original(*args, **kwargs)
            except BaseException:  # such as queue.Empty
                if asks:
                    polls.nothing_came()
                raise
            finally:
                # A future keeps its exception, whose traceback has this frame: the future must not be in it, as in
                # Python's own `result`.
                del args, kwargs
            if not asks:
                return item
            polls.came(samples_of(item) > 0, sample_count(item), is_grad_enabled())
            return item

        return call

    return make


def _around_question(polls: Polls, nothing: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``nothing``: the answer if nothing has come."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs)
            if answer == nothing and polls.asks(type(args[0]) if args else object):
                polls.nothing_came()
            return answer

        return ask

    return make


def samples_of(item: Any, depth: int = _DEPTH) -> int:
    """The size of the first dimension of the first tensor or array in an item; 0 if none is found."""
    try:
        shape = getattr(item, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else 0
        if not depth or isinstance(item, (str, bytes)):
            return 0
        if isinstance(item, Mapping):
            values: Any = item.values()
        elif isinstance(item, (list, tuple)):
            values = item
        else:
            return 0
        for value, _ in zip(values, range(_FIRST), strict=False):
            if found := samples_of(value, depth - 1):
                return found
    except Exception as error:
        pass_on(error)
    return 0


def is_batch(loaded: Any) -> bool:
    """Whether a file had samples: arrays, and not a checkpoint, whose entries are in dictionaries, or have names with
    dots."""
    try:
        if isinstance(loaded, Mapping) and (
            step_in(loaded) >= 0
            or any("." in str(name) or isinstance(value, Mapping) for name, value in loaded.items())
        ):
            return False
        return samples_of(loaded) > 0
    except Exception as error:
        pass_on(error)
        return False

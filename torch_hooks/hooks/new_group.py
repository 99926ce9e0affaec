"""Records how long the loop takes to make process groups. The recording of a rank begins when it first meets others.

To make one takes tens of ms (round trips to the store, connections, a barrier), and each leaves threads and open files
behind. whyidle's own groups (`exchange/side_group.py`) do not come past here.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...ledger.causes import PHASE
from ...ledger.layout import WORD_AT
from ..machine import NOT_ENTERED
from ..patching import NothingToHook, Patches
from ..tasks import queued

if TYPE_CHECKING:
    from ..session import Session

_MEET = ("torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed.device_mesh")
"""These modules of torch have `init_process_group`, or call it."""
_WORLD, _RANK, _METHOD = ("world_size", 3), ("rank", 4), ("init_method", 1)
"""Arguments of `init_process_group`, with their positions."""
_KEPT = 64
"""The most groups that are remembered until their first use."""
_SOME = 10
"""A loop that makes more groups goes on making them. Then the first wait in each is a part of making it."""
_HOST = PHASE["host"]
_GROUPS_AT, _NS_AT = WORD_AT["new_groups"][0], WORD_AT["new_group_ns"][0]


def install(session: Session) -> Callable[[], None]:
    """Patches the function that `new_group` calls, because other modules have imported `new_group` itself by name
    (torch/distributed/distributed_c10d.py, since 2.0)."""
    import torch.distributed as distributed

    if not distributed.is_available():
        raise NothingToHook("torch.distributed")
    from torch.distributed import distributed_c10d

    patches = Patches()

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def new_group(*args: Any, **kwargs: Any) -> Any:
            machine, old, begun, queued_ns = session.machine, NOT_ENTERED, 0, 0
            try:
                if "new_group" not in session.off and machine.mine():
                    begun, old, queued_ns = time.monotonic_ns(), machine.enter_from_base(_HOST), queued(session.task)
            except Exception as error:  # the fence around the training
                session.fault("new_group", error)
            made = None
            try:
                made = original(*args, **kwargs)
                return made
            finally:
                try:
                    if old != NOT_ENTERED and session.task is not None:
                        session.task.keep_queue(queued_ns, time.monotonic_ns() - begun)
                    machine.leave(old)
                    if begun and machine.stepping:
                        _count(session, time.monotonic_ns() - begun, made)
                except Exception as error:  # the fence around the training
                    session.fault("new_group", error)

        return new_group

    def meet(original: Callable[..., Any]) -> Callable[..., Any]:
        def init_process_group(*args: Any, **named: Any) -> Any:
            world, rank, method = (
                named.get(name, args[at] if at < len(args) else None) for name, at in (_WORLD, _RANK, _METHOD)
            )
            old = session.meeting_begins(
                world if type(world) is int else -1,
                rank if type(rank) is int else -1,
                method if type(method) is str else "",
            )
            try:
                return original(*args, **named)
            finally:
                session.machine.leave_wait(old)

        return init_process_group

    first, modules = distributed_c10d.init_process_group, (sys.modules.get(name) for name in _MEET)
    meeting = [one for one in modules if getattr(one, "init_process_group", None) is first]
    patches.replace_in(meeting, "init_process_group", meet)
    name = "_new_group_with_tag" if hasattr(distributed_c10d, "_new_group_with_tag") else "new_group"
    patches.replace(distributed_c10d, name, make)
    session.state("new_group", "active")
    return patches.undo


def _count(session: Session, ns: int, group: Any) -> None:
    """A group was made in ``ns``. ``group`` is not a process group if this rank is not a member."""
    if (writer := session.writer) is None:
        return
    writer.words[_GROUPS_AT] += 1
    writer.words[_NS_AT] += ns
    if writer.words[_GROUPS_AT] > _SOME and hasattr(group, "size") and len(session.made) < _KEPT:
        session.made[id(group)] = weakref.ref(group)

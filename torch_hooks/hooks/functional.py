"""Records functional collectives. They call the process group from C++, and wait in a separate operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...ledger.causes import COLLECTIVE_OP
from ..machine import NOT_ENTERED
from ..patching import Patches
from ..wait_codes import UNKNOWN_WAIT, WaitCode
from .collectives import size_of

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session


def install(session: Session) -> Callable[[], None]:
    """Installs the hook on functional collectives, which DTensor and tensor parallelism use.

    Which ranks take part is known only where their group is resolved. The tensor that is returned next leads from there
    to the wait.
    """
    patches = Patches()
    made = _Functional()

    def patch(module: ModuleType) -> None:
        patches.replace(module, "wait_tensor", _functional_wait(session))
        # The name of the function since 2025, and its name before.
        resolve = "_resolve_group" if hasattr(module, "_resolve_group") else "_resolve_group_name"
        patches.replace(module, resolve, _resolving(session, made))
        if hasattr(module, "_maybe_wrap_tensor"):
            patches.replace(module, "_maybe_wrap_tensor", _wrapping(session, made))
            for op, names in _FUNCTIONS.items():
                if function := next((name for name in names if hasattr(module, name)), None):
                    patches.replace(module, function, _naming(made, op))
        session.state("functional_wait", "active")

    patches.when_imported("torch.distributed._functional_collectives", patch)

    return patches.undo


class _Functional:
    """The functional collective that is being called."""

    __slots__ = ("code", "op", "ranks")

    def __init__(self) -> None:
        self.op = ""
        """The operation; empty if it is not known."""
        self.code: WaitCode = UNKNOWN_WAIT
        self.ranks = 1


_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("all_reduce",),
    "all_gather": ("all_gather_single", "all_gather_tensor"),
    "reduce_scatter": ("reduce_scatter_single", "reduce_scatter_tensor"),
    "all_to_all": ("all_to_all_single",),
    "broadcast": ("broadcast",),
}
"""Operation -> its function in torch.distributed._functional_collectives, and the name of that before 2026.

If the new name exists, only that is patched: the old function calls it and warns its caller, which must be the user's
code and not a patch.
"""


def _naming(made: _Functional, op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from ..compiling import is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling():
                made.op = op
            return original(*args, **kwargs)

        return call

    return make


def _functional_wait(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from ..compiling import is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def wait_tensor(tensor: Any) -> Any:
            if is_compiling():
                return original(tensor)
            old = NOT_ENTERED
            try:
                if session.asleep:
                    session.wake()
                exchange = session.exchange
                old = session.wait_begins(exchange.groups.code_of_tensor(tensor) if exchange else UNKNOWN_WAIT)
            except Exception as error:  # the fence around the training
                session.fault("functional_wait", error)
            try:
                return original(tensor)
            finally:
                session.machine.leave_wait(old)

        return wait_tensor

    return make


def _resolving(session: Session, made: _Functional) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from ..compiling import is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _resolve_group(*args: Any, **kwargs: Any) -> Any:
            group = original(*args, **kwargs)
            if not is_compiling():
                try:
                    resolved = _process_group(group)
                    code = made.code = session.code_of(resolved)
                    made.ranks = resolved.size()
                    if session.exchange is not None:
                        session.exchange.groups.resolved = code
                except Exception as error:  # the fence around the training
                    session.fault("functional_wait", error)
            return group

        return _resolve_group

    return make


def _wrapping(session: Session, made: _Functional) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from ..compiling import is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _maybe_wrap_tensor(tensor: Any) -> Any:
            if not is_compiling() and session.exchange is not None:
                try:
                    session.exchange.groups.wrapped(tensor)
                    if made.op:
                        whole = made.ranks if made.op == "reduce_scatter" else 1  # the result is one rank's part
                        session.count_collective(COLLECTIVE_OP[made.op], size_of(tensor) * whole, made.code)
                    made.op = ""
                except Exception as error:  # the fence around the training
                    session.fault("functional_wait", error)
            return original(tensor)

        return _maybe_wrap_tensor

    return make


def _process_group(group: Any) -> Any:
    if isinstance(group, str):
        from torch._C import _distributed_c10d as c10d

        return c10d._resolve_process_group(group)  # pyright: ignore[reportArgumentType] - a NewType of str
    return group

"""Sees where modules are put into evaluation mode, and where the training thread switches gradients off."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..patching import NothingToHook, Patches
from . import named_work

if TYPE_CHECKING:
    from ..session import Session

_DECORATED = "torch.utils._contextlib"
_MECHANICS = ("torch.distributed.", "torch.nn.", "torch._tensor")
"""Modules of torch that switch gradients off for work of their own, as FSDP for its gathers, and copies of tensors."""


def install(session: Session) -> Callable[[], None]:
    """Patches `Module.eval`, `Module.train`, and the context managers that switch gradients off.

    Calls of ``set_grad_enabled`` as a function are not seen: each step of torch's optimizers makes two.
    """
    from torch import inference_mode, is_grad_enabled, no_grad, set_grad_enabled
    from torch.nn import Module
    from torch.optim import swa_utils

    from ..compiling import is_compiling

    patches = Patches()
    loop = session.loop

    def make_eval(original: Callable[..., Any]) -> Callable[..., Any]:
        def eval(self: Any) -> Any:
            if not is_compiling():
                loop.mode_begins(self)
            return original(self)

        return eval

    def make_train(original: Callable[..., Any]) -> Callable[..., Any]:
        def train(self: Any, mode: bool = True) -> Any:  # it calls itself for each submodule
            found = original(self, mode)
            if mode and not is_compiling() and loop.evaluations.open:
                loop.mode_may_end()
            return found

        return train

    def make_enter(original: Callable[..., Any]) -> Callable[..., Any]:
        def __enter__(self: Any) -> Any:
            if is_compiling() or loop.evaluations.learned:
                return original(self)
            # The constructor of `set_grad_enabled` has set the mode already. Inside a custom autograd function, such as
            # a reentrant checkpoint, gradients are off before.
            before = self.prev if isinstance(self, set_grad_enabled) else is_grad_enabled()
            found = original(self)
            if before and not is_grad_enabled() and (user := _user()) is not None:
                loop.gradients_off((id(user.f_code), user.f_lasti))
            return found

        return __enter__

    def make_exit(original: Callable[..., Any]) -> Callable[..., Any]:
        def __exit__(self: Any, *raised: Any) -> Any:
            if is_compiling() or not (loop.evaluations.off or loop.evaluations.since):
                return original(self, *raised)
            found = original(self, *raised)
            if is_grad_enabled():
                loop.gradients_on()
            return found

        return __exit__

    def make_refresh(original: Callable[..., Any]) -> Callable[..., Any]:
        def update_bn(*args: Any, **kwargs: Any) -> Any:
            if not loop.refresh_begins():
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                loop.refreshing = False

        return update_bn

    patches.replace(Module, "eval", make_eval)
    patches.replace(Module, "train", make_train)
    with suppress(NothingToHook):
        patches.replace(swa_utils, "update_bn", make_refresh)
    for switch in (no_grad, inference_mode, set_grad_enabled):
        patches.replace(switch, "__enter__", make_enter)
        patches.replace(switch, "__exit__", make_exit)
    session.state("evaluation", "active")
    undo_named = named_work.install(session)

    def undo() -> None:
        undo_named()
        patches.undo()

    return undo


def _user() -> FrameType | None:
    """The frame that has called the patched method, or a decorated function; None if it belongs to _MECHANICS."""
    frame = sys._getframe(2)
    if frame.f_globals.get("__name__") == _DECORATED and frame.f_back is not None:
        frame = frame.f_back
    return None if str(frame.f_globals.get("__name__")).startswith(_MECHANICS) else frame

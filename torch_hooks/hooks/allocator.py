"""Records calls of `torch.cuda.empty_cache()` on an accelerator.

Each gives cached memory back with cudaFree. That waits for all work of the device, so the device is idle until the
call has ended. When torch's allocator does the same on its own, because memory is short, no function of Python shows
it: torch counts it (gpus/in_use.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...ledger.causes import PHASE
from ..machine import NOT_ENTERED
from ..patching import Patches

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_ALLOCATOR = PHASE["allocator"]
_PACKAGES = ("torch.cuda", "torch.accelerator")
"""Each has the function, and takes it from its module `memory`."""


def install(session: Session) -> Callable[[], None]:
    from ..compiling import is_compiling

    patches = Patches()

    def make(original: Callable[[], None]) -> Callable[[], None]:
        def empty_cache() -> None:
            if is_compiling():
                return original()
            machine = session.machine
            counts = machine.device is not None and machine.stepping and "allocator" not in session.off
            old = machine.enter_from_base(_ALLOCATOR) if counts else NOT_ENTERED
            try:
                original()
            finally:
                machine.leave(old)

        return empty_cache

    def patch(package: ModuleType) -> None:
        owners = (getattr(package, "memory", None), package)
        if found := [one for one in owners if callable(getattr(one, "empty_cache", None))]:
            patches.replace_in(found, "empty_cache", make)
            session.state("allocator", "active")

    for name in _PACKAGES:
        patches.when_imported(name, patch)
    return patches.undo

"""FSDP2's waits on CUDA: it lets the current stream wait for events, and never calls ``Work.wait``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..patching import Patches

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_MODULES = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",  # torch 2.4 and 2.5
)
_WAITS = ("wait_for_unshard", "post_backward", "finalize_backward")


def install_fsdp2(session: Session) -> Callable[[], None]:
    from torch.compiler import is_compiling

    patches = Patches()

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(group: Any, *args: Any, **kwargs: Any) -> Any:
            machine = session.machine
            # On a CPU rank these calls wait in Work.wait, where the rest of them is compute.
            if is_compiling() or machine.device is None:
                return original(group, *args, **kwargs)
            old = session.wait_in(_process_group(group))
            try:
                return original(group, *args, **kwargs)
            finally:
                machine.leave(old)

        return wait

    def _process_group(group: Any) -> Any:
        return getattr(group, "_all_gather_process_group", None) or group.mesh_info.mesh.get_group()

    def patch(module: ModuleType) -> None:
        group = getattr(module, "FSDPParamGroup", None)
        if group is None:
            return
        for name in _WAITS:
            if hasattr(group, name):
                patches.replace(group, name, make)
        session.state("fsdp2", "active")

    for name in _MODULES:
        patches.when_imported(name, patch)

    return patches.undo

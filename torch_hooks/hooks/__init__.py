"""The hooks, one file per target. Each ``install(session)`` returns a function that undoes it, or raises NothingToHook.

A hook checks its target before it patches it. Around the user's call, it only notifies the session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..patching import NothingToHook
from . import (
    allocator,
    backward,
    checkpoint,
    collectives,
    data,
    dynamo,
    evaluation,
    frameworks,
    fsdp,
    functional,
    graphs,
    host,
    loggers,
    new_group,
    sources,
)

if TYPE_CHECKING:
    from ..session import Session

Undo = Callable[[], None]

INSTALL: dict[str, Callable[[Session], Undo]] = {
    "step": backward.install_step,
    "backward": backward.install_backward,
    "ddp": backward.install_ddp,
    "dataloader": data.install_dataloader,
    "stateful_dataloader": data.install_stateful_dataloader,
    "sources": sources.install,
    "work_wait": collectives.install_work_wait,
    "functional_wait": functional.install,
    "process_group": collectives.install_process_group,
    "fsdp1": fsdp.install_fsdp1,
    "fsdp2": fsdp.install_fsdp2,
    "torch_save": checkpoint.install_torch_save,
    "dcp": checkpoint.install_dcp,
    "safetensors": checkpoint.install_safetensors,
    "fsync": checkpoint.install_fsync,
    "transformers": frameworks.install_transformers,
    "accelerate": frameworks.install_accelerate,
    "lightning": frameworks.install_lightning,
    "torchtitan": frameworks.install_torchtitan,
    "deepspeed": frameworks.install_deepspeed,
    "megatron": frameworks.install_megatron,
    "composer": frameworks.install_composer,
    "ray": frameworks.install_ray,
    "cuda_graphs": graphs.install,
    "evaluation": evaluation.install,
    "gc": host.install_gc,
    "compile": host.install_compile,
    "threads": host.install_threads,
    "new_group": new_group.install,
    "loggers": loggers.install,
    "allocator": allocator.install,
}
"""Hook -> the function that installs it. (`exchange` and `device_clock` start without one.)"""


def install_all(session: Session) -> list[Undo]:
    """Installs every hook, and sets its state in the session. Returns the functions that undo them. Never raises."""
    undo: list[Undo] = [dynamo.install_frames()]
    for hook, install in INSTALL.items():
        try:
            undo.append(install(session))
        except NothingToHook:
            session.state(hook, "absent")
        except Exception as error:  # the fence around the training
            session.fault(hook, error)
            session.state(hook, "failed")
    return undo

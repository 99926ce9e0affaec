"""The steps of environments that a loop of the user's own collects experience from: they are rollouts.

The steps are short and many. So on a CPU rank no phase is entered for them: what they and the policy between them take
is added up, and moves from compute to rollouts when the loop learns. Libraries that collect themselves are in
`named_work`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..patching import NothingToHook, Patches, owner_of

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

STEPS: tuple[tuple[str, str, str], ...] = (
    ("gymnasium.wrappers.common", "OrderEnforcing", "step"),  # around all environments that `make` returns
    ("gymnasium.wrappers.order_enforcing", "OrderEnforcing", "step"),  # before gymnasium 1.0
    ("gymnasium.vector.sync_vector_env", "SyncVectorEnv", "step"),
    ("gymnasium.vector.async_vector_env", "AsyncVectorEnv", "step_wait"),
    ("gym.wrappers.order_enforcing", "OrderEnforcing", "step"),
    ("gym.vector.vector_env", "VectorEnv", "step"),
)
BASES: tuple[tuple[str, str], ...] = (("gymnasium.core", "Env"), ("gym.core", "Env"))
"""Classes of environments. Their subclasses call `reset` of the base, by convention, with the seed."""
WRAPPERS: tuple[tuple[str, str], ...] = (
    ("gymnasium.core", "Wrapper"),
    ("gymnasium.vector.vector_env", "VectorWrapper"),
    ("gym.core", "Wrapper"),
)
"""Their `reset` is that of the environment inside, so their subclasses are met when they are made."""

Make = Callable[[Callable[..., Any]], Callable[..., Any]]


def install(session: Session, patches: Patches) -> None:
    """Times the steps of environments as soon as their modules are imported."""

    def make_step(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            acting = session.loop.evaluations.acting  # of this process: a fork gets another one
            began, result = 0, None
            try:
                began = acting.begins()
            except Exception as error:  # the fence around the training
                session.fault("evaluation", error)
            if not began:
                return original(self, *args, **kwargs)
            try:
                result = original(self, *args, **kwargs)
                return result
            finally:
                try:
                    acting.ends(began, result)
                except Exception as error:  # the fence around the training
                    session.fault("evaluation", error)

        return step

    def make_known(original: Callable[..., Any]) -> Callable[..., Any]:
        def known(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            try:
                _replace(patches, owner_of(type(self), "step"), "step", make_step)
            except Exception as error:  # the fence around the training
                session.fault("evaluation", error)
            return original(self, *args, **kwargs)

        return known

    for module, owner, method in STEPS:
        patches.when_imported(module, _patch(patches, owner, method, make_step))
    for module, owner in BASES:
        patches.when_imported(module, _patch(patches, owner, "reset", make_known))
    for module, owner in WRAPPERS:
        patches.when_imported(module, _patch(patches, owner, "__init__", make_known))


def _patch(patches: Patches, owner: str, method: str, make: Make) -> Callable[[ModuleType], None]:
    return lambda module: _replace(patches, getattr(module, owner, None), method, make)


def _replace(patches: Patches, owner: Any, method: str, make: Make) -> None:
    try:
        patches.replace(owner, method, make)
    except NothingToHook:
        return

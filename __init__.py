"""whyidle: why is my GPU idle? Records where every second of every rank of a training run goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .torch_hooks.attach import Share, attach, detach, own_ledger, phase, share, step

if TYPE_CHECKING:
    from .advisor.signals import Signals

__all__ = ["Share", "__version__", "attach", "detach", "phase", "share", "signals", "step"]
__version__ = "0.1.0"


def signals(since: Signals | None = None) -> Signals:
    """Return where the time of this rank and of its run went, and what to change. For training code that adapts itself.

    Covers the time since ``since``, an earlier answer. Without it, covers the time since the previous call, or since
    the first step. Never raises: an empty answer says why in its ``reason``. Ranks that call this at different moments
    get different answers. Where all ranks must agree, let one rank decide and broadcast its decision.
    """
    from .advisor.signals import signals as look  # imported here, so that `attach` alone does not pay for the import

    return look(own_ledger, since)

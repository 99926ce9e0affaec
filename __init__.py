"""whyidle: why is my GPU idle? Where every second of every rank of a training run went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .torch_hooks.attach import attach, detach, own_ledger, phase, step

if TYPE_CHECKING:
    from .advisor.signals import Signals

__all__ = ["__version__", "attach", "detach", "phase", "signals", "step"]
__version__ = "0.1.0"


def signals(since: Signals | None = None) -> Signals:
    """Where the time of this rank and of its run went lately, and what to change: for training code that adapts.

    Looks from ``since`` on, an earlier answer; by default from the last one on, or from the first step. Never raises:
    an answer with nothing in it says why in its ``reason``. Ranks that ask at different moments get different answers:
    let one decide for all where they must agree.
    """
    from .advisor.signals import signals as look  # here: who only attaches pays for none of it

    return look(own_ledger, since)

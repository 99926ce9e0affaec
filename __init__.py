"""whyidle: why is my GPU idle? Records where every second of every rank of a training run goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .torch_hooks.attach import attach, detach, own_ledger, phase, share, step

if TYPE_CHECKING:
    from .advisor.signals import Signals
    from .cli.cell import CellReport
    from .torch_hooks.shares.share import Share

__all__ = ["Share", "__version__", "attach", "detach", "phase", "report", "share", "signals", "step"]
__version__ = "0.1.0"


def signals(since: Signals | None = None) -> Signals:
    """Return where the time of this rank and of its run went, and what to change. For training code that adapts itself.

    Covers the time since ``since``, an earlier answer. Without it, covers the time since the previous call, or since
    the first step. Never raises: an empty answer says why in its ``reason``. Ranks that call this at different moments
    get different answers. Where all ranks must agree, let one rank decide and broadcast its decision.
    """
    from .advisor.signals import signals as look  # imported here, so that `attach` alone does not pay for the import

    return look(own_ledger, since)


def report() -> CellReport:
    """Return the report on this run. In a notebook, it draws itself below the cell; elsewhere, print it.

    Has the ranks of this run whose ledgers are on this node. Never raises: without a ledger, the report says why.
    """
    from .cli.cell import report as look  # imported here, so that `attach` alone does not pay for the import

    return look(own_ledger)


def __getattr__(name: str) -> object:
    if name == "Share":
        from .torch_hooks.shares.share import Share

        return Share
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: object) -> None:
    """Start recording: ``%load_ext whyidle`` in a notebook calls this."""
    attach()


def unload_ipython_extension(shell: object) -> None:
    """End the recording: ``%unload_ext whyidle`` calls this."""
    detach()

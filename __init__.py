"""whyidle: why is my GPU idle? Where every second of every rank of a training run went."""

from .torch_hooks.attach import attach, detach, phase, step

__all__ = ["__version__", "attach", "detach", "phase", "step"]
__version__ = "0.1.0"

"""Modes of torch and CUDA in which programs are looked into, and which make each step slower while they are on."""

from __future__ import annotations

MODES: tuple[str, ...] = ("anomaly", "profiler", "blocking")
"""Only append, and raise :data:`layout.VERSION`. `anomaly`: torch.autograd.set_detect_anomaly; `profiler`: one of
torch; `blocking`: CUDA_LAUNCH_BLOCKING=1."""

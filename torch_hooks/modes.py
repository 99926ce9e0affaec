"""Counts looks at the loop by the modes of torch and CUDA that are on: see `ledger.modes`."""

from __future__ import annotations

import os
import sys

from ..ledger.layout import WORD_AT
from ..ledger.modes import MODES

_AT = [WORD_AT["mode_looks"][0] + index for index in range(len(MODES))]
# Read once, like CUDA does.
_BLOCKING = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"


def count(words: memoryview[int]) -> None:
    """The modes that are on now, for all threads. torch keeps both of its flags for the whole process."""
    anomaly = getattr(sys.modules.get("torch"), "is_anomaly_enabled", None)
    profiles = getattr(sys.modules.get("torch.autograd.profiler"), "_is_profiler_enabled", False)
    for at, on in zip(_AT, (anomaly is not None and anomaly(), profiles, _BLOCKING), strict=True):
        words[at] += bool(on)

"""The messages that whyidle logs to stderr in a training process."""

from __future__ import annotations

import os
import sys


def debug() -> bool:
    return os.environ.get("WHYIDLE_DEBUG") == "1"


def say(sentence: str) -> None:
    """Logs one line to stderr. Never raises if stderr is closed."""
    try:
        print(f"whyidle: {sentence}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        pass

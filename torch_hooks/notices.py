"""What whyidle says on stderr in a training process."""

from __future__ import annotations

import os
import sys


def debug() -> bool:
    return os.environ.get("WHYIDLE_DEBUG") == "1"


def say(sentence: str) -> None:
    """One line to the user, where it disturbs least."""
    try:
        print(f"whyidle: {sentence}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        pass

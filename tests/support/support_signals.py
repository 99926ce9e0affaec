"""Commands that start with ignored signals, like those of `nohup` or of a shell's `&`."""

from __future__ import annotations

import signal


def ignoring(*numbers: signal.Signals) -> list[str]:
    """The prefix that starts a command with these signals ignored."""
    names = " ".join(number.name.removeprefix("SIG") for number in numbers)
    return ["sh", "-c", f'trap "" {names}; exec "$@"', "sh"]

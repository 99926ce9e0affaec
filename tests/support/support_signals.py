"""Commands that are started with signals ignored, as by `nohup` or by a shell's `&`."""

from __future__ import annotations

import signal


def ignoring(*numbers: signal.Signals) -> list[str]:
    """The words in front of a command that starts with these signals ignored."""
    names = " ".join(number.name.removeprefix("SIG") for number in numbers)
    return ["sh", "-c", f'trap "" {names}; exec "$@"', "sh"]

"""Signals that ask a command to stop, remembered until it looks: nothing may hit it in the middle of cleaning up."""

from __future__ import annotations

import signal


class Stopped(Exception):
    """By a signal."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status, as a shell has it."""
        return 128 + self.number


class StopSignals:
    """Remembers the first signal that asks us to stop.

    What was ignored from the start stays so: under `nohup` a command outlives its terminal, and Ctrl-C is not for what
    a script put in the background. Only SIGTERM always ends it.
    """

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._received)

    def _received(self, number: int, frame: object) -> None:
        self.number = self.number or number

    def check(self) -> None:
        """Raises Stopped."""
        if self.number:
            raise Stopped(self.number)

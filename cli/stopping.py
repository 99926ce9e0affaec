"""Remembers signals that ask a command to stop until the command checks, so that they cannot interrupt its cleanup."""

from __future__ import annotations

import signal


class Stopped(Exception):
    """A signal asked the command to stop."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status, as a shell reports it: 128 + the number of the signal."""
        return 128 + self.number


class StopSignals:
    """Remembers the first signal that asks us to stop.

    A signal that was ignored from the start stays ignored. So a command under `nohup` outlives its terminal, and Ctrl-C
    does not stop a command that a script started in the background. Only SIGTERM always counts.
    """

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._received)

    def _received(self, number: int, frame: object) -> None:
        self.number = self.number or number

    def check(self) -> None:
        """Raises Stopped if a signal has arrived."""
        if self.number:
            raise Stopped(self.number)

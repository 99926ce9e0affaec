"""Where one training step ends: a detector that counts optimizer steps as the loop means them.

An optimizer's post-step hook fires twice for a subclass that calls ``super().step()``, once per parameter for an
optimizer that runs in backward, and once per optimizer in a GAN. A step is counted when

- a backward pass has finished since the last boundary,
- the optimizer is the one that began the cycle (a GAN's discriminator, say), and
- no backward pass is running (else it is counted at that pass's end).
"""

from __future__ import annotations

COMPILED = -1
"""Stands for all optimizers whose steps are inside compiled graphs."""

_STALE_AFTER = 8
"""An optimizer that steps this often without the cycle's first one takes its place: the loop has moved on."""


class StepDetector:
    """Says at which calls a step ends. Optimizers are known by ``id``: holding them would hold their tensors."""

    __slots__ = ("_backwards", "_depth", "_due", "_first", "_others", "manual")

    def __init__(self) -> None:
        self.manual = False
        """The user calls ``whyidle.step()``: optimizers are no longer asked."""
        self._depth = 0
        self._backwards = 0
        self._due = False
        self._first = 0
        self._others: dict[int, int] = {}

    @property
    def inside_backward(self) -> bool:
        return self._depth > 0

    def backward_begins(self) -> bool:
        """-> whether it does so inside another one."""
        self._depth += 1
        return self._depth > 1

    def backward_ends(self) -> bool:
        """-> whether a step ends here, because its optimizer ran inside this backward pass."""
        self._depth = max(0, self._depth - 1)
        if self._depth:
            return False
        self._backwards += 1
        due, self._due = self._due, False
        return due and self._close()

    def optimizer_stepped(self, optimizer: int) -> bool:
        """-> whether a step ends here."""
        if self.manual:
            return False
        if self._depth:
            self._due = True
            return False
        if not self._backwards:
            return False
        if not self._first or (self._first == COMPILED != optimizer):
            # Whether a compiled one still exists, nobody says: one that can be seen goes before.
            self._first = optimizer
        if optimizer != self._first:
            times = self._others[optimizer] = self._others.get(optimizer, 0) + 1
            if times < _STALE_AFTER:
                return False
            self._first = optimizer
        return self._close()

    def forget(self, optimizer: int) -> None:
        """That optimizer is gone: whichever steps next begins the cycle."""
        if optimizer == self._first:
            self._first = 0
        self._others.pop(optimizer, None)

    def _close(self) -> bool:
        if self.manual:
            return False
        self._backwards = 0
        self._others.clear()
        return True

"""Detects where a training step ends, from the optimizer's steps.

An optimizer's post-step hook runs twice for a subclass that calls ``super().step()``, once per parameter for an
optimizer that runs in backward, and once per optimizer in a GAN. A step is counted when

- a backward pass has finished since the last boundary,
- the optimizer is the one that began the cycle (for example a GAN's discriminator), and
- no backward pass is running. If one is running, the step is counted when it ends.

The next training in a process has another optimizer, and the one before it may still exist. So a new optimizer takes
the place of one that has made many steps alone, unless that one comes back.

An engine may update its parameters around the steps of torch's optimizers, one per part of them. If its hook says where
the update begins and ends, the step is counted at the end.
"""

from __future__ import annotations

from collections.abc import Callable

COMPILED = -1
"""Stands for all optimizers whose steps are inside compiled graphs."""
NEVER = 1 << 62
"""A step or a time (ns) that never comes."""

_STALE_AFTER = 8
"""An optimizer that steps this often while the first one of the cycle does not step becomes the first one. If that one
has ended this many steps alone before, the other one does not have to wait."""


class Captured:
    """The backward passes and optimizer steps that a CUDA graph contains."""

    __slots__ = ("backwards", "optimizers")

    def __init__(self) -> None:
        self.backwards = 0
        self.optimizers: list[int] = []
        """Optimizers by ``id``, in the order of their steps."""


class StepDetector:
    """Decides at which calls a step ends. It knows optimizers by ``id``: references would keep their tensors alive."""

    __slots__ = (
        "_backwards",
        "_before",
        "_due",
        "_earlier",
        "_first",
        "_others",
        "_paused",
        "_returned",
        "_stepped",
        "_updates",
        "alone",
        "depth",
        "manual",
        "replaced",
        "turns",
    )

    def __init__(self, paused: Callable[[], bool] = lambda: False) -> None:
        """``paused``: whether there was a long pause before the step of an optimizer that is another one than usual.
        It may be a step that is made now and then, such as one after each validation."""
        self.manual = False
        """Whether the user calls ``whyidle.step()``. Optimizer steps are then ignored."""
        self.depth = 0
        """How many backward passes are running, each inside the one before."""
        self.replaced = False
        """Whether the optimizer before the one that begins a cycle still exists, as far as it is known."""
        self.alone = 0
        """How many steps the one that begins a cycle has ended since another one stepped after a backward pass."""
        self.turns = False
        """Whether the one that begins a cycle has begun cycles before, and another one since. The caller resets it."""
        self._paused = paused
        self._earlier: set[int] = set()  # optimizers that have begun cycles before
        self._before = 0  # the optimizer that another one has replaced at its first step
        self._returned = False  # whether such an optimizer has come back
        self._backwards = 0
        self._due = False
        self._updates = 0  # how many updates of engines are running, each inside the one before
        self._stepped = False  # whether a step ends with the running update
        self._first = 0
        self._others: dict[int, int] = {}

    def backward_begins(self) -> bool:
        """Returns whether it begins inside another backward pass."""
        self.depth += 1
        return self.depth > 1

    def backward_ends(self) -> bool:
        """Returns whether a step ends here, because its optimizer ran inside this backward pass."""
        if self.depth > 1:
            self.depth -= 1
            return False
        self.depth = 0
        self._backwards += 1
        if not self._due:
            return False
        self._due = False
        if self.manual:
            return False
        self._backwards = 0
        self._others.clear()
        return True

    def optimizer_stepped(self, optimizer: int) -> bool:
        """Returns whether a step ends here."""
        if self.manual:
            return False
        if self.depth:
            self._due = True
            return False
        if not self._backwards:
            return False
        if optimizer != self._first and not self._becomes_first(optimizer):
            return False
        self._backwards = 0
        self.alone += 1
        if self._others:
            self._others.clear()
        if self._updates:
            self._stepped = True
            return False
        return True

    def replayed(self, captured: Captured) -> bool:
        """A graph has been replayed. Returns whether a step ends here."""
        if self.depth:  # it is a part of a backward pass that is seen
            return False
        self._backwards += captured.backwards
        ended = [self.optimizer_stepped(optimizer) for optimizer in captured.optimizers]
        return any(ended)

    def update_begins(self) -> None:
        """An engine begins to update its parameters."""
        self._updates += 1

    def update_ends(self) -> bool:
        """Returns whether a step ends here."""
        self._updates = max(0, self._updates - 1)  # the hook may have been installed inside an update
        if self._updates or not self._stepped:
            return False
        self._stepped = False
        return not self.manual

    def _becomes_first(self, optimizer: int) -> bool:
        """Whether an optimizer takes the place of the one that begins a cycle."""
        # Nothing tells whether a compiled optimizer still exists, so one that is visible takes precedence.
        alone, self.alone = self.alone, 0
        if self._first and self._first != COMPILED:
            times = self._others[optimizer] = self._others.get(optimizer, 0) + 1
            stale = times >= _STALE_AFTER
            # Two networks in turns, of which one was trained alone first.
            back = optimizer == self._before and alone < _STALE_AFTER
            early = alone >= _STALE_AFTER and not (self._returned or self._paused())
            if not (stale or back or early):
                return False
            self._returned = back or (self._returned and not stale)
            self._before = 0 if stale or back else self._first
            self.turns = optimizer in self._earlier
            self._earlier.add(self._first)
        self.replaced = bool(self._first)
        self._first = optimizer
        return True

    def forget(self, optimizer: int) -> bool:
        """An optimizer was deleted. If it was the first of the cycle, the next one that steps becomes the first.

        Returns whether it was.
        """
        was_first = optimizer == self._first
        if was_first:
            self._first = 0
        if optimizer == self._before:
            self._before = 0
        self._earlier.discard(optimizer)
        self._others.pop(optimizer, None)
        return was_first

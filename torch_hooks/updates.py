"""Sees that parameters were updated or gradients reset where no optimizer of torch is used.

One parameter stands for all: the first one that a backward pass leads to. It is known by a weak reference. An update in
place changes its version, unless it is made through ``.data``. Then its gradient shows it: it is set to None, or
changed in place, before the next backward pass. Gradients that are only added to show nothing, so accumulation ends no
step. Where `torch.autograd.grad` leaves no gradient in the parameter and its version stays the same, nothing is seen,
and each backward pass is a step.
"""

from __future__ import annotations

import weakref
from typing import Any

from ..ledger.layout import STEPS_BY

UPDATES, BACKWARDS = (STEPS_BY.index(by) for by in ("updates", "backward passes"))
_NODES = 256
"""The most nodes of a graph that are looked at."""
_UNUSED_AFTER = 32
"""An optimizer that was created is not used if this many steps end without it."""


class Updates:
    """Its callers catch its errors."""

    __slots__ = ("_accumulates", "_counts", "_gradient", "_looks", "_parameter", "_version", "off", "owed")

    def __init__(self) -> None:
        self.off = False
        """Whether an optimizer steps, or the user marks the steps."""
        self.owed = False
        """Whether a backward pass has ended, and no step since."""
        self._parameter: weakref.ref[Any] | None = None
        self._version = 0
        self._gradient = (0, 0)
        self._looks = 0
        self._accumulates = False  # whether a backward pass has left gradients in parameters
        self._counts = True  # whether the open one is a part of a step, and not a gradient that the model needs

    def backward_begins(self, outputs: Any, accumulates: bool) -> None:
        """The caller has asked `ended` before. ``accumulates``: it leaves gradients in parameters."""
        self._accumulates = self._accumulates or accumulates
        self._counts = accumulates or not self._accumulates
        if self._parameter is None or self._parameter() is None:
            found = _leaf_of(outputs)
            self._parameter = weakref.ref(found) if found is not None else None

    def backward_ends(self) -> None:
        if not self._counts:
            return
        parameter = self._parameter() if self._parameter is not None else None
        if parameter is not None:
            self._version, self._gradient = parameter._version, _gradient_of(parameter)
            self.owed = True

    def ended(self, *, by_backward: bool) -> int:
        """Whether a step has ended since the last backward pass: what shows it, or 0. ``by_backward``: a backward pass
        that leaves no gradients is about to begin."""
        parameter = self._parameter() if self._parameter is not None else None
        # Without the parameter there are new ones: they were not updated in place.
        if parameter is None or (self._version, self._gradient) != (parameter._version, _gradient_of(parameter)):
            shown = UPDATES
        elif self._gradient == (0, 0) and by_backward:
            shown = BACKWARDS
        else:
            return 0
        self.owed = False
        if self._looks < _UNUSED_AFTER:
            self._looks += 1
            if _optimizer_exists():
                return 0  # it may step later: gradients that overflow skip its first steps, for example
        return shown

    def stop(self) -> None:
        self.off, self.owed, self._parameter = True, False, None


def _gradient_of(parameter: Any) -> tuple[int, int]:
    """What tells one state of a gradient from another one; (0, 0) without a gradient."""
    gradient = parameter.grad
    return (0, 0) if gradient is None else (id(gradient), 1 + gradient._version)


def _leaf_of(outputs: Any) -> Any:
    """A parameter of the graph that ends in ``outputs``; None if none is near."""
    from torch.nn import Parameter

    waiting = [node for output in outputs or () if (node := getattr(output, "grad_fn", None)) is not None]
    first = None
    for at in range(_NODES):
        if at >= len(waiting):
            break
        leaf = getattr(waiting[at], "variable", None)
        if isinstance(leaf, Parameter):
            return leaf
        first = leaf if first is None else first
        waiting += [one for one, _ in waiting[at].next_functions if one is not None]
    return first


def _optimizer_exists() -> bool:
    """Whether an optimizer of torch was created: its class then has a ``step`` that calls hooks."""
    from torch.optim import Optimizer

    waiting: list[Any] = [Optimizer]
    while waiting:
        one = waiting.pop()
        if getattr(vars(one).get("step"), "hooked", False):
            return True
        waiting += one.__subclasses__()
    return False

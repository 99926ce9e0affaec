"""What a loop of the user's own spends on collecting experience from environments, until it learns from it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..ledger.causes import ROLLOUT_PARTS
from ..ledger.layout import WORD_AT
from .in_flight import Launched
from .machine import COMPUTE, EVAL, HOST, ROLLOUT

if TYPE_CHECKING:
    from .session import Session

_PART_AT = WORD_AT["rollout_part_ns"][0] + ROLLOUT_PARTS.index("environment")


_LONG = 8
"""What takes longer than this many steps of the environment, before the first of them, is an evaluation."""


class Acting:
    """The stretch from the first step of an environment to the last one, before the loop learns.

    On a CPU rank it is CPU time of the training thread, because a blocked thread does not work. It moves to rollouts
    when the loop learns. On an accelerator, a boundary at both ends of each step of an environment tells in which
    interval the policy ran: that one is a rollout. Inside a step, an idle device waits for the host.
    """

    __slots__ = ("_base", "_began", "_inside", "_session", "_steps", "before", "ns", "stepped")

    def __init__(self, session: Session):
        self._session = session
        self._inside = False
        self._base = COMPUTE
        """The phase around the open step of an environment."""
        self.forget()

    def forget(self) -> None:
        self.stepped = 0
        """In steps of environments since the loop learned, ns."""
        self.ns = {COMPUTE: 0, HOST: 0}
        """In the whole stretch, by the phase that it was counted in, ns."""
        self.before = 0
        """What ran without gradients since the loop learned, and was taken for an evaluation, ns."""
        self._began = self._steps = 0

    def begins(self) -> int:
        """A step of an environment begins. Returns what to pass to ``ends``; 0 if it does not count: it counts if it is
        the training thread's, and not of an evaluation."""
        machine = self._session.machine
        if self._inside or machine.phase not in self.ns or not machine.stepping or not machine.mine():
            return 0
        self._inside = True
        now = self._now()
        self._began = self._began or now
        if machine.device is not None:
            self._base = machine.phase
            if self.stepped:
                machine.was(ROLLOUT)
            machine.cut(HOST)
        return now

    def ends(self, began: int, result: object) -> None:
        """``result``: what the step has returned. An environment that returns tensors of a device runs there."""
        self._inside = False
        now = self._now()
        self.stepped += now - began
        self._steps += 1
        machine = self._session.machine
        if machine.device is not None and machine.phase == HOST:
            machine.was(ROLLOUT, looks=False)
            machine.cut(self._base, None if _on_device(result) else Launched(time.monotonic_ns(), HOST))
        if machine.phase in self.ns:
            self.ns[machine.phase] += now - self._began
        self._began = now

    def _now(self) -> int:
        return time.thread_time_ns() if self._session.machine.device is None else time.monotonic_ns()

    def moves(self) -> None:
        """The loop learns."""
        machine, writer = self._session.machine, self._session.writer
        if machine.device is None:
            for phase, ns in self.ns.items():
                machine.reclassify(phase, ROLLOUT, ns)
        if self.before * self._steps <= _LONG * sum(self.ns.values()):  # the policy, before the first step
            machine.reclassify(EVAL, ROLLOUT, self.before)
        if writer is not None:
            writer.words[_PART_AT] += self.stepped
        self.forget()


def _on_device(result: object) -> bool:
    """Whether the observations of a step are tensors of an accelerator."""
    found = result[0] if isinstance(result, tuple) and result else result
    if isinstance(found, Mapping):
        found = next(iter(found.values()), None)
    device = getattr(found, "device", None)
    return getattr(device, "type", "cpu") != "cpu"

"""What a loop of the user's own spends on collecting experience from environments, until it learns from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ledger.causes import ROLLOUT_PARTS
from ..ledger.layout import WORD_AT
from .machine import COMPUTE, EVAL, HOST, ROLLOUT

if TYPE_CHECKING:
    from .session import Session

_PART_AT = WORD_AT["rollout_part_ns"][0] + ROLLOUT_PARTS.index("environment")


_LONG = 8
"""What takes longer than this many steps of the environment, before the first of them, is an evaluation."""


class Acting:
    """The stretch from the first step of an environment to the last one, before the loop learns.

    It is CPU time of the training thread, because a blocked thread does not work. An accelerator is idle meanwhile,
    or runs the policy. So nothing moves there.
    """

    __slots__ = ("_began", "_inside", "_session", "_steps", "before", "ns", "stepped")

    def __init__(self, session: Session):
        self._session = session
        self._inside = False
        self.forget()

    def forget(self) -> None:
        self.stepped = 0
        """In steps of environments since the loop learned, ns."""
        self.ns = {COMPUTE: 0, HOST: 0}
        """In the whole stretch, by the phase that it was counted in, ns."""
        self.before = 0
        """What ran without gradients since the loop learned, and was taken for an evaluation, ns."""
        self._began = self._steps = 0

    def begins(self, now: int) -> bool:
        """Whether a step of an environment counts: it is the training thread's, and not of an evaluation. ``now``: the
        CPU time of the thread, ns."""
        machine = self._session.machine
        if self._inside or machine.phase not in self.ns or not machine.stepping or not machine.mine():
            return False
        self._inside = True
        self._began = self._began or now
        return True

    def ends(self, began: int, now: int) -> None:
        self._inside = False
        self.stepped += now - began
        self._steps += 1
        phase = self._session.machine.phase
        if phase in self.ns:
            self.ns[phase] += now - self._began
        self._began = now

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

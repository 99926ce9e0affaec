"""What a loop of the user's own spends on collecting experience from environments, until it learns from it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..ledger.causes import ROLLOUT_PARTS
from ..ledger.layout import WORD_AT
from .below import is_below, tests
from .in_flight import Launched
from .machine import COMPUTE, EVAL, HOST, ROLLOUT

if TYPE_CHECKING:
    from types import CodeType

    from .session import Session

_PART_AT = WORD_AT["rollout_part_ns"][0] + ROLLOUT_PARTS.index("environment")


_LONG = 8
"""What takes longer than this many steps of the environment, before the first of them, is an evaluation."""
_MOST_CODE = 64
_NEAR = 8
"""How many frames around a step of an environment decide whether it is of an evaluation."""


class Acting:
    """The stretch from the first step of an environment to the last one, before the loop learns.

    On a CPU rank it is CPU time of the training thread, because a blocked thread does not work. It moves to rollouts
    when the loop learns. On an accelerator, a boundary at both ends of each step of an environment tells in which
    interval the policy ran: that one is a rollout. Inside a step, an idle device waits for the host.

    Steps in a function with the name of an evaluation are one, with what is between them, unless the loop learns in
    this function, too.
    """

    __slots__ = (
        "_base",
        "_found",
        "_inside",
        "_kind",
        "_kinds",
        "_learns",
        "_moved",
        "_session",
        "_steps",
        "_tested",
        "before",
        "began",
        "ns",
        "stepped",
    )

    def __init__(self, session: Session):
        self._session = session
        self._inside = False
        self._base = COMPUTE
        """The phase around the open step of an environment."""
        self._kinds: dict[tuple[int, ...], tuple[list[CodeType], int]] = {}
        """By the ``id`` of the code that makes a step, and of what calls it: that code, and ROLLOUT or EVAL."""
        self._learns: list[CodeType] = []  # functions with the name of an evaluation in which the loop has learned
        self.forget()

    def forget(self) -> None:
        self.stepped = 0
        """In steps of environments since the loop learned, ns."""
        self.ns = {COMPUTE: 0, HOST: 0}
        """In the whole stretch, by the phase that it was counted in, ns."""
        self.before = 0
        """What ran without gradients since the loop learned, and was taken for an evaluation, ns."""
        self.began = 0
        """When the last step of an environment ended, or the first one began; 0: none since the loop learned."""
        self._steps = self._found = 0
        self._kind = ROLLOUT  # of the last step
        self._tested = self._moved = 0  # ns in steps of evaluations, and with what is between these

    def begins(self) -> int:
        """A step of an environment begins. Returns what to pass to ``ends``; 0 if it does not count: it counts if it is
        the training thread's, and not in evaluation mode. To be called by what the loop calls for a step."""
        machine = self._session.machine
        if self._inside or machine.phase not in self.ns or not machine.stepping or not machine.mine():
            return 0
        if (after := self._session.loop.evaluations.after).open is not None:
            after.pauses()
        kind, now = self._kind_of_step(), self._now()
        goes_on = kind == self._kind and self.began
        if not goes_on:
            self.began, self._kind, self._found = now, kind, self._session.loop.evaluations.found
        self._inside = True
        if machine.device is not None:
            self._base = machine.phase
            if goes_on:
                machine.was(kind)
            machine.cut(HOST)
        return now

    def ends(self, began: int, result: object) -> None:
        """``result``: what the step has returned. An environment that returns tensors of a device runs there."""
        self._inside = False
        now, kind = self._now(), self._kind
        if kind == ROLLOUT:
            self.stepped += now - began
            self._steps += 1
        else:
            self._tested += now - began
        machine = self._session.machine
        if machine.device is not None and machine.phase == HOST:
            machine.was(kind, looks=False)
            machine.cut(self._base, None if _on_device(result) else Launched(time.monotonic_ns(), HOST))
        if machine.phase in self.ns:
            if kind == EVAL:
                self._evaluated(now - self.began)
            else:
                self.ns[machine.phase] += now - self.began
        self.began = now

    def _evaluated(self, ns: int) -> None:
        """``ns`` up to now are of an evaluation. A part may have been found already, because gradients were off."""
        machine, evaluations = self._session.machine, self._session.loop.evaluations
        ns -= evaluations.found - self._found
        if machine.device is None and ns > 0:
            evaluations.found += ns
            self._moved += ns
            machine.reclassify(machine.phase, EVAL, ns)
        self._found, self.before = evaluations.found, 0

    def _kind_of_step(self) -> int:
        one = sys._getframe(2).f_back  # below `begins` and the hook
        codes: list[CodeType] = []
        while one is not None and len(codes) < _NEAR:
            codes.append(one.f_code)
            one = one.f_back
        key = tuple(map(id, codes))
        known = self._kinds.get(key)
        if known is None:
            tested = any(tests(code.co_name) and code not in self._learns for code in codes)
            known = codes, EVAL if tested else ROLLOUT
            if len(self._kinds) < _MOST_CODE:
                self._kinds[key] = known
        return known[1]

    def _now(self) -> int:
        return time.thread_time_ns() if self._session.machine.device is None else time.monotonic_ns()

    def moves(self) -> None:
        """The loop learns."""
        if self._tested:
            self._learns_in_evaluations()
        if not self.stepped:  # only evaluations
            self.forget()
            return
        machine, writer = self._session.machine, self._session.writer
        if machine.device is None:
            for phase, ns in self.ns.items():
                machine.reclassify(phase, ROLLOUT, ns)
        if self.before * self._steps <= _LONG * sum(self.ns.values()):  # the policy, before the first step
            machine.reclassify(EVAL, ROLLOUT, self.before)
        if writer is not None:
            writer.words[_PART_AT] += self.stepped
        self.forget()

    def _learns_in_evaluations(self) -> None:
        """The loop learns. If that is in a function that was taken for an evaluation by its name, this is training."""
        frame = sys._getframe(1)
        seen = {code for codes, kind in self._kinds.values() if kind == EVAL for code in codes}
        found = [code for code in seen if tests(code.co_name) and is_below(frame, code)]
        if not found or len(self._learns) >= _MOST_CODE:
            return
        self._learns += found
        self._kinds.clear()
        machine, writer = self._session.machine, self._session.writer
        if machine.device is None and writer is not None:
            machine.reclassify(EVAL, ROLLOUT, self._moved)
            writer.words[_PART_AT] += self._tested


def _on_device(result: object) -> bool:
    """Whether the observations of a step are tensors of an accelerator."""
    found = result[0] if isinstance(result, tuple) and result else result
    if isinstance(found, Mapping):
        found = next(iter(found.values()), None)
    device = getattr(found, "device", None)
    return getattr(device, "type", "cpu") != "cpu"

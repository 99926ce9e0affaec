"""Asks once, after the first step, why a rank without a device uses none of the GPUs that it was given."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from ...ledger.gpus import UNUSED
from ...ledger.layout import WORD_AT
from ..cuda_queries import NoQueries, runtime
from . import given

if TYPE_CHECKING:
    from ..machine import PhaseMachine
    from ..session import Session

PATIENCE_SECONDS = 60.0
"""A runtime that has not answered by then does not answer."""
_UNUSED_AT, _VISIBLE_AT = WORD_AT["gpu_unused"][0], WORD_AT["gpus_visible"][0]


class UnusedGpus:
    """The probe. The watcher's thread calls it."""

    def __init__(self, session: Session, machine: PhaseMachine, dev: str = "/dev"):
        self._session = session
        self._machine = machine
        self._dev = dev
        self._asked: given.Question | None = None
        self._until = 0.0
        self._hidden = ""
        self._done = False

    def look(self) -> None:
        if not self._machine.steps:
            return
        if self._session.device is not None:
            self._of_device(self._machine.words)
        elif self._asked is not None:
            self._hear()
        elif not self._done:
            self._done = True
            self._ask()

    def _of_device(self, words: memoryview[int]) -> None:
        """A device has a context. The program may have asked it for its name only, and train on the CPU."""
        module = sys.modules.get("torch.cuda")
        if self._session.device.type == "cuda" and module is not None:
            words[_VISIBLE_AT] = module.device_count()  # it is initialized
        on_cpu = not self._session.on_device and self._session.loop.trainings.on_cpu
        words[_UNUSED_AT] = UNUSED.index("model") if on_cpu else 0

    def _ask(self) -> None:
        self._hidden = given.hidden()
        if given.has_none() or (self._hidden and not given.was_hidden(self._hidden)):
            return  # the program wants the CPU, or has nothing else
        found, granted = given.nodes(self._dev), given.allocated()
        if not _has_runtime():
            if (found or granted) and not self._hidden:
                self._say("build", found or granted)
        elif given.may_have_gpus(self._dev):
            try:
                self._asked = given.Question(self._hidden)
                self._until = time.monotonic() + PATIENCE_SECONDS
            except (NoQueries, OSError):
                if found:
                    self._say("hidden" if self._hidden else "model", found)
        elif granted and not self._hidden:
            self._say("absent", granted)

    def _hear(self) -> None:
        asked = self._asked
        if asked is None or ((answer := asked.answer()) is None and time.monotonic() < self._until):
            return
        self._asked = None
        if answer is None:
            asked.give_up()
            answer = 0, "it does not answer"
        number, error = answer
        found = given.nodes(self._dev)
        if number:
            self._say("hidden" if self._hidden else "model", number)
        elif found and error:
            self._say("driver", found, error)

    def _say(self, why: str, gpus: int, error: str = "") -> None:
        self._machine.write_string("gpu_error", error)
        self._machine.words[_VISIBLE_AT] = gpus
        self._machine.words[_UNUSED_AT] = UNUSED.index(why)


def _has_runtime() -> bool:
    """Whether this torch was built with CUDA or ROCm."""
    version = getattr(sys.modules.get("torch"), "version", None)
    if getattr(version, "cuda", None) or getattr(version, "hip", None):
        return True
    try:
        runtime()
    except NoQueries:
        return False
    return True

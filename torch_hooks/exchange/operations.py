"""Takes minima over the ranks of a side group, without waiting for them. For the training thread only."""

from __future__ import annotations

import datetime
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .side_group import keep, let_go

LONGEST_EXCHANGE_SECONDS = 120.0
"""If an exchange takes longer than this while steps continue, some rank does not take part any more."""
_LONGEST_STEP_SECONDS = 5.0
"""A longer time between two looks counts as this: in a save, an evaluation or a stop, nobody issues anything."""


class Lost(Exception):
    """The ranks of this group cannot exchange anything any more. The message says why."""


@dataclass(slots=True)
class Operation:
    words: array[int]
    tensor: Any
    work: Any
    looked: float = field(default_factory=time.monotonic)
    """When it was issued, or looked at last."""
    seconds: float = 0.0
    """For how long it has been issued while steps continued."""


class Operations:
    """The operations of one side group. All ranks start them in the same order."""

    def __init__(self, side: Any, finished: Callable[[Any], None]):
        """``finished`` raises the error of a failed operation."""
        self._side = side
        self._finished = finished
        self._through: Any = None  # the tensor of the last operation that came back

    def start(self, words: array[int]) -> Operation:
        """Starts to replace each word by its minimum over all ranks."""
        torch, distributed = sys.modules["torch"], sys.modules["torch.distributed"]
        tensor = torch.frombuffer(words, dtype=torch.int64)
        # When gloo's thread is the last to drop a tensor of Python's, it asks for the interpreter's lock. At the
        # interpreter's end that aborts the process: torch 2.4 did so whenever a peer had been killed.
        keep(tensor)
        options = distributed.AllreduceOptions()
        options.reduceOp = distributed.ReduceOp.MIN
        options.timeout = datetime.timedelta(days=1)  # a rank may write a checkpoint for longer than the default
        return Operation(words, tensor, self._side.allreduce([tensor], options))

    def came_back(self, operation: Operation) -> bool:
        """Whether an operation has finished. Raises Lost if it takes too long, and its error if it has failed."""
        if operation.work.is_completed():
            self._finished(operation.work)
            # The group has one thread. It may still hold this tensor, but it has dropped the one before.
            before, self._through = self._through, operation.tensor
            if before is not None:
                let_go(before)
            return True
        now = time.monotonic()
        operation.seconds += min(now - operation.looked, _LONGEST_STEP_SECONDS)
        operation.looked = now
        if operation.seconds > LONGEST_EXCHANGE_SECONDS:
            raise Lost("a rank stopped taking part")
        return False

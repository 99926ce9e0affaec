"""Takes minima over a large group in stages: within each node, among the leaders of all nodes, and back.

So a rank talks to the other ranks of its node, and only one rank of each node talks to other nodes.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .formation import Place
from .side_group import build


class NodeGroups:
    """Stands for a gloo group of all ranks. It has the one operation of it that an exchange needs.

    Minima go up and down in two separate gloo groups. In a single one, members would issue the operations of two blocks
    in another order than the leader, which has to ask the other leaders in between.
    """

    def __init__(self, store: Any, place: Place, finished: Callable[[Any], None]):
        """``finished`` raises the error of a finished operation if it has failed."""
        prefixed = sys.modules["torch.distributed"].PrefixStore
        self._finished = finished
        self._up = self._down = self._leaders = None
        if place.size > 1:
            self._up = build(prefixed(f"up{place.node}", store), place.index, place.size)
            self._down = build(prefixed(f"down{place.node}", store), place.index, place.size)
        if place.index == 0 and place.nodes > 1:
            self._leaders = build(prefixed("leaders", store), place.node, place.nodes)
        self._open: deque[Staged] = deque()

    def allreduce(self, tensors: list[Any], options: Any) -> Staged:
        """Like that of a gloo group. Stages begin when the result is asked whether it is completed."""
        distributed = sys.modules["torch.distributed"]
        stages: list[Callable[[], Any]] = []
        if (up := self._up) is not None:
            reduce = distributed.ReduceOptions()
            reduce.reduceOp, reduce.rootRank, reduce.timeout = options.reduceOp, 0, options.timeout
            stages.append(lambda: up.reduce(tensors, reduce))
        if (leaders := self._leaders) is not None:
            stages.append(lambda: leaders.allreduce(tensors, options))
        if (down := self._down) is not None:
            broadcast = distributed.BroadcastOptions()
            broadcast.rootRank, broadcast.timeout = 0, options.timeout
            stages.append(lambda: down.broadcast(tensors, broadcast))
        work = Staged(stages, self._advance)
        self._open.append(work)
        self._advance()
        return work

    def _advance(self) -> None:
        """Begins stages that can begin. All members begin the operations of a gloo group in the order of the works."""
        most = None  # how many stages of the previous work have begun
        for work in self._open:
            work.advance(most, self._finished)
            most = work.begun
        while self._open and self._open[0].done:
            self._open.popleft()


class Staged:
    """Operations that follow each other, as one. It has those methods of torch.distributed's `Work` that are needed."""

    def __init__(self, stages: Sequence[Callable[[], Any]], advance_all: Callable[[], None]):
        self._stages = stages
        self._advance_all = advance_all
        self._running: Any = None
        self._failure: Exception | None = None
        self.begun = 0
        """How many stages have begun."""
        self.done = False

    def advance(self, most: int | None, finished: Callable[[Any], None]) -> None:
        """Begins the next stages, unless the running one still runs, or ``most`` have begun; None: no limit."""
        try:
            while not self.done:
                if self._running is not None:
                    if not self._running.is_completed():
                        return
                    finished(self._running)
                    self._running = None
                if self.begun == len(self._stages):
                    self.done = True
                elif most is not None and self.begun >= most:
                    return
                else:
                    self.begun += 1
                    self._running = self._stages[self.begun - 1]()
        except Exception as error:
            self._failure, self.done = error, True

    def is_completed(self) -> bool:
        self._advance_all()
        return self.done

    def wait(self) -> None:
        """Raises the error of a stage that has failed. Does not wait."""
        if self._failure is not None:
            raise self._failure

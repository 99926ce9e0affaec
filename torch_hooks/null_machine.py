"""A replacement for the phase machine that records nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .machine import NOT_ENTERED

if TYPE_CHECKING:
    from .books import Parts, Splitter
    from .in_flight import Launched
    from .machine import Fetching
    from .meters.collective import WaitMeter
    from .meters.save import SaveMeter
    from .wait_codes import Issues, WaitCode


class NullMachine:
    """Used while nothing is recorded: before the first sign of training, after a fork, after detach."""

    __slots__ = ("after", "apart", "evaluating", "guess", "optimizes_on_cpu", "replaying")
    device = None
    fetching: Fetching | None = None
    apart_looks = acting_looks = forward_looks = 0
    helper = helper_tid = owner = 0
    phase = NOT_ENTERED
    saves = 0
    saving: SaveMeter | None = None
    since = 0
    stepping = False
    steps = 0
    waits: WaitMeter | None = None

    def enter(self, phase: int) -> int:
        return NOT_ENTERED

    enter_from_base = enter

    def cut(self, phase: int, parts: Parts | Launched | Splitter | None = None, what: int = 0) -> int:
        return NOT_ENTERED

    def enter_wait(self, code: WaitCode, issues: Issues = (), blocks: bool = False) -> int:
        return NOT_ENTERED

    def enter_side_wait(self, code: WaitCode) -> int:
        return NOT_ENTERED

    def wait_until(self, code: WaitCode, event: Any) -> None:
        pass

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def follow_stream(self) -> None:
        pass

    def issue(self, issues: Issues) -> None:
        pass

    def sums(self) -> None:
        return None

    def begin_again(self, sums: Any) -> None:
        pass

    def worked(self) -> int:
        return 0

    def reclassify(self, phase: int, right: int, ns: int, idle: int = 0) -> None:
        pass

    def leave(self, old: int, parts: Parts | Splitter | None = None) -> None:
        pass

    def enter_save(self, meter: SaveMeter) -> int:
        return NOT_ENTERED

    def leave_save(self, old: int) -> None:
        pass

    def leave_wait(self, old: int) -> None:
        pass

    def leave_to(self, old: int, base: int, parts: Parts | Splitter | None = None) -> None:
        pass

    def base(self, phase: int, *, measured: bool = True) -> None:
        pass

    def mine(self) -> bool:
        return True

    def at_home(self) -> bool:
        return True

    def admits(self) -> bool:
        return False

    def begin(self) -> None:
        pass

    def was(self, phase: int, *, looks: bool = True) -> None:
        pass

    def boundary(self, then: int) -> bool:
        return False

    def update(self, change: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        pass

    def close(self) -> None:
        pass

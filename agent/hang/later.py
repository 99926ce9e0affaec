"""Runs each source of a dossier in a separate thread, so that a source that hangs costs only itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Later(Generic[T]):
    """The result of a function that has been started."""

    def __init__(self, name: str, function: Callable[[], T]):
        self._name = name
        self._result: T | None = None
        self._error: str = ""
        self._done = threading.Event()
        self._begun = time.monotonic()
        threading.Thread(target=self._run, args=(function,), name=f"hang-{name}", daemon=True).start()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def result(self, seconds: float, absent: list[str]) -> T | None:
        """None if it has failed or is not done after this time. Then ``absent`` gets a sentence about it."""
        if not self._done.wait(max(0.0, seconds)):
            absent.append(f"{self._name}: no answer in {time.monotonic() - self._begun:.0f} s")
        elif self._error:
            absent.append(f"{self._name}: {self._error}")
        return self._result

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._result = function()
        except Exception as error:  # a dossier without this source is better than none
            self._error = str(error) or type(error).__name__
        finally:
            self._done.set()

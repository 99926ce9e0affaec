"""Totals of a rank that are read every few seconds: CPU time that it did not get, and what its training thread read."""

from __future__ import annotations

from ...ledger.layout import WORD_AT
from ..tasks import TaskClock
from .files import ReadMeter
from .shortage import ShortageMeter

_SHORTAGE_AT = WORD_AT["cpu_asked_ns"][0]
_READ_BYTES_AT, _FAULTS_AT = WORD_AT["thread_read_bytes"][0], WORD_AT["thread_major_faults"][0]


class Totals:
    """Writes the totals since its construction to a ledger. The training thread must create it and call it."""

    __slots__ = ("_reads", "_shortage", "_words", "due_ns")

    def __init__(self, task: TaskClock, words: memoryview[int]):
        self._words = words
        self._shortage = ShortageMeter(task)
        self._reads = ReadMeter()
        self.due_ns = 0
        """When the next `write` is due, ns of CLOCK_MONOTONIC."""

    def write(self) -> None:
        """Brings the words up to date. The caller holds the seqlock."""
        words = self._words
        for number, ns in enumerate(self._shortage.read()):
            words[_SHORTAGE_AT + number] = ns
        self.due_ns = self._shortage.due_ns
        if (read := self._reads.read()) is not None:
            words[_READ_BYTES_AT], words[_FAULTS_AT] = read

"""Counts the threads and open files of this process now and then: a leak shows long before a limit is reached."""

from __future__ import annotations

import os

from ..ledger.layout import WORD_AT
from .proc import numbers_in

PERIOD_SECONDS = 5.0
_THREADS_AT, _FILES_AT = WORD_AT["threads"][0], WORD_AT["open_files"][0]


def count(words: memoryview[int]) -> None:
    words[_THREADS_AT] = os.stat("/proc/self/task").st_nlink - 2  # one link for each thread (proc_task_getattr)
    # Since Linux 6.2 the size of this directory is the number of open files. To list thousands takes 1 ms.
    words[_FILES_AT] = os.stat("/proc/self/fd").st_size or len(numbers_in("/proc/self/fd")) - 1

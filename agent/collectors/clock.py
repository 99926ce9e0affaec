"""The collector `clock`: offset and synchronisation of the node's clock.

If the clocks of nodes differ, a comparison of their times of collectives is misleading.
"""

from __future__ import annotations

import time

from ..collector import Options
from ..files import KeptFiles, Unreadable, reason_of, word
from ..kernel.adjtimex import adjtimex
from ..metrics import clock
from ..parsers.timex import timex
from ..reading import Reading

_SOURCE = "devices/system/clocksource/clocksource0/current_clocksource"
_REFUSED = (
    "whether the clock is synchronised",
    "the agent may not call adjtimex, although it changes nothing",
    "allow adjtimex in the container's seccomp profile",
)


def create(options: Options) -> ClockCollector:
    return ClockCollector(options)


class ClockCollector:
    def __init__(self, options: Options):
        self._files = KeptFiles()
        self._source = f"{options.roots.sysfs}/{_SOURCE}"
        self._had_source = False

    def collect(self, reading: Reading) -> None:
        reading.add(clock.TIME, (), time.time())
        self._discipline(reading)
        try:
            source = word(self._files.attribute(self._source))
        except Unreadable as error:
            if error.reason != "missing" or self._had_source:
                reading.error("", "current_clocksource", error.reason)
            return
        self._had_source = True
        reading.add(clock.INFO, (source,), 1)

    def _discipline(self, reading: Reading) -> None:
        try:
            found = timex(*adjtimex())
        except OSError as error:
            reason = reason_of(error)
            if reason == "denied":
                reading.blind(*_REFUSED)
            else:
                reading.error("", "adjtimex", reason)
            return
        except (AttributeError, Unreadable):
            reading.error("", "adjtimex", "unsupported")
            return
        reading.add(clock.SYNCHRONISED, (), int(found.synchronised))
        reading.add(clock.OFFSET, (), found.offset_seconds)
        reading.add(clock.ESTIMATED_ERROR, (), clock.ESTIMATED_ERROR.base(found.estimated_error_us))
        reading.add(clock.MAXIMUM_ERROR, (), clock.MAXIMUM_ERROR.base(found.maximum_error_us))
        reading.add(clock.FREQUENCY, (), found.frequency_ratio)
        reading.add(clock.TAI_OFFSET, (), found.tai_offset_seconds)

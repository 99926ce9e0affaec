"""The metrics of the collector `clock`."""

from __future__ import annotations

from .metric import Metric

SYNCHRONISED = Metric(
    "whyidle_clock_synchronised",
    "gauge",
    "bool",
    (),
    "1 if the clock is synchronised according to the kernel, otherwise 0. Times of a node whose clock is not "
    "synchronised cannot be compared with those of other nodes. PTP shows as 0 if no daemon reports it to the kernel.",
    "adjtimex(2) status",
)
OFFSET = Metric(
    "whyidle_clock_offset_seconds",
    "gauge",
    "seconds",
    (),
    "The error that the kernel still has to correct, positive if the clock is behind. Always 0 under chronyd, "
    "which only corrects the frequency: look at the estimated error instead.",
    "adjtimex(2) offset",
)
ESTIMATED_ERROR = Metric(
    "whyidle_clock_estimated_error_seconds",
    "gauge",
    "seconds",
    (),
    "The error of the clock, as the time daemon estimates it.",
    "adjtimex(2) esterror",
    per=1_000_000,
)
MAXIMUM_ERROR = Metric(
    "whyidle_clock_maximum_error_seconds",
    "gauge",
    "seconds",
    (),
    "The largest possible error of the clock. It grows by 0.5 ms a second, up to 16 s, until the time "
    "daemon renews it.",
    "adjtimex(2) maxerror",
    per=1_000_000,
)
FREQUENCY = Metric(
    "whyidle_clock_frequency_ratio",
    "gauge",
    "ratio",
    (),
    "The factor by which the kernel speeds up the clock to keep the right time; 1 if it does not.",
    "adjtimex(2) freq",
)
TAI_OFFSET = Metric(
    "whyidle_clock_tai_offset_seconds",
    "gauge",
    "seconds",
    (),
    "TAI minus UTC, if a daemon has set it in the kernel; otherwise 0.",
    "adjtimex(2) tai",
)
TIME = Metric(
    "whyidle_clock_time_seconds",
    "gauge",
    "seconds",
    (),
    "The node's clock at the scrape, in Unix time. This value minus timestamp() of the same series is the "
    "difference from the clock of Prometheus, which includes the duration of the scrape.",
    "clock_gettime(2) CLOCK_REALTIME",
)
INFO = Metric(
    "whyidle_clock_info",
    "gauge",
    "info",
    ("source",),
    "The clock source of the kernel; always 1. With hpet or acpi_pm instead of tsc or arch_sys_counter, reading "
    "the clock costs a thousand times as much.",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource",
)

METRICS: tuple[Metric, ...] = (
    SYNCHRONISED,
    OFFSET,
    ESTIMATED_ERROR,
    MAXIMUM_ERROR,
    FREQUENCY,
    TAI_OFFSET,
    TIME,
    INFO,
)

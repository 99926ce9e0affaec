"""The disks of a node, and its page cache."""

from __future__ import annotations

from ..selection import average, each, grows, level, levels, listed, series
from ..vocabulary import Column, Panel, Section, line, steps, table, trend
from ..vocabulary import section as _section

DISK = "{{device}}"
SOME = 4
"""The most disks per counter in a panel with several counters."""


def section() -> Section:
    return _section(
        "Disks and page cache",
        line(9, _busy(), _bytes(), _latency()),
        line(9, _requests(), _queue(), _cache()),
        line(9, _disks()),
        collapsed=True,
    )


def _busy() -> Panel:
    return trend(
        "Disks: time with a request in flight",
        "Share of time. At 100 % a disk with a single queue is at its limit. An SSD can do more even then: see "
        "the time of its requests.",
        grows("whyidle_disk_io_seconds_total", "device", DISK, most=12),
        unit="percentunit",
        width=8,
        most=1,
        thresholds=steps(0.8),
        dashed=True,
    )


def _bytes() -> Panel:
    counters = {
        "whyidle_disk_read_bytes_total": "read",
        "whyidle_disk_written_bytes_total": "written",
        "whyidle_disk_discarded_bytes_total": "discarded",
    }
    return trend(
        "Disks: bytes",
        "Bytes per second that were read, written and discarded (TRIM), and bytes that were read again soon "
        "after they left the page cache, because the cache is too small. A stacked device counts the bytes of its "
        "parts again.",
        *each(counters, "device", DISK, most=SOME),
        grows("whyidle_memory_refaulted_bytes_total", "instance", "read again into the page cache"),
        unit="Bps",
        width=8,
    )


def _latency() -> Panel:
    counts = {"read": "reads", "write": "writes", "flush": "flushes", "discard": "discards"}
    return trend(
        "Disks: time of a request",
        "Mean time of reads, writes, flushes and discards, queueing included.",
        *(
            average(
                f"whyidle_disk_{what}_seconds_total",
                f"whyidle_disk_{count}_total",
                "device",
                f"{DISK} {what}",
                most=2,
            )
            for what, count in counts.items()
        ),
        unit="s",
        width=8,
    )


def _requests() -> Panel:
    counters = {
        "whyidle_disk_reads_total": "reads",
        "whyidle_disk_writes_total": "writes",
        "whyidle_disk_flushes_total": "flushes",
        "whyidle_disk_reads_merged_total": "reads merged",
        "whyidle_disk_writes_merged_total": "writes merged",
    }
    return trend(
        "Disks: requests",
        "Requests per second, flushes (an fsync causes them), and requests that were merged before they reached "
        "the disk.",
        *each(counters, "device", DISK, most=2),
        unit="ops",
        width=8,
    )


def _queue() -> Panel:
    return trend(
        "Disks: requests under way",
        "How many requests were under way: on average, and at the time of the scrape.",
        grows("whyidle_disk_io_weighted_seconds_total", "device", DISK + " mean", most=SOME),
        level("whyidle_disk_in_flight_requests", "device", DISK + " now", most=SOME),
        unit="short",
        width=8,
    )


def _cache() -> Panel:
    return trend(
        "Page cache",
        "File data in memory, and the part of it that still has to be written or is being written, such as a "
        "checkpoint. A dataset that fits into the cache is read from disk only once.",
        *levels(
            {
                "whyidle_memory_cached_bytes": "cached",
                "whyidle_memory_dirty_bytes": "to be written",
                "whyidle_memory_writeback_bytes": "being written",
            }
        ),
        unit="bytes",
        width=8,
    )


def _disks() -> Panel:
    return table(
        "Disks",
        "Which disks the node has, if they did any I/O since it booted.",
        listed(series("whyidle_disk_info")),
        columns=[
            Column("device", "Device"),
            Column("kind", "Kind"),
            Column("name", "Name"),
            Column("model", "Model"),
            Column("rotational", "Rotates"),
        ],
    )

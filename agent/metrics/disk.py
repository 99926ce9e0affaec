"""The metrics of the collector `disk`."""

from __future__ import annotations

from .metric import Metric

SECTOR_BYTES = 512
"""The size of the kernel's sectors, whatever the sector size of the device is."""
MS = 1000
_DISK = ("device",)


def _field(number: int, name: str, unit: str, text: str, kind: str = "counter") -> Metric:
    """The metric of one field of diskstats. Fields are numbered from 1, as in the kernel's documentation."""
    scale = {"bytes": (SECTOR_BYTES, 1), "seconds": (1, MS)}.get(unit, (1, 1))
    source = f"diskstats, field {number}"
    return Metric(f"whyidle_disk_{name}", kind, unit, _DISK, text, source, times=scale[0], per=scale[1])


INFO = Metric(
    "whyidle_disk_info",
    "gauge",
    "info",
    ("device", "kind", "name", "model", "rotational"),
    "A whole disk that did any I/O since boot. Stacked disks (kind dm or md) are listed in addition to their parts, "
    "so a sum over all disks counts their I/O twice. Partitions, loop, RAM, optical and floppy devices are "
    "left out. Always 1.",
    "block/<device>/{dm/name,device/model,queue/rotational}",
)
FIELDS: dict[int, Metric] = {
    1: _field(1, "reads_total", "reads", "Reads that were completed."),
    2: _field(2, "reads_merged_total", "reads", "Reads that were merged into one with a neighbour before the device."),
    3: _field(3, "read_bytes_total", "bytes", "Bytes that were read."),
    4: _field(
        4,
        "read_seconds_total",
        "seconds",
        "Time that all reads took together, including queueing. Divide by the reads to get the latency.",
    ),
    5: _field(5, "writes_total", "writes", "Writes that were completed."),
    6: _field(6, "writes_merged_total", "writes", "Writes that were merged into one with a neighbour."),
    7: _field(7, "written_bytes_total", "bytes", "Bytes that were written."),
    8: _field(
        8,
        "write_seconds_total",
        "seconds",
        "Time that all writes took together, including queueing. Divide by the writes to get the latency.",
    ),
    9: _field(9, "in_flight_requests", "requests", "Requests that the device has not answered yet.", "gauge"),
    10: _field(
        10,
        "io_seconds_total",
        "seconds",
        "Time in which at least one request was in flight. A device that serves many requests at once, such as "
        "an SSD, can do more even if it is busy all the time.",
    ),
    11: _field(
        11,
        "io_weighted_seconds_total",
        "seconds",
        "Time times requests in flight; its rate is the mean length of the queue.",
    ),
    12: _field(12, "discards_total", "discards", "Discards (TRIM) that were completed."),
    14: _field(14, "discarded_bytes_total", "bytes", "Bytes that were discarded."),
    15: _field(15, "discard_seconds_total", "seconds", "Time that all discards took together."),
    16: _field(16, "flushes_total", "flushes", "Flushes of the device's write cache. An fsync causes them."),
    17: _field(
        17, "flush_seconds_total", "seconds", "Time that flushes took; when it grows, a checkpoint's fsync is slow."
    ),
}
"""The metrics by field number. Field 13 (merged discards) is not exported."""

METRICS: tuple[Metric, ...] = (INFO, *FIELDS.values())

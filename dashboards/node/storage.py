"""What a node reads from and writes to, who waits for it, its disks and the page cache."""

from __future__ import annotations

from ..vocabulary import Column, Panel, Section, line, now, query, section, steps, table, trend
from .selection import each, grows, level, levels, mean, rate, series, total

DISK = "{{device}}"
MOUNT = "{{mount}}"
RANK = "{{owner}}/{{run}} rank {{rank}}"


def sections() -> list[Section]:
    return [
        section(
            "Storage: who waits for it",
            line(7, _pressure(), _uninterruptible(), _read_by_ranks()),
            line(7, _nfs_latency(), _lustre_latency(), _disk_latency()),
            line(7, _used(), _space()),
        ),
        section(
            "Storage: disks and page cache",
            line(6, _disk_busy(), _disk_bytes(), _disk_requests()),
            line(6, _disk_queue(), _flushes(), _discards()),
            line(6, _cache(), _refaults(), _syscalls()),
            line(6, _disks()),
            collapsed=True,
        ),
    ]


def _pressure() -> Panel:
    return trend(
        "I/O pressure",
        "Share of time in which some tasks, or all of them (full), stalled on I/O: of the node, and of the ranks' "
        "control groups. Pressure without disk I/O is a network file system.",
        grows("whyidle_pressure_stalled_seconds_total", "kind", "node {{kind}}", 'resource="io"'),
        grows("whyidle_cgroup_pressure_stalled_seconds_total", "cgroup, kind", "{{cgroup}} {{kind}}", 'resource="io"'),
        unit="percentunit",
        width=8,
        thresholds=steps(0.1),
        dashed=True,
    )


def _uninterruptible() -> Panel:
    by = "owner, run, rank, role"
    found, looked = "whyidle_process_uninterruptible_samples_total", "whyidle_process_state_samples_total"
    return trend(
        "Ranks and workers found waiting for storage",
        "Share of looks that found a main thread in state D, mostly a read or write that is under way. High for "
        "workers while the ranks wait for data: the storage is the limit.",
        query(f"{total(by, rate(found))} / ({total(by, rate(looked))} > 0)", RANK + " {{role}}"),
        grows("whyidle_process_block_io_seconds_total", by, RANK + " {{role}} block I/O"),
        unit="percentunit",
        width=8,
        thresholds=steps(0.5),
        dashed=True,
    )


def _read_by_ranks() -> Panel:
    return trend(
        "Read and written by ranks, from storage",
        "Bytes per second that were fetched for a rank and its workers, page faults of mmap included, or sent towards "
        "storage. FUSE and most object stores count nothing here: see the calls below.",
        grows("whyidle_process_storage_read_bytes_total", "owner, run, rank", RANK + " read"),
        grows("whyidle_process_storage_write_bytes_total", "owner, run, rank", RANK + " written"),
        unit="Bps",
        width=8,
    )


def _nfs_latency() -> Panel:
    requests = "whyidle_nfs_operation_requests_total"
    by = "mount, operation"
    return trend(
        "NFS: time of a request",
        "Mean time by mount and operation, queueing in this client included; and of reads, the round trip alone. A "
        "round trip that grows is the server or the network; the rest, too few slots or connections.",
        query(mean(by, "whyidle_nfs_operation_seconds_total", requests), MOUNT + " {{operation}}"),
        query(mean(by, "whyidle_nfs_operation_rtt_seconds_total", requests, 'operation="read"'), MOUNT + " READ trip"),
        unit="s",
        width=8,
        nothing="No NFS mount with requests",
        thresholds=steps(0.05),
        dashed=True,
    )


def _lustre_latency() -> Panel:
    spent, calls = "whyidle_lustre_operation_seconds_total", "whyidle_lustre_operation_calls_total"
    return trend(
        "Lustre: time of a call",
        "Mean time that processes spent in a call, by operation; since Lustre 2.13.",
        query(mean("filesystem, operation", spent, calls), "{{filesystem}} {{operation}}"),
        unit="s",
        width=8,
        nothing="No Lustre mount with calls",
        thresholds=steps(0.05),
        dashed=True,
    )


def _disk_latency() -> Panel:
    return trend(
        "Disks: time of a request",
        "Mean time of reads, writes and flushes, queueing included. NFS, Lustre and FUSE never show here.",
        *(
            query(mean("device", f"whyidle_disk_{what}_seconds_total", f"whyidle_disk_{count}_total"), f"{DISK} {what}")
            for what, count in (("read", "reads"), ("write", "writes"), ("flush", "flushes"))
        ),
        unit="s",
        width=8,
    )


def _used() -> Panel:
    return table(
        "File systems that ranks use",
        "Where each rank's and its workers' open files lie: what to look for in the pictures around. A file that is "
        "open for moments can be missed.",
        now(
            "count by (owner, run, rank, use, mount, fstype, source, device) "
            f"({series('whyidle_filesystem_rank_info')})"
        ),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run"),
            Column("rank", "Rank", width=60),
            Column("use", "Use", width=80),
            Column("mount", "Mount"),
            Column("fstype", "Type", width=80),
            Column("source", "Source"),
            Column("device", "Disk", width=80),
        ],
        width=14,
    )


def _space() -> Panel:
    by = "mount, fstype"
    size, free = "whyidle_filesystem_size_bytes", "whyidle_filesystem_available_bytes"
    return table(
        "Room on them",
        "Space and files that can still be filled, and whether the file system turned read-only. When space runs out, "
        "checkpoints fail.",
        now(f"min by ({by}) ({series(free)} / {series(size)})"),
        now(f"min by ({by}) ({series(free)})"),
        now(f"min by ({by}) ({series('whyidle_filesystem_free_inodes')})"),
        now(f"max by ({by}) ({series('whyidle_filesystem_readonly')})"),
        columns=[
            Column("mount", "Mount"),
            Column("fstype", "Type"),
            Column("A", "Free", "percentunit", cell="gauge", most=1),
            Column("B", "Bytes free", "bytes"),
            Column("C", "Files free", "short"),
            Column("D", "Read-only", "bool"),
        ],
        sort="Free",
        rising=True,
        width=10,
    )


def _disk_busy() -> Panel:
    return trend(
        "Disks: time with a request in flight",
        "Share of time. At 100 % a single-queue disk is the limit; an SSD can take more even then: see its latency.",
        grows("whyidle_disk_io_seconds_total", "device", DISK),
        unit="percentunit",
        width=8,
        most=1,
        thresholds=steps(0.8),
        dashed=True,
    )


def _disk_bytes() -> Panel:
    return trend(
        "Disks: bytes",
        "Bytes per second that were read and written. A stacked device counts what its parts count too.",
        *each({"whyidle_disk_read_bytes_total": "read", "whyidle_disk_written_bytes_total": "written"}, "device", DISK),
        unit="Bps",
        width=8,
    )


def _disk_requests() -> Panel:
    return trend(
        "Disks: requests",
        "Requests per second, and those that were merged with a neighbour before the disk.",
        *each(
            {
                "whyidle_disk_reads_total": "reads",
                "whyidle_disk_writes_total": "writes",
                "whyidle_disk_reads_merged_total": "reads merged",
                "whyidle_disk_writes_merged_total": "writes merged",
            },
            "device",
            DISK,
        ),
        unit="ops",
        width=8,
    )


def _disk_queue() -> Panel:
    return trend(
        "Disks: queue",
        "Requests under way on average, and right now.",
        grows("whyidle_disk_io_weighted_seconds_total", "device", DISK + " mean"),
        level("whyidle_disk_in_flight_requests", "device", DISK + " now"),
        unit="short",
        width=8,
    )


def _flushes() -> Panel:
    return trend(
        "Disks: flushes",
        "Flushes of the write cache per second, as an fsync asks for: checkpoints that are made safe.",
        grows("whyidle_disk_flushes_total", "device", DISK),
        unit="ops",
        width=8,
    )


def _discards() -> Panel:
    return trend(
        "Disks: discards",
        "Discards (TRIM) per second, how many bytes they were for, and the time that they took.",
        *each(
            {
                "whyidle_disk_discards_total": "discards",
                "whyidle_disk_discarded_bytes_total": "bytes",
                "whyidle_disk_discard_seconds_total": "time (s/s)",
            },
            "device",
            DISK,
        ),
        unit="short",
        width=8,
    )


def _cache() -> Panel:
    return trend(
        "Page cache",
        "Files in memory, and what of it is still to be written or being written just now: a checkpoint on its way. A "
        "data set that fits in is read from disk only once.",
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


def _refaults() -> Panel:
    return trend(
        "Page cache: read anew",
        "Bytes per second of files that were read again soon after they had to leave the page cache: it is too "
        "small for what is read again and again.",
        grows("whyidle_memory_refaulted_bytes_total", "instance", "read anew"),
        unit="Bps",
        width=8,
    )


def _syscalls() -> Panel:
    return trend(
        "Read and written by ranks, by calls",
        "Bytes per second of read and write calls of a rank and its workers, whatever served them: page cache, FUSE, "
        "pipes. Reads through mmap are not in it.",
        grows("whyidle_process_syscall_read_bytes_total", "owner, run, rank", RANK + " read"),
        grows("whyidle_process_syscall_write_bytes_total", "owner, run, rank", RANK + " written"),
        unit="Bps",
        width=8,
    )


def _disks() -> Panel:
    return table(
        "Disks",
        "Which disks the node has; of those that did any I/O since it booted.",
        now(series("whyidle_disk_info")),
        columns=[
            Column("device", "Device"),
            Column("kind", "Kind"),
            Column("name", "Name"),
            Column("model", "Model"),
            Column("rotational", "Rotates"),
        ],
    )

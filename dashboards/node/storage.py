"""The storage of a node, as its ranks use it: disks, NFS and Lustre in the same panels."""

from __future__ import annotations

from ..selection import average, grows, listed, rate, series
from ..vocabulary import Column, Panel, Section, line, query, steps, table, trend
from ..vocabulary import section as _section

BY_ROLE = "owner, run, rank, role"
PLACE = "mount, fstype"


def section() -> Section:
    return _section(
        "Storage, as the ranks use it",
        line(8, _waiting(), _bytes(), _latency()),
        line(8, _used()),
    )


def _waiting() -> Panel:
    found, looked = "whyidle_process_uninterruptible_samples_total", "whyidle_process_state_samples_total"
    return trend(
        "Ranks and workers found waiting for storage",
        "Share of samples that found a main thread in state D, which usually is a read or write in progress. Only the "
        "six highest values are shown. If it is high for workers while the ranks wait for data, the storage is the "
        "limit.",
        average(found, looked, BY_ROLE, "{{owner}}/{{run}} rank {{rank}} {{role}}", most=6),
        unit="percentunit",
        width=8,
        most=1,
        thresholds=steps(0.5),
        dashed=True,
    )


def _bytes() -> Panel:
    told = {
        "read from storage": "whyidle_process_storage_read_bytes_total",
        "written to storage": "whyidle_process_storage_write_bytes_total",
        "read calls": "whyidle_process_syscall_read_bytes_total",
        "write calls": "whyidle_process_syscall_write_bytes_total",
    }
    return trend(
        "Read and written by the ranks",
        "Bytes per second of all ranks and their workers: bytes moved from and to storage, including page faults "
        "of mmap; bytes of all read and write calls, also if a cache served them; and bytes of checkpoints. For "
        "FUSE and most object stores only the calls count.",
        *(query(f"sum({rate(metric)})", words) for words, metric in told.items()),
        grows("whyidle_checkpoint_bytes_total", "kind", "checkpoints: {{kind}}"),
        unit="Bps",
        width=8,
    )


def _latency() -> Panel:
    return trend(
        "Time of a request",
        "Mean time, queueing included: for NFS by mount and operation, for Lustre by file system and operation, "
        "and for reads and writes of each disk; the slowest. If NFS or Lustre is slow and the disks are idle, "
        "look at the server or the network.",
        average(
            "whyidle_nfs_operation_seconds_total",
            "whyidle_nfs_operation_requests_total",
            "mount, operation",
            "NFS {{mount}} {{operation}}",
            most=3,
        ),
        average(
            "whyidle_lustre_operation_seconds_total",
            "whyidle_lustre_operation_calls_total",
            "filesystem, operation",
            "Lustre {{filesystem}} {{operation}}",
            most=3,
        ),
        *(
            average(
                f"whyidle_disk_{what}_seconds_total",
                f"whyidle_disk_{what}s_total",
                "device",
                f"{{{{device}}}} {what}",
                most=2,
            )
            for what in ("read", "write")
        ),
        unit="s",
        width=8,
        nothing="No request to a disk, NFS or Lustre",
    )


def _used() -> Panel:
    size, free = "whyidle_filesystem_size_bytes", "whyidle_filesystem_available_bytes"
    of_ranks = series("whyidle_filesystem_rank_info")
    return table(
        "File systems that the ranks use",
        "Where the open files of the ranks and their workers are, how many ranks use each, and the free space. A "
        "file that is open for a moment only can be missed. When space runs out or a file system turns read-only, "
        "checkpoints fail.",
        listed(f"count by ({PLACE}, source, use) (group by ({PLACE}, source, use, owner, run, rank) ({of_ranks}))"),
        listed(f"min by ({PLACE}) ({series(free)} / {series(size)})"),
        listed(f"min by ({PLACE}) ({series(free)})"),
        listed(f"min by ({PLACE}) ({series('whyidle_filesystem_free_inodes')})"),
        listed(f"max by ({PLACE}) ({series('whyidle_filesystem_readonly')})"),
        columns=[
            Column("mount", "Mount"),
            Column("fstype", "Type", width=90),
            Column("source", "Source"),
            Column("use", "Use", width=90),
            Column("A", "Ranks", "short", width=80),
            Column("B", "Free", "percentunit", cell="gauge", most=1, decimals=0, width=160),
            Column("C", "Bytes free", "bytes", width=110),
            Column("D", "Files free", "short", width=110),
            Column("E", "Read-only", "bool", width=90),
        ],
        sort="Free",
        rising=True,
        nothing="No rank has a file open",
    )

"""The NFS, Lustre and FUSE file systems of a node."""

from __future__ import annotations

from ..selection import average, each, grows, highest, level, levels, listed, series
from ..vocabulary import Column, Panel, Section, line, query, table, trend
from ..vocabulary import section as _section

MOUNT = "{{mount}}"
FILE_SYSTEM = "{{filesystem}}"
NO_NFS = "No NFS mount with requests"
NO_LUSTRE = "No Lustre mount with calls"
SOME = 2
"""The most mounts per counter in a panel with several counters."""


def section() -> Section:
    return _section(
        "NFS, Lustre and FUSE",
        line(9, _latency(), _under_way(), _slots()),
        line(9, _requests(), _trouble(), _bytes()),
        line(9, _lustre_latency(), _lustre_calls(), _lustre_bytes()),
        line(9, _nfs_mounts(), _lustre_mounts()),
        line(9, _fuse(), _open_files()),
        collapsed=True,
    )


def _latency() -> Panel:
    by, requests = "mount, operation", "whyidle_nfs_operation_requests_total"
    return trend(
        "NFS: time of a request",
        "Mean time by mount and operation, queueing in this client included; and the round trip alone. If the "
        "round trip grows, the server or the network is slow. If only the rest grows, there are too few slots or "
        "connections.",
        average("whyidle_nfs_operation_seconds_total", requests, by, MOUNT + " {{operation}}", most=5),
        average("whyidle_nfs_operation_rtt_seconds_total", requests, by, MOUNT + " {{operation}} trip", most=3),
        unit="s",
        width=8,
        nothing=NO_NFS,
    )


def _under_way() -> Panel:
    return trend(
        "NFS: requests under way and queued",
        "Seconds per second that requests took on the wire and at the server, and that they queued in this "
        "client. This is the average number of requests.",
        grows("whyidle_nfs_operation_rtt_seconds_total", "mount", MOUNT + " under way", most=5),
        grows("whyidle_nfs_operation_queue_seconds_total", "mount", MOUNT + " queued", most=4),
        unit="short",
        width=8,
        nothing=NO_NFS,
    )


def _slots() -> Panel:
    sends = "whyidle_nfs_transport_sends_total"
    return trend(
        "NFS: connections",
        "Connections of each mount, and the average number of requests that wait for a slot or for an answer.",
        *levels({"whyidle_nfs_transports": "connections"}, "mount", MOUNT, most=4),
        average("whyidle_nfs_backlog_requests_total", sends, "mount", MOUNT + " without a slot", most=SOME),
        average("whyidle_nfs_pending_requests_total", sends, "mount", MOUNT + " without an answer", most=SOME),
        unit="short",
        width=8,
        nothing=NO_NFS,
    )


def _requests() -> Panel:
    return trend(
        "NFS: requests",
        "Requests per second by operation, requests that the server answered with an error, and all answers.",
        grows("whyidle_nfs_operation_requests_total", "operation", "{{operation}}", most=12),
        grows("whyidle_nfs_operation_errors_total", "operation", "{{operation}} errors", most=SOME),
        grows("whyidle_nfs_transport_receives_total", "instance", "answers"),
        unit="ops",
        width=8,
        nothing=NO_NFS,
    )


def _trouble() -> Panel:
    return trend(
        "NFS: lost and sent again",
        "Requests per second that were sent again or timed out, by mount. Either the server does not answer, or the "
        "network loses packets.",
        *each(
            {
                "whyidle_nfs_retransmissions_total": "sent again",
                "whyidle_nfs_major_timeouts_total": "timeouts",
                "whyidle_nfs_connects_total": "connects",
                "whyidle_nfs_bad_xids_total": "unexpected answers",
            },
            "mount",
            MOUNT,
            most=SOME,
        ),
        unit="ops",
        width=8,
        nothing=NO_NFS,
    )


def _bytes() -> Panel:
    return trend(
        "NFS: bytes",
        "Bytes per second that processes read and wrote, through the page cache or directly, and bytes exchanged "
        "with the server. If much less comes from the server than processes read, the page cache helps.",
        *each(
            {
                "whyidle_nfs_read_bytes_total": "read",
                "whyidle_nfs_written_bytes_total": "written",
                "whyidle_nfs_direct_read_bytes_total": "read direct",
                "whyidle_nfs_direct_written_bytes_total": "written direct",
                "whyidle_nfs_server_read_bytes_total": "server read",
                "whyidle_nfs_server_written_bytes_total": "server write",
            },
            "mount",
            MOUNT,
            most=2,
        ),
        unit="Bps",
        width=8,
        nothing=NO_NFS,
    )


def _nfs_mounts() -> Panel:
    return table(
        "NFS mounts",
        "Which NFS file systems the node has mounted, from which server, over which network interface, and how long "
        "ago each was last asked.",
        listed(f"max by (mount, server, export, version, protocol, adapter) ({series('whyidle_nfs_info')})"),
        listed(f"min by (mount) ({series('whyidle_nfs_transport_idle_seconds')})"),
        columns=[
            Column("mount", "Mount"),
            Column("server", "Server"),
            Column("export", "Export"),
            Column("version", "Version", width=80),
            Column("protocol", "Protocol", width=80),
            Column("adapter", "Adapter", width=90),
            Column("B", "Last request", "s", width=110),
        ],
        width=14,
        nothing=NO_NFS,
    )


def _lustre_latency() -> Panel:
    return trend(
        "Lustre: time of a call",
        "Mean time that processes spent in a call, by operation; since Lustre 2.13.",
        average(
            "whyidle_lustre_operation_seconds_total",
            "whyidle_lustre_operation_calls_total",
            "filesystem, operation",
            FILE_SYSTEM + " {{operation}}",
            most=16,
        ),
        unit="s",
        width=8,
        nothing=NO_LUSTRE,
    )


def _lustre_calls() -> Panel:
    return trend(
        "Lustre: calls",
        "Calls per second by operation. Many opens and stats mean metadata work for small files.",
        grows("whyidle_lustre_operation_calls_total", "operation", "{{operation}}", most=16),
        *each({"whyidle_lustre_reads_total": "reads of data", "whyidle_lustre_writes_total": "writes of data"}),
        unit="ops",
        width=8,
        nothing=NO_LUSTRE,
    )


def _lustre_bytes() -> Panel:
    return trend(
        "Lustre: bytes",
        "Bytes per second that processes read and wrote, the client's cache included.",
        *each(
            {"whyidle_lustre_read_bytes_total": "read", "whyidle_lustre_written_bytes_total": "written"},
            "filesystem",
            FILE_SYSTEM,
            most=SOME,
        ),
        unit="Bps",
        width=8,
        nothing=NO_LUSTRE,
    )


def _lustre_mounts() -> Panel:
    return table(
        "Lustre file systems",
        "Which Lustre file systems the node is a client of, and its connections to object and metadata targets by "
        "state. Any other state than FULL and IDLE means that a target does not answer or that the client was evicted.",
        listed(f"max by (filesystem, mount, protocol, adapter) ({series('whyidle_lustre_info')})"),
        listed(f"sum by (filesystem, state) ({series('whyidle_lustre_connections')})"),
        columns=[
            Column("filesystem", "File system"),
            Column("mount", "Mount"),
            Column("protocol", "Protocol", width=80),
            Column("adapter", "Adapter", width=90),
            Column("state", "State", width=80),
            Column("B", "Connections", "short", width=100),
        ],
        width=10,
        nothing=NO_LUSTRE,
    )


def _fuse() -> Panel:
    return trend(
        "FUSE: requests that wait",
        "Requests that the daemon of each FUSE file system has not answered yet. If the number stays above 0 while "
        "ranks wait for data, the daemon, or the object store behind it, is slow.",
        level("whyidle_fuse_waiting_requests", "device, mount", "{{mount}} {{device}}", most=8),
        unit="short",
        width=12,
        nothing="No FUSE file system, or the agent may not see them",
    )


def _open_files() -> Panel:
    by = "owner, run, rank, mount"
    files = f"sum by ({by}) ({series('whyidle_filesystem_open_files')})"
    return trend(
        "Files open on the network",
        "Files that each rank and its workers have open, by mount: the file systems that a wait for data may "
        "come from, even if they have no counters.",
        query(highest(files, by, 8), "{{run}} rank {{rank}} {{mount}}"),
        unit="short",
        width=12,
        nothing="No rank uses a file system of the network",
    )

"""The NFS, Lustre and FUSE file systems of a node, in detail."""

from __future__ import annotations

from ..vocabulary import Column, Panel, Section, line, now, query, section, table, trend
from .selection import each, grows, level, levels, mean, series

MOUNT = "{{mount}}"


def sections() -> list[Section]:
    return [
        section(
            "Storage: NFS",
            line(6, _nfs_time(), _nfs_requests(), _nfs_trouble()),
            line(6, _nfs_bytes(), _nfs_server(), _nfs_transports()),
            line(6, _nfs_mounts()),
            collapsed=True,
        ),
        section(
            "Storage: Lustre",
            line(6, _lustre_bytes(), _lustre_calls(), _lustre_targets()),
            line(5, _lustre_mounts()),
            collapsed=True,
        ),
        section("Storage: FUSE and others of the network", line(6, _fuse(), _open_files()), collapsed=True),
    ]


def _nfs_time() -> Panel:
    return trend(
        "NFS: requests under way and queued",
        "Seconds per second that requests took on the wire and at the server, and that they queued in this client: how "
        "many there were on average.",
        grows("whyidle_nfs_operation_rtt_seconds_total", "mount", MOUNT + " under way"),
        grows("whyidle_nfs_operation_queue_seconds_total", "mount", MOUNT + " queued"),
        unit="short",
        width=8,
    )


def _nfs_requests() -> Panel:
    return trend(
        "NFS: requests",
        "Requests per second by operation, those that the server answered with an error, and answers of any kind.",
        grows("whyidle_nfs_operation_requests_total", "operation", "{{operation}}"),
        grows("whyidle_nfs_operation_errors_total", "operation", "{{operation}} errors"),
        grows("whyidle_nfs_transport_receives_total", "instance", "answers"),
        unit="ops",
        width=8,
    )


def _nfs_trouble() -> Panel:
    return trend(
        "NFS: lost and sent again",
        "Per second, by mount. Requests sent again or out of time: the server does not answer, or the network loses.",
        *each(
            {
                "whyidle_nfs_retransmissions_total": "sent again",
                "whyidle_nfs_major_timeouts_total": "timeouts",
                "whyidle_nfs_connects_total": "connects",
                "whyidle_nfs_bad_xids_total": "unexpected answers",
            },
            "mount",
            MOUNT,
        ),
        unit="ops",
        width=8,
    )


def _nfs_bytes() -> Panel:
    return trend(
        "NFS: bytes of processes",
        "Bytes per second that processes read and wrote, through the page cache or directly.",
        *each(
            {
                "whyidle_nfs_read_bytes_total": "read",
                "whyidle_nfs_written_bytes_total": "written",
                "whyidle_nfs_direct_read_bytes_total": "read directly",
                "whyidle_nfs_direct_written_bytes_total": "written directly",
            },
            "mount",
            MOUNT,
        ),
        unit="Bps",
        width=8,
    )


def _nfs_server() -> Panel:
    return trend(
        "NFS: bytes of the server",
        "Bytes per second that came from the server or went to it. Far less than processes read: the page cache helps.",
        *each(
            {"whyidle_nfs_server_read_bytes_total": "read", "whyidle_nfs_server_written_bytes_total": "written"},
            "mount",
            MOUNT,
        ),
        unit="Bps",
        width=8,
    )


def _nfs_transports() -> Panel:
    sends = "whyidle_nfs_transport_sends_total"
    return trend(
        "NFS: connections",
        "Connections of each mount, requests without a slot and without an answer as the mount saw them on average, "
        "and the time since the last request.",
        *levels({"whyidle_nfs_transports": "connections"}, "mount", MOUNT),
        query(mean("mount", "whyidle_nfs_backlog_requests_total", sends), MOUNT + " without a slot"),
        query(mean("mount", "whyidle_nfs_pending_requests_total", sends), MOUNT + " without an answer"),
        level("whyidle_nfs_transport_idle_seconds", "mount", MOUNT + " idle (s)"),
        unit="short",
        width=8,
    )


def _nfs_mounts() -> Panel:
    return table(
        "NFS mounts",
        "Which NFS file systems the node has mounted, and from whom.",
        now(series("whyidle_nfs_info")),
        columns=[
            Column("mount", "Mount"),
            Column("server", "Server"),
            Column("export", "Export"),
            Column("version", "Version"),
            Column("protocol", "Protocol"),
            Column("device", "Device"),
        ],
    )


def _lustre_bytes() -> Panel:
    return trend(
        "Lustre: bytes",
        "Bytes per second that processes read and wrote, the client's cache included.",
        *each(
            {"whyidle_lustre_read_bytes_total": "read", "whyidle_lustre_written_bytes_total": "written"},
            "filesystem",
            "{{filesystem}}",
        ),
        unit="Bps",
        width=8,
    )


def _lustre_calls() -> Panel:
    return trend(
        "Lustre: calls",
        "Calls per second by operation. Many opens and stats are metadata: small files.",
        grows("whyidle_lustre_operation_calls_total", "operation", "{{operation}}"),
        *each({"whyidle_lustre_reads_total": "reads of data", "whyidle_lustre_writes_total": "writes of data"}),
        unit="ops",
        width=8,
    )


def _lustre_targets() -> Panel:
    return trend(
        "Lustre: connections by state",
        "Connections to object and metadata targets. Anything but full and idle: a target does not answer, or the "
        "client was evicted.",
        query(f"sum by (filesystem, state) ({series('whyidle_lustre_connections')})", "{{filesystem}} {{state}}"),
        unit="short",
        width=8,
    )


def _lustre_mounts() -> Panel:
    return table(
        "Lustre file systems",
        "Which Lustre file systems the node is a client of.",
        now(series("whyidle_lustre_info")),
        columns=[Column("filesystem", "File system"), Column("name", "Name"), Column("mount", "Mount")],
    )


def _fuse() -> Panel:
    return trend(
        "FUSE: requests that wait",
        "Requests that the daemon of each FUSE file system has not answered yet. Steadily above 0 while ranks wait for "
        "data: the daemon, or the object store behind it, is slow.",
        level("whyidle_fuse_waiting_requests", "device, mount", "{{mount}} {{device}}"),
        unit="short",
        nothing="No FUSE file system, or the agent may not see them",
    )


def _open_files() -> Panel:
    return trend(
        "Files open on the network",
        "Files that each rank and its workers have open, by mount: which file system a wait for data may be spent in, "
        "also where that counts nothing itself.",
        query(
            f"sum by (owner, run, rank, mount) ({series('whyidle_filesystem_open_files')})",
            "{{run}} rank {{rank}} {{mount}}",
        ),
        unit="short",
        nothing="No rank uses a file system of the network",
    )

"""Alerts on file systems that are slow, do not answer, are read-only or run full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..config import Config
from ..rule import Alert, Group, Record
from .expressions import COUNT, NODE, TARGET, last_time, named, remembered, where
from .pace import paced

PLACE = ("mount", "fstype", "source", "device")
WRITABLE = "mount:whyidle_filesystem_writable:last_seconds"
LOW = "mount:whyidle_filesystem_free:ratio"
TURNED, USED = "mount:whyidle_filesystem_turned_readonly:one", "mount:whyidle_filesystem_turned_readonly:used"


def groups(config: Config) -> tuple[Group, ...]:
    slow, silent = _nfs(config)
    space, readonly = _space(config)
    ranks = config.series("whyidle_filesystem_rank_info", 'fstype=~"nfs.*"')
    # If the server is dead, the collector hangs too. So take the users that were known before.
    hangs = where(silent, config.on(*TARGET, "mount"), f"last_over_time({ranks}[{config.for_slow}])")
    rows = (*hangs, slow, _lustre(config), space, *readonly)
    critical, *patient = paced(config, "storage", rows, (_writable(config), _low(config)))
    return replace(critical, rules=(*_turned(config), *critical.rules)), *patient


def _writable(config: Config) -> Record:
    readonly = config.series("whyidle_filesystem_readonly")
    return last_time(config, WRITABLE, f"{readonly} == 0", *TARGET, *PLACE)


def _turned(config: Config) -> tuple[Record, Record]:
    """Usually there are no such file systems, so the alerts that use them cost little."""
    readonly, on = config.series("whyidle_filesystem_readonly"), config.on(*TARGET, *PLACE)
    return (
        Record(
            TURNED,
            f"{readonly} == 1\nand {on} ({remembered(config, WRITABLE)})",
            why="File systems that became read-only.",
        ),
        Record(USED, f"{TURNED} and {on} {_writers(config)}", why="Those of them to which ranks write."),
    )


def _low(config: Config) -> Record:
    of, free = config.alerts, config.series("whyidle_filesystem_available_bytes")
    share = f"{free} / {config.series('whyidle_filesystem_size_bytes')}"
    forecast = f"predict_linear({free}[{config.long_window}], {of.fill_hours:g} * 3600) < 0"
    return Record(
        LOW,
        f"({share} < {of.free_space_share} or {share} < {of.filling_share} and {forecast})\n"
        f"and {config.on(*TARGET, *PLACE)} {_writers(config)}",
        why="The share of free space of file systems to which ranks write, where it is small.",
    )


def _writers(config: Config) -> str:
    return config.series("whyidle_filesystem_rank_info", 'use="write"')


def _nfs(config: Config) -> tuple[Alert, ...]:
    of = config.alerts
    by = config.by(*TARGET, "mount", "operation")
    matchers = 'operation=~"read|write"'
    seconds = f"sum {by} ({config.rate('whyidle_nfs_operation_seconds_total', config.window, matchers)})"
    requests = f"sum {by} ({config.rate('whyidle_nfs_operation_requests_total', config.window, matchers)})"
    timeouts = config.series("whyidle_nfs_major_timeouts_total")
    return (
        Alert(
            "WhyidleNfsSlow",
            named(config, f"{seconds}\n/ ({requests} > {of.nfs_requests_per_second:g})\n> {of.nfs_seconds}"),
            config.for_slow,
            "warning",
            f"NFS is slow on {NODE}: {{{{ $labels.mount }}}}.",
            "On the node at {{ $labels.instance }} a {{ $labels.operation }} of {{ $labels.mount }} takes "
            f"{{{{ $value | humanizeDuration }}}} on average over the last {config.window}.",
        ),
        Alert(
            "WhyidleNfsNotResponding",
            named(config, f"increase({timeouts}[{config.window}]) > 0"),
            "0s",
            "critical",
            f"The NFS server of {{{{ $labels.mount }}}} does not answer {NODE}.",
            "On the node at {{ $labels.instance }} requests to the server of {{ $labels.mount }} failed after "
            f"all retries. Within {config.window}: {COUNT}. Processes that read or write there hang in state D.",
        ),
    )


def _lustre(config: Config) -> Alert:
    connections = config.series("whyidle_lustre_connections", 'state!~"full|idle"')
    return Alert(
        "WhyidleLustreDisconnected",
        named(config, f"{connections} > 0"),
        config.for_soon,
        "warning",
        f"{NODE} has lost Lustre targets of {{{{ $labels.filesystem }}}}.",
        "On the node at {{ $labels.instance }} targets of {{ $labels.filesystem }} are in the state {{ $labels.state "
        "}}: {{ $value }}. Files on them cannot be read or written.",
    )


def _per_filesystem(config: Config, expr: Callable[[str], str]) -> str:
    """One result per shared file system, for all nodes together; one result per node for other file systems.

    ``expr`` gets matchers and returns the expression with these matchers in all of its selectors.
    """
    shared = config.alerts.shared_fstypes
    across = expr(f'fstype=~"{shared}"')
    alone = expr(f'fstype!~"{shared}"')
    own = f"min {config.by(*TARGET, *PLACE)} (\n  {alone}\n)"
    return f"min {config.by('mount', 'fstype', 'source')} (\n  {across}\n)\nor\n{named(config, own)}"


def _space(config: Config) -> tuple[Alert, tuple[Alert, Alert]]:
    of, hour, on = config.alerts, config.long_window, config.on(*TARGET, *PLACE)
    place = "{{ $labels.mount }}{{ with $labels.node }} on {{ . }}{{ end }}"
    readonly = Alert(
        "WhyidleFilesystemReadOnly",
        "",
        config.for_now,
        "critical",
        f"{place} has become read-only.",
        f"Ranks use {place} ({{{{ $labels.source }}}}), which has become read-only. This is often a sign of a "
        "failing disk or server.",
    )
    return (
        Alert(
            "WhyidleCheckpointSpaceLow",
            _per_filesystem(config, lambda which: f"{LOW}{{{which}}}"),
            config.for_slow,
            "warning",
            f"{place} has {{{{ $value | humanizePercentage }}}} of its space left.",
            f"Ranks write to {place} ({{{{ $labels.source }}}}), which has {{{{ $value | humanizePercentage }}}} of "
            f"its space left. It is nearly full, or will be full within {of.fill_hours:g} h at the pace of the last "
            f"{hour}. The next checkpoint may fail, and the run with it.",
        ),
        (
            replace(readonly, expr=_per_filesystem(config, lambda which: f"{USED}{{{which}}}")),
            replace(
                readonly,
                expr=_per_filesystem(config, lambda which: f"{TURNED}{{{which}}} unless {on} {USED}"),
                severity="warning",
            ),
        ),
    )

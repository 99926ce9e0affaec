"""Templates that name the mounts and the links at which a run loses its time."""

from __future__ import annotations

from ...agent.metrics.ranks import RUN
from ..config import Config
from ..recording.mounts_links import LINK, MOUNT
from ..recording.names import (
    LINK_LIMIT,
    MOUNT_LIMIT,
    link_bandwidth,
    link_resent,
    link_transfer_bandwidth,
    mount_bandwidth,
    mount_blocked,
)
from .expressions import HERE, each

SOME_RANKS = 0.01
"""Mounts at which fewer ranks are blocked on average are not named."""


def mounts(config: Config, activities: str) -> str:
    """A template: where a run is blocked on files, at which rate, and what limits it. ``activities`` is a pattern.

    It looks back over the long window, because saves come in bursts.
    """
    window, long = config.window, config.long_window
    of_files = f'{mount_blocked(window)}{{{HERE},activity=~"{activities}"}}'
    blocked = f"sum without (activity) (avg_over_time({of_files}[{long}]) > {SOME_RANKS})"
    rate = each(
        config,
        f"avg_over_time({mount_bandwidth(window)}{{{HERE}}}[{long}])",
        MOUNT,
        ", {{ .Value | humanize }}B/s{{ if eq .Labels.counted_by `processes` }} a rank at most{{ end }}",
        of=".Labels",
    )
    limit = each(
        config,
        MOUNT_LIMIT,
        MOUNT,
        " of {{ .Value | humanize }}B/s ({{ .Labels.limit_by }})",
        of=".Labels",
    )
    return each(
        config,
        f"sort_desc({blocked} >= {config.alerts.main_share} * scalar(max({blocked})))",
        RUN,
        f" In the last {long}, "
        '{{ .Value | printf "%.2g" }} ranks were blocked at {{ .Labels.mount }} ({{ .Labels.fstype }}) on average'
        f"{rate}{limit}.",
    )


def links(config: Config) -> str:
    """A template: which links carry the transfers of a run, at which rate, and what would be possible."""
    window, carried = config.window, f"{link_bandwidth(config.window)}{{{HERE}}}"
    bits = "{{ .Value | humanize }}bit/s"
    parts = (
        (f"8 * {link_transfer_bandwidth(window)}{{{HERE}}}", f", {bits} while ranks wait"),
        (f"8 * {LINK_LIMIT}{{{HERE}}}", f", {bits} possible{{{{ with .Labels.limit_by }}}} ({{{{ . }}}}){{{{ end }}}}"),
        (
            f"{link_resent(window)}{{{HERE}}} > {config.tcp_retransmit_share}",
            ", {{ .Value | humanizePercentage }} of segments sent again",
        ),
    )
    return each(
        config,
        f"sort_desc({carried} >= {config.alerts.main_share} * scalar(max({carried})))",
        RUN,
        " Transfers go over {{ .Labels.link }}"
        + "".join(each(config, query, LINK, text, of=".Labels") for query, text in parts)
        + ".",
    )

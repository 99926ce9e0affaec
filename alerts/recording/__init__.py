"""The recording rules, one module per question; each may use what the ones before it recorded."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import Config
from ..rule import Group, Record
from . import bandwidth, corroboration, ranks, shares, stragglers, verdict


def groups(config: Config) -> list[Group]:
    """All recording rules, in the order in which they build upon each other."""
    return [
        Group("whyidle-ranks", config.interval, ranks.rules(config)),
        *(
            Group(f"whyidle-shares-{window}", interval, _of_window(config, window))
            for window, interval in zip(config.windows, config.intervals, strict=True)
        ),
        Group("whyidle-bandwidth", config.counters_interval, bandwidth.rules(config)),
        Group("whyidle-evidence", config.counters_interval, corroboration.rules(config)),
        Group("whyidle-verdict", config.interval, tuple(_verdicts(config))),
    ]


def _verdicts(config: Config) -> Iterator[Record]:
    for window in config.windows:
        yield from verdict.rules(config, window)


def _of_window(config: Config, window: str) -> tuple[Record, ...]:
    return (
        *shares.rules(config, window),
        *verdict.basis(config, window),
        *stragglers.rules(config, window),
        *verdict.conclusion(config, window),
    )

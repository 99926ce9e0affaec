"""What a run lost most to, as `whyidle report` concludes it: agent/verdict.py has the same rules and thresholds."""

from __future__ import annotations

from ...agent.metrics.ranks import RUN
from ..config import Config
from ..promql import any_of, indented, labelled, lines
from ..rule import Record
from .corroboration import FAMILIES
from .names import MISSING, charged, confirmed, device_seconds, late, lateness, leading, since_first_step, verdict
from .stragglers import open_waits


def basis(config: Config, window: str) -> tuple[Record, ...]:
    """What a verdict is about; the rules of stragglers need it too."""
    by = config.by(*RUN, "family")
    return (
        Record(
            since_first_step(window),
            f'sum {by} ({device_seconds("run_cause", window)}{{cause!="startup"}})\n'
            f"or {config.on(*RUN, 'family')} 0 * {device_seconds('run_family', window)}",
            why="What came before the first step stands apart.",
        ),
    )


def conclusion(config: Config, window: str) -> tuple[Record, ...]:
    """The family that a verdict names."""
    worst = f'topk {config.by(*RUN)} (1, {charged(window)}{{family!="compute"}} >= {config.verdict_share:g})'
    return (
        Record(
            charged(window),
            _charged(config, window),
            why="Waits for late ranks are charged to what made them late: a conclusion, not a measurement.",
        ),
        Record(
            leading(window),
            f'{worst}\nor {config.on(*RUN)} {charged(window)}{{family="compute"}}',
            why="The largest family other than compute if it is large enough, else compute.",
        ),
    )


def _charged(config: Config, window: str) -> str:
    spent, run = since_first_step(window), config.on(*RUN)
    closed = f'-{spent}{{family="straggler"}} and {run} {lateness(window)}'
    opened = f"-({open_waits(config, window)}) and {run} {MISSING}"
    parts = lines(
        spent,
        labelled(f"sum {config.by(*RUN, 'family')} ({late('run_rank_family', window)})", "part", "late"),
        labelled(closed, "part", "closed"),
        labelled(labelled(opened, "family", "communication"), "part", "open"),
    )
    return (
        f"clamp_min(sum {config.by(*RUN, 'family')} (\n{indented(parts)}\n), 0)\n"
        f"/ {run} group_left ()\n(sum {config.by(*RUN)} ({spent}) > 0)"
    )


def rules(config: Config, window: str) -> tuple[Record, ...]:
    """The verdict, with what the nodes' counters say to it."""
    name, found, on = verdict(window), leading(window), config.on(*RUN, "family")
    # Evidence has a window of its own, which a shorter verdict takes as it is.
    ratio = confirmed(f"ratio{config.long_window if window == config.long_window else config.window}")
    agreed = f"({ratio} >= {config.confirmed_share:g})"
    refutable = any_of(FAMILIES)
    return (
        Record(name, f"{found} and {on} {agreed}", {"corroboration": "confirmed"}),
        Record(name, f'{found}{{family=~"{refutable}"}} unless {on} {agreed}', {"corroboration": "unconfirmed"}),
        Record(
            name,
            f'{found}{{family!~"{refutable}"}}',
            {"corroboration": "none_needed"},
            why="The ranks' own clocks are all the evidence that there can be.",
        ),
    )

"""Advice on how the loading of data begins: the start of workers, their first batches, and batches that are skipped."""

from __future__ import annotations

from dataclasses import replace

from ...ledger.programs import PERSISTENT
from ...verdict import mounts, workers
from ..whatif.changes import Changes
from .case import Case
from .gains import formula, percent, replayed, without
from .options import setting
from .rule import FLOOR, FULL, Found, Rule


def _first(case: Case) -> Found | None:
    """A first batch takes as long as any, plus what the worker does once: it fills a buffer, or opens files."""
    if case.basis is None or mounts.full(case.ranks, "data") >= FULL:
        return None  # at a mount at its bandwidth, the first batch waits for its bytes
    first = sum(step.first for one in case.basis.trace.ranks for step in one.steps)
    share = first / sum(step.wall for one in case.basis.trace.ranks for step in one.steps)
    gain = replayed(case, Changes(first_batches=True))
    if gain is None or share < FLOOR:
        return None
    return Found(
        "Make the first batch after each `iter(loader)` quicker: use a smaller shuffle buffer, open files once, or keep"
        " one iterator over a dataset that repeats itself",
        replace(gain, least=0.0),
        (
            f"the loop waits {percent(share)} of the time for the first batches of workers after `iter(loader)`."
            " Nothing is prefetched at that moment, so more workers or prefetching would not help",
        ),
    )


def _skip(case: Case) -> Found | None:
    skipped = sum(rank.skipped_batches for rank in case.ranks)
    share = sum(rank.skipped for rank in case.ranks) / case.window
    if not workers.skips(case.ranks):
        return None
    return Found(
        "Save the position of the loader in the checkpoint (`StatefulDataLoader` of torchdata), or skip in the sampler",
        formula(share),
        (
            f"the loop took {skipped} batches without computing on them, {percent(share)} of the time: it skips what it"
            " had trained on before a restart",
        ),
    )


def _start(case: Case) -> Found | None:
    share = case.share("data_start")
    again = max(rank.newest.words["loader_starts"][1] for rank in case.ranks) > 1  # 0: all are kept
    if share < FLOOR or not again:
        return None
    gain = without(case, "data_start")
    if gain.share < FLOOR:  # in the replay, the workers of another loader are the limit: these may be in their way
        gain = formula(share, max(0.0, gain.least))
    return Found(
        f"Keep the data workers: set {setting(case, PERSISTENT, 'True')}, and create each loader only once, also one"
        " for the evaluation. A loader that is used for a few batches needs fewer workers, or none",
        gain,
        (f"the loop waits {percent(share)} of the time for data workers to start",),
        {"persistent_workers": "True"},
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "data.first",
        ("storage", "cpu"),
        "The loop waits for the first batches of workers after `iter(loader)`, for example while they fill a shuffle"
        " buffer",
        "Use a smaller shuffle buffer, or keep one iterator",
        "Replay in which the first batches take no time. Lower bound: 0",
        "the first step of an epoch takes less time",
        _first,
        removes=("data_read", "data_cpu", "data_queue"),
    ),
    Rule(
        "data.skip",
        ("storage", "cpu", "host"),
        "The loop takes many batches after a restart and does not compute on them",
        "Save the position of the loader, with torchdata's `StatefulDataLoader`",
        "The time in which it took them",
        "the first step after a restart comes sooner",
        _skip,
        removes=None,
    ),
    Rule(
        "data.start",
        ("host",),
        "The loop waits for data workers to start more than once, for example at the start of each epoch or evaluation",
        "Set `persistent_workers=True`, and create each loader only once",
        "Replay without `data_start`. Workers that are kept still start once. If the replay finds nothing to save,"
        " because the workers of another loader are the limit, the share of `data_start`, with a lower bound of 0",
        "`data_start` stops growing after the first epoch",
        _start,
        removes=("data_start",),
    ),
)

"""The answer to a what-if question as JSON: what each change saves alone, what all save together, and the
assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace

from ...ledger.directory import Run
from ...ledger.reader import Ledger
from ...verdict.accounts import account
from ...verdict.enough import Limits, too_short
from .changes import NONE, Changes, written
from .predict import Basis, Prediction, each_alone, flat_from, predict, sweep
from .trace import NoTrace, Trace, as_reported, trace_of, with_late_ends

ASSUMED: dict[str, str] = {
    "network": "a transfer takes 1/K of its time: no part of it is latency, or work of the ranks themselves. If"
    " ranks lack CPU time for transfers, a faster network may save no more than `at least`. Ledgers do not record how"
    " much of a transfer is hidden behind compute: a faster network can save more, up to `at most`",
    "storage": "reads of data workers, saves and restores take 1/K of their time. A loop that waits for its workers"
    " again and again is as slow as the workers. Batches that are ready in time now stay ready in time",
    "straggler": "a rank that was late because of its own time takes as long as its peers did in that step (their lower"
    " median). Peers are the ranks that meet in collectives, except other stages of a pipeline",
    "pipeline": "the stages of a pipeline share their compute evenly. Their schedule, microbatches and messages do not"
    " change",
    "cpu": "workers compute in 1/K of their time, and nothing queues for a CPU for longer than that",
    "host": "the loop's own code, garbage collection, compilation and blocked code take 1/K of their time",
    "compute": "forward, backward and optimizer take 1/K of their time",
    "checkpoint": "a save blocks the loop for 1/K of its time. An asynchronous save blocks it only while it copies,"
    " and until the save before it is written. A loop that saves in its own way is assumed not to"
    " wait for the copy, either, and in `at least` to save as before",
    "workers": "one worker alone makes a batch. More workers read no faster from a mount that is at its bandwidth."
    " Where it is not known what limits a mount, reads of several workers do not slow one another, and in `at least`"
    " they become no faster. Workers that queue for a CPU now do not compute faster when there are more of them",
}
"""The name of a change -> what its prediction assumes."""


@dataclass(frozen=True, slots=True)
class Hours:
    """What a run has cost so far."""

    gpu_hours: float
    """The hours of all ranks together, from the first step on."""
    job_hours: float
    """The hours of the rank with the most, from the first step on."""
    price: float
    """The price of a GPU-hour; 0 if not known."""
    currency: str


def names_of(changes: Changes) -> list[str]:
    """The names of the changes, as in ASSUMED."""
    names = {"async_save": "checkpoint", "no_stragglers": "straggler", "balanced": "pipeline"}
    return list(
        dict.fromkeys(
            names.get(field.name, field.name)
            for field in fields(changes)
            if getattr(changes, field.name) != field.default
            and field.name not in ("causes", "first_batches", "full", "groups", "hidden", "queued")
        )
    )


def options_of(changes: Changes) -> str:
    """The changes, written as options of the command line."""
    said = []
    for name in names_of(changes):
        if name == "straggler":
            said.append("--straggler none")
        elif name == "pipeline":
            said.append("--pipeline balance")
        elif name == "workers":
            said.append(f"--workers +{changes.workers}")
        elif name == "checkpoint" and changes.async_save:
            said.append("--checkpoint async")
        else:
            said.append(f"--{name} {written(getattr(changes, name))}")
    return " ".join(said)


def apart(changes: Changes) -> list[Changes]:
    """Separates several changes into one `Changes` for each."""
    return [
        Changes(**{field.name: value})
        for field in fields(changes)
        if (value := getattr(changes, field.name)) != field.default
    ]


def answer(
    run: Run,
    ledgers: Sequence[Ledger],
    now_ns: int,
    changes: Changes,
    *,
    price: float = 0.0,
    currency: str = "$",
    swept: bool = False,
    least: Limits | None = None,
) -> dict[str, object]:
    """What ``changes`` save in a run. Without any change, what removing each loss alone would save. Raises NoTrace.

    ``swept``: include the curve over the changed factors, or over that of the network if no factor is changed.
    ``least``: see `too_short`. A shorter run has no trace.
    """
    whole = account(run, ledgers, now_ns)
    trace = as_reported(trace_of([rank.newest for rank in whole.ranks]), whole.ranks)
    trace = with_late_ends(trace, whole)
    if short := too_short(whole, least):
        raise NoTrace(short.sentence)
    basis = Basis.of(trace)
    hours = Hours(whole.rank_seconds / 3600, max(rank.wall for rank in whole.ranks) / 3600, price, currency)
    rows = [(options_of(each), each, predict(basis, each)) for each in apart(changes)]
    if not rows:
        rows = [(options_of(each), each, found) for each, found in each_alone(basis)]
    together = predict(basis, changes) if changes.any and len(rows) > 1 else None
    curve = _curve(basis, changes) if swept else None
    return {
        "owner": whole.owner,
        "run": whole.run,
        "ranks": len(whole.ranks),
        "accelerated": trace.accelerated,
        "steps": max(rank.steps for rank in whole.ranks),
        "replayed_steps": len(basis.walls),
        "left_out_steps": trace.left_out,
        "step_seconds": basis.step_seconds,
        "unsplit_share": _unsplit(trace),
        "job_hours": hours.job_hours,
        "gpu_hours": hours.gpu_hours,
        "price": price or None,
        "currency": currency,
        "changes": [_entry(options, found, basis, hours) for options, _, found in rows],
        "together": None if together is None else _entry(options_of(changes), together, basis, hours),
        "assumed": {name: ASSUMED[name] for _, each, _ in rows for name in names_of(each)},
        "sweep": curve,
    }


def _entry(options: str, found: Prediction, basis: Basis, hours: Hours) -> dict[str, object]:
    saved = found.share * hours.gpu_hours
    return {
        "options": options,
        "step_seconds": (1 - found.share) * basis.step_seconds,
        **asdict(found),
        "gpu_hours_saved": saved,
        "money_saved": saved * hours.price if hours.price else None,
    }


def _curve(basis: Basis, changes: Changes) -> dict[str, object]:
    if not [*changes.scaled]:
        changes = replace(changes, network=NONE)
    curve = list(sweep(basis, changes))
    return {
        "options": [f"--{name}" for name in changes.scaled],
        "points": [
            {"factor": written(value), "step_seconds": (1 - found.share) * basis.step_seconds, **asdict(found)}
            for value, found in curve
        ],
        "flat_from": written(flat_from(curve)) if curve[-1][1].share > 0 else None,
    }


def _unsplit(trace: Trace) -> float:
    """The share of the replayed time that was spent in unsplit waits, which no change makes shorter."""
    waited = sum(step.unsplit for one in trace.ranks for step in one.steps)
    return waited / sum(step.wall for one in trace.ranks for step in one.steps)

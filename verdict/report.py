"""Builds the report on one run, as JSON: its account and its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType

from ..ledger.causes import CAUSE_ROW, CAUSES, OUTSIDE_CAUSES
from ..ledger.directory import Problem, Run, run_of, sentences
from ..ledger.layout import STEPS_BY
from ..ledger.reader import Ledger
from . import background, by_mount
from .absent import not_begun
from .accounts import NO_IDLE, RunAccount, account, rank_entry, shares, step_times
from .aside import asides
from .beginning import startup_waits
from .drift import drifts
from .ends import counted, earlier_sentences, end_sentences, failed_sentences, finish_sentences, state_of
from .enough import Limits, limits, too_short
from .evidence import hang_sentences
from .gaps import Idle
from .given import Given
from .outside import sentences as outside_sentences
from .recent import SAVING, first_batch, recent
from .spare import spare_of
from .standing import sentences as standing_sentences
from .verdict import verdict
from .workers import open_waits

FORMAT = 1
"""The format of the report's JSON. Raise it when a field changes its meaning or is removed. Reports without the field
`format` have format 0."""
OPEN_SECONDS = 2.0
"""The report mentions a wait for a batch that has been open for this long."""
NOTHING_SEEN: Mapping[int, str] = MappingProxyType({})
MANY_BATCHES = 100
"""After this many batches a loop has usually made a step, also if it accumulates gradients."""
LONG_STARTUP_SECONDS, STARTUP_SHARE = 10.0, 0.05
"""A startup that is longer than the training is mentioned if it takes this long, with the causes that have this share
of it."""
LEAST_SUSPENDED_SECONDS = 1.0
"""Shorter suspensions of the machine are not mentioned."""
_STARTING: dict[str, str] = {
    "startup": "in imports, process groups, building the model and the dataset",
    "checkpoint_read": "loading checkpoints or other files with torch",
}
MANY_STEPS = 20
"""After this many steps a loop has usually taken a batch from a loader."""


def runs(ledgers: Sequence[Ledger]) -> list[Run]:
    """The runs that have ledgers, each as (owner, name), newest first."""
    created: dict[Run, int] = {}
    for ledger in ledgers:
        run = run_of(ledger)
        created[run] = max(created.get(run, 0), ledger.created_unix_ns)
    return sorted(created, key=lambda run: -created[run])


def build_report(
    run: Run,
    ledgers: Sequence[Ledger],
    now_ns: int,
    problems: Sequence[Problem] = (),
    idle: Mapping[int, Idle] = NO_IDLE,
    why_not: str = "",
    doing: Mapping[int, str] = NOTHING_SEEN,
    least: Limits | None = None,
) -> dict[str, object]:
    """Builds the report on ``run`` (owner and name) from ledgers that were read with their steps.

    ``now_ns`` is CLOCK_MONOTONIC. ``idle``: rank -> its compute in which the GPU's own counters saw no
    kernel (gaps.py); ``why_not`` says why that is not known for any rank.

    ``doing``: rank -> what the data worker does that owes its batch, as one of DOES of workers.py.

    In the report, ``open`` has the long waits for batches that are open. ``state`` is `live`, `ended` and so on
    (ends.py). ``seconds`` are summed over ranks and attempts. ``families`` are shares of all ranks' time in the window.
    ``explained`` are seconds in the window by family, with the waits for late ranks under what made these late.
    ``wall_seconds``, ``startup_seconds`` and ``outside_seconds`` (outside.py) are the largest of any rank.
    ``verdict`` is None before the first step, and while the run is shorter than ``least`` (enough.py): ``too_short``
    then says why, and is None otherwise.
    ``remarks`` are sentences about the run. ``startup`` has the causes of the rank with the longest startup.
    ``startup_waits``: see beginning.py. ``not_begun``: absent.py. ``hangs`` are waits that are open now, and
    ``never_entered`` those of a run that has ended. ``saves`` and ``restores`` have the seconds of the rank that they
    blocked longest.
    ``recent`` is the sample that recent.py describes, or None. ``drifts``: how steps and memory have changed since the
    first steps (drift.py). ``asides``: evaluations and rollouts (aside.py). ``background``: see background.py.
    ``given``: the CPUs and memory of the nodes, given and used (given.py). ``gpus``: nodes of which
    some visible GPU is unused (spare.py).
    """
    whole = account(run, ledgers, now_ns, idle)
    least = limits() if least is None else least
    conclusion = verdict(whole, least)
    short = too_short(whole, least) if conclusion is None else None
    explained = conclusion.pop("seconds") if conclusion is not None else None
    seconds = {cause: sum(rank.seconds[cause] for rank in whole.ranks) for cause in CAUSES}
    newest = [rank.newest for rank in whole.ranks]
    changes = drifts(newest)
    return {
        "format": FORMAT,
        "owner": whole.owner,
        "run": whole.run,
        "state": state_of(newest),
        "ranks": len(whole.ranks),
        "world_size": max((rank.newest.world_size for rank in whole.ranks), default=0),
        "steps": max((rank.steps for rank in whole.ranks), default=0),
        "steps_by": _steps_by(whole),
        "step_seconds": step_times([spent for rank in whole.ranks for spent in rank.step_seconds]),
        "wall_seconds": max((rank.wall for rank in whole.ranks), default=0.0),
        "startup_seconds": max((rank.startup for rank in whole.ranks), default=0.0),
        "outside_seconds": {
            cause: max((rank.outside[cause] for rank in whole.ranks), default=0.0) for cause in OUTSIDE_CAUSES
        },
        "startup": max(whole.ranks, key=lambda rank: rank.startup).before if whole.ranks else {},
        "startup_waits": startup_waits(whole),
        "not_begun": not_begun(newest),
        "first_batch_seconds": first_batch(newest),
        "saves": _blocked(whole, SAVING, [rank.saves for rank in whole.ranks])
        | {"bytes": sum(rank.save_bytes for rank in whole.ranks)},
        "restores": _blocked(whole, ("checkpoint_read",), [rank.loads for rank in whole.ranks]),
        "samples": sum(rank.samples for rank in whole.ranks),
        "rank_seconds": whole.rank_seconds,
        "seconds": seconds,
        "families": shares(whole.family_seconds(), whole.rank_seconds),
        "explained": explained,
        "verdict": conclusion,
        "too_short": short.entry if short else None,
        "gpus": [asdict(one) | {"sentence": one.sentence} for one in spare_of(run, [*newest, *_others(run, ledgers)])],
        "asides": [one.entry for one in asides(whole)],
        "given": Given(whole).entry,
        "mounts": by_mount.entries(whole),
        "background": background.entries(newest),
        "recent": recent(newest) if newest else None,
        "per_rank": [rank_entry(rank, now_ns) for rank in whole.ranks],
        "unaccounted_seconds": sum(rank.wall - sum(rank.seconds.values()) for rank in whole.ranks),
        "hangs": [
            {
                "rank": missing.ledger.rank,
                "seconds": missing.seconds,
                "waiting": [ledger.rank for ledger in missing.waiting],
                "silent_seconds": missing.silent,
            }
            for missing in whole.missing
        ],
        "different_collectives": [*whole.apart, *whole.places_apart],
        "drifts": [asdict(found) | {"sentence": found.sentence} for found in changes],
        "remarks": [
            *_long_startup(whole),
            *_without_optimizer(whole),
            *_outside(whole),
            *_suspended(newest),
            *finish_sentences(newest, now_ns),
            *standing_sentences(newest, now_ns, _awaited(whole)),
            *(found.sentence for found in changes),
        ],
        "open": [asdict(wait) | {"sentence": wait.sentence} for wait in open_waits(whole, doing, OPEN_SECONDS)],
        "never_entered": [
            {
                "ranks": [ledger.rank for ledger in found.missing],
                "seconds": found.seconds,
                "waiting": [wait.ledger.rank for wait in found.waits],
            }
            for found in whole.unentered
        ],
        "problems": [
            *(hang_sentences(whole) if conclusion is None else ()),  # a verdict has them as evidence
            *failed_sentences(newest, now_ns),
            *end_sentences(newest),
            *earlier_sentences((one for one in ledgers if run_of(one) == run), newest),
            *_hook_problems(whole),
            *_no_steps(whole),
            *_no_batches(whole),
            *_not_looked(whole, why_not),
            *sentences(problems),
        ],
    }


def _others(run: Run, ledgers: Sequence[Ledger]) -> list[Ledger]:
    return [ledger for ledger in ledgers if run_of(ledger) != run]


def _long_startup(whole: RunAccount) -> list[str]:
    """Says what the startup was in, if a rank took longer for it than for its training."""
    rank = max(whole.ranks, key=lambda one: one.startup, default=None)
    if rank is None or not rank.steps or rank.startup < max(LONG_STARTUP_SECONDS, rank.wall):
        return []
    parts = sorted(rank.before.items(), key=lambda entry: -entry[1])
    said = [f"{spent:.1f} s {_STARTING.get(cause) or CAUSE_ROW[cause].words}" for cause, spent in parts]
    count = sum(spent >= STARTUP_SHARE * rank.startup for _, spent in parts)
    attempts = f" in {rank.attempts} attempts" if rank.attempts > 1 else ""
    return [
        f"startup took {rank.startup:.1f} s{attempts}, longer than the training ({rank.wall:.1f} s"
        f"{' so far' if rank.newest.alive else ''}): {', '.join(said[:count])}"
    ]


def _steps_by(whole: RunAccount) -> str:
    """What the steps of a rank are counted by, if it uses no optimizer of torch; otherwise empty."""
    return STEPS_BY[max((rank.newest.words["steps_by"][0] for rank in whole.ranks), default=0)]


def _without_optimizer(whole: RunAccount) -> list[str]:
    counted = {"updates": "changes of the parameters or their gradients"}.get(by := _steps_by(whole), by)
    return [f"no optimizer of torch was seen: steps are counted by {counted}"] if by else []


def _outside(whole: RunAccount) -> list[str]:
    """What the rank says that spent most time outside its loop."""
    rank = max(whole.ranks, key=lambda one: sum(one.outside.values()), default=None)
    return outside_sentences(rank.rank, rank.wall, rank.outside, rank.newest, rank.attempts) if rank is not None else []


def _suspended(newest: Sequence[Ledger]) -> list[str]:
    """Nodes whose machine was suspended while a rank that lives was there."""
    longest: dict[str, float] = {}
    for ledger in newest:
        longest[ledger.node] = max(longest.get(ledger.node, 0.0), ledger.machine_suspended_ns / 1e9)
    return [
        f"the machine {node} was suspended for {seconds:.0f} s since its ranks began: that is in none of these times"
        for node, seconds in longest.items()
        if seconds >= LEAST_SUSPENDED_SECONDS
    ]


def _awaited(whole: RunAccount) -> set[int]:
    """The ranks that are missing from a collective, or were when they ended."""
    never = [ledger.rank for found in whole.unentered for ledger in found.missing]
    return {*never, *(missing.ledger.rank for missing in whole.missing)}


def _not_looked(whole: RunAccount, why_not: str) -> list[str]:
    """``why_not``: why the GPUs' own counters are not known."""
    unknown = any(rank.gaps_unknown for rank in whole.ranks)
    return [f"{why_not}: idle time between kernels counts as compute here"] if why_not and unknown else []


def _blocked(whole: RunAccount, causes: Sequence[str], counts: Sequence[int]) -> dict[str, float]:
    """How often and for how many seconds in total; includes the time before the first step."""
    spent = [sum(rank.seconds[cause] + rank.before[cause] for cause in causes) for rank in whole.ranks]
    return {"count": max(counts, default=0), "seconds": max(spent, default=0.0)}


def _no_steps(whole: RunAccount) -> list[str]:
    batches = max((rank.newest.batches for rank in whole.ranks), default=0)
    if batches < MANY_BATCHES or any(rank.steps for rank in whole.ranks):
        return []
    return [
        f"{batches} batches came, but no step was seen: if the loop uses no optimizer of torch, call whyidle.step() at "
        "the end of each step"
    ]


def _no_batches(whole: RunAccount) -> list[str]:
    """On an accelerator, only the GPU's counters show that a loop waits for batches that it makes itself."""
    ranks = whole.ranks
    seen = any(rank.batches or rank.newest.marked_data or rank.gaps is not None for rank in ranks)
    steps = max((rank.steps for rank in whole.ranks if rank.newest.device != "cpu"), default=0)
    if steps < MANY_STEPS or seen:
        return []
    return [
        f"no batch was seen in {steps} steps. If the loop makes its batches itself, that time counts as compute here: "
        'make them in `with whyidle.phase("data")`'
    ]


def _hook_problems(whole: RunAccount) -> list[str]:
    sentences = []
    failed: dict[str, list[int]] = {}
    for rank in whole.ranks:
        for hook, state in rank.newest.hook_states.items():
            if state == "failed":
                failed.setdefault(hook, []).append(rank.rank)
    for hook, numbers in failed.items():
        sentences.append(
            f"the hook {hook} failed on {len(numbers)} of {len(whole.ranks)} ranks: what it records is missing"
        )
    faults = sum(rank.faults for rank in whole.ranks)
    if faults:
        sentences.append(f"{counted(faults, 'error')} inside the hooks {'was' if faults == 1 else 'were'} caught")
    # The last ones of a job whose device still worked at its end are not in its window.
    unmeasured = sum(rank.unmeasured for rank in whole.ranks if rank.seconds["unattributed"] > 0)
    if unmeasured:
        sentences.append(
            f"{counted(unmeasured, 'interval')} could not be measured on the device: that time is unattributed"
        )
    return sentences

"""Advice on the loop's own process: what it does while its device is idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ledger.below import COPY, OPTIMIZER
from ...ledger.causes import CAUSE
from ...verdict import background, by_mount
from ...verdict.accounts import AT_WORK, RankAccount
from ...verdict.allocator import CAUSE_OF, empties_each_step, retries_each_step
from ...verdict.modes import left_on, slowed
from ...verdict.mounts import most_of
from ...verdict.own_files import reads_by_hand, what_was_read
from ...verdict.sampled import moved_from
from ...verdict.where import (
    MOST,
    few_looks,
    in_most_gaps,
    in_turns,
    is_locked,
    launching_text,
    lock_cost,
    lock_gaps,
    lock_seconds,
    makes_groups,
    own_gaps,
    spots,
    text_of,
)
from .blocked import by_place
from .case import Case
from .gains import formula, percent, without
from .rule import NOT, SIMULATED, Found, Gain, Rule

_COMPILE = CAUSE["host_compile"]
LEAST_GAPS = 0.02
"""Launches are too late if the device has no work for this share of the time because of them."""
LATER = 0.1
"""Compilation after this part of the recorded steps counts as repeated compilation."""


def _gc(case: Case) -> Found | None:
    newest = [rank.newest for rank in case.ranks]
    asked, asked_ns = (sum(ledger.words[word][0] for ledger in newest) for word in ("gc_asked", "gc_asked_ns"))
    if 2 * asked_ns >= sum(ledger.cause_ns["host_gc"] for ledger in newest) > 0:
        times = asked / max(1, sum(ledger.steps for ledger in newest))
        often = "in each step" if times >= 0.75 else f"in every {1 / times:.0f} steps"
        return Found(
            "Call gc.collect() less often, or gc.freeze() before the loop, so that it has less to look at",
            without(case, "host_gc"),
            (f"the program asks for garbage collections {often}: {percent(case.share('host_gc'))} of the time",),
        )
    if all(ledger.words["gc_frozen"][0] for ledger in newest):
        return None
    return Found(
        "Call gc.collect() and gc.freeze() once, after the model and the dataset are built",
        without(case, "host_gc"),
        (f"garbage collection stops the loop {percent(case.share('host_gc'))} of the time",),
    )


def _compile(case: Case) -> Found | None:
    """Applies only if compilation goes on: it is normal that the first steps of a compiled model compile."""
    if case.basis is None:
        return None
    count = len(case.basis.walls)
    again = {
        index
        for one in case.basis.trace.ranks
        for index, step in enumerate(one.steps)
        if step.own[_COMPILE] and index >= LATER * count
    }
    if len(again) < 2:
        return None
    return Found(
        "Keep the shapes of batches the same (pad them), or compile with dynamic=True",
        without(case, "host_compile"),
        (f"{len(again)} of the last {count} steps compile something again",),
        {"dynamic": "True"},
    )


THREADS = ("threading", "concurrent", "multiprocessing", "queue")
"""A loop that waits in these packages has moved its work elsewhere already."""
_OF_OWN_THREAD = (
    "The loop waits for its own thread or process in {}: make that work shorter or rarer, or wait for it later"
)


def _blocked(case: Case) -> Found | None:
    if is_locked(case.ranks) or makes_groups(case.ranks):
        return None  # a thread would take the lock as well, and the evidence says what to do about groups
    written = sum(rank.host_write for rank in case.ranks)
    blocked = case.seconds("host_blocked") + sum(moved_from(rank, "host_blocked") for rank in case.ranks)
    gain = without(case, "host_blocked")
    evidence = f"the loop's own code is blocked {percent(blocked / case.window)} of the time, outside all phases"
    if 2 * written > blocked > 0:
        bytes_written = sum(rank.host_write_bytes for rank in case.ranks)
        gain = _behind_the_rest(gain)
        change = "Let a separate thread write the files that the loop writes"
        evidence += f"; it wrote {bytes_written / 1e6:.0f} MB of files meanwhile"
    elif known := by_place(case):
        change = known.text
        gain = gain if known.sure else replace(gain, least=0.0)
    elif readers := [rank for rank in case.ranks if reads_by_hand(rank)]:
        change = (
            f"Make batches in {_elsewhere(case)}, so that the loop computes while it reads. Put files"
            " that are read in random order on fast local storage"
        )
        evidence += f"; meanwhile it {what_was_read(readers)}"
    elif asked := [one for one in most_of(case.ranks, "own") if one.part("metadata_looks") >= by_mount.MOSTLY]:
        mount = asked[0]
        if mount.part("write_looks") + mount.part("sync_looks") >= by_mount.MENTIONED:
            change = f"Keep open what the loop writes at {by_mount.name(mount)}, or let a separate thread write it"
        else:
            change = (
                "Read the names and sizes of the files once, and keep them: the loop asks for them again and again at"
                f" {by_mount.name(mount)}"
            )
    elif (top := spots(case.account, kinds=("blocked",))[:1]) and top[0]["library"] in THREADS:
        gain = replace(_of_place(gain, top[0], blocked / case.window), least=0.0)
        change = _OF_OWN_THREAD.format(text_of({**top[0], "library": ""}))
    elif top:  # not in a data loader, because time in loaders has other causes
        gain = _behind_the_rest(_of_place(gain, top[0], blocked / case.window))
        place = text_of({**top[0], "library": ""})
        change = f"Let a thread do what blocks the loop in {place}, such as a read, a sleep or a request"
    else:
        gain = replace(_behind_the_rest(gain), least=0.0)
        change = (
            "Find out what blocks the loop, because looks were too few to tell. Requests and loggers belong in a"
            f" thread, reads by hand in {_elsewhere(case)}"
        )
    return Found(change, gain, (evidence,))


def _behind_the_rest(gain: Gain) -> Gain:
    """One thread can only hide the work behind the rest of the time. Several may hide more."""
    rest = 1 - gain.share
    return replace(gain, share=min(gain.share, rest), least=min(gain.least, rest))


def _of_place(gain: Gain, spot: dict[str, object], blocked: float) -> Gain:
    """The part of the gain of all blocked time that is surely in this place: the looks elsewhere may be the same."""
    part = min(1.0, float(str(spot["share"])) / blocked)
    return replace(gain, share=gain.share * part, least=gain.least * part)


_SAVES_APART = (
    ". If it saves: call torch.distributed.checkpoint.async_save with"
    " async_checkpointer_type=AsyncCheckpointerType.PROCESS (torch 2.7 or later)"
)

_SERVE = ("_serve", "ThreadPoolExecutor")
"""Threads of torch and multiprocessing that hand the tensors of a save to the process that writes it."""


def _lock(case: Case) -> Found | None:
    """On an accelerator the host launches nothing while it waits for the lock, so a part of the gaps is due to it."""
    thread = max(case.ranks, key=lambda rank: (rank.lock, rank.lock_looks)).lock_thread
    share = sum(lock_seconds(rank) or lock_gaps(rank) for rank in case.ranks) / case.window
    whose = f"the thread {thread}" if thread else "another thread"
    beside = background.costs([rank.newest for rank in case.ranks])
    saves = any(rank.newest.words["saves_behind"][0] for rank in case.ranks) or any(
        one.kind == "save" for one in beside
    )
    # A thread also makes the loop queue for CPUs and compute more slowly, which the comparison of steps includes.
    most = max(share, case.share("host_blocked"), lock_cost(beside, thread))
    apart = f"Let {whose} do its work in a separate process{_SAVES_APART if saves else ', such as a DataLoader worker'}"
    fewer = f"Save less often, or fewer and larger tensors: {whose} hands them to the process that saves"
    by_process = thread in _SERVE and any(one.kind == "save" and one.name for one in beside)
    return Found(
        fewer if by_process else apart,
        formula(share, 0.0, most),
        (f"{whose} of the process holds Python's lock while the loop waits for it {percent(share)} of the time",),
    )


def _code(case: Case) -> Found | None:
    """About what the rank does between two steps, or while its device has no work in compute."""
    if makes_groups(case.ranks):
        return None
    rest = case.share("host") - _launching(case)
    # If most looks between steps found a logger, a save or own batches, so do those at the most frequent place there.
    moved = sum(moved_from(rank, "host") for rank in case.ranks)
    between = ("host",) if moved <= (case.share("host") - _gaps(case)) * case.window else ()
    kinds = ((*between, "outside"), ("inside",)) if case.accelerated else (between,)
    spot, kind = next(((spot, kind) for kind in kinds for spot in spots(case.account, kinds=kind)[:1]), (None, ()))
    turns = in_turns(case.account, case.ranks)
    if turns is not None and (spot is None or float(str(turns["share"])) >= float(str(spot["share"]))):
        spot, rest = turns, case.share("host")
    else:
        turns = None
    if spot is None or rest <= 0:
        return None
    share, place = min(float(str(spot["share"])), rest), text_of({**spot, "library": ""})
    if turns:
        change = f"Do the work of {place} less often, or with fewer operations: the GPU waits for it"
    elif spot["library"] == OPTIMIZER and _is_outside(case, spot):
        change = f"Keep the optimizer of {place} on the GPU, or give it `fused=True`, which is quicker on CPUs, too"
    elif spot["library"] == COPY:
        change = (
            f"In {place}, copy from pinned memory (pin_memory=True in the DataLoader) with non_blocking=True, and"
            " convert tensors on the GPU: it waits for the host, which copies or converts them itself"
        )
    elif spot["library"] in THREADS:
        change = _OF_OWN_THREAD.format(place)
    elif kind == ("inside",):
        change = f"Make {place} quicker, or leave it out of the forward pass: the GPU waits for it"
    else:
        whose = "GPU" if case.accelerated else "loop"
        change = f"Do the work of {place} less often, or in a separate process: the {whose} waits for it"
    return Found(
        change,
        formula(case.removable(("host",), ("host",)) * share / case.share("host"), 0.0),
        (f"the loop's own code is in {place} {percent(share)} of the time",),
    )


def _is_outside(case: Case, spot: dict[str, object]) -> bool:
    """Whether looks at compute have found the loop there, and not only looks between two steps."""
    found = ([one[key] for key in _NAMES] for one in spots(case.account, kinds=("outside",)))
    return [spot[key] for key in _NAMES] in found


_NAMES = ("file", "function", "library")


def _elsewhere(case: Case) -> str:
    return "DataLoader workers or a thread" if case.has_loader else "a thread or process that works ahead"


def _allocator(case: Case) -> Found | None:
    """A part of the idle time in compute may come from the memory that the next step has to ask for again."""
    ranks = [rank for rank in case.ranks if empties_each_step(rank)]
    if not ranks:
        return None
    gain = without(case, CAUSE_OF)
    return Found(
        "Call torch.cuda.empty_cache() where the program's need for memory changes, such as before an evaluation, and "
        "not in each step",
        replace(gain, most=gain.most + _gaps(case)),
        (f"the device is idle in torch.cuda.empty_cache() {percent(case.share(CAUSE_OF))} of the time",),
    )


def _memory(case: Case) -> Found | None:
    ranks, gaps = [rank for rank in case.ranks if retries_each_step(rank)], _gaps(case)
    if not ranks or not gaps:
        return None
    retries, steps = (sum(rank.newest.words[word][0] for rank in ranks) for word in ("alloc_retries", "alloc_steps"))
    return Found(
        "Make batches smaller, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if their sizes differ",
        formula(gaps / 2, 0.0, gaps),
        (
            f"torch's allocator freed its cache {retries} times in {steps} steps because memory was short, and the GPU "
            f"has no work {percent(gaps)} of the time",
        ),
    )


def _gaps(case: Case, ranks: Sequence[RankAccount] | None = None) -> float:
    return sum(rank.gaps or 0.0 for rank in (case.ranks if ranks is None else ranks)) / case.window


def _launching(case: Case, ranks: Sequence[RankAccount] | None = None) -> float:
    """The part of the gaps in which the loop launches, or is not seen to do something else or to wait for Python's
    lock. 0 if it waits for the lock in most of them: each launch has to get it."""
    ranks = case.ranks if ranks is None else ranks
    gaps, locked = _gaps(case, ranks), sum(map(lock_gaps, ranks)) / case.window
    return gaps - locked - sum(map(own_gaps, ranks)) / case.window if locked < MOST * gaps else 0.0


def _modes(case: Case) -> Found | None:
    modes, gaps = left_on(case.ranks), _launching(case, slowed(case.ranks))
    if not modes or gaps < LEAST_GAPS:
        return None
    return Found(
        f"Leave out {' and '.join(_LEAVE_OUT[mode] for mode in modes)} where you do not look for a mistake",
        formula(gaps / 2, 0.0, gaps),
        (f"the GPU has no work {percent(gaps)} of the time, because the host launches kernels too late",),
    )


_LEAVE_OUT = {
    "anomaly": "torch.autograd.set_detect_anomaly(True)",
    "profiler": "torch.profiler",
    "blocking": "CUDA_LAUNCH_BLOCKING=1",
}


def _launch(case: Case) -> Found | None:
    gaps = _launching(case)
    if not case.accelerated or gaps < LEAST_GAPS or any(map(retries_each_step, case.ranks)):
        return None
    if 2 * _launching(case, slowed(case.ranks)) >= gaps:
        return None
    reason = f"during compute, the GPU has no work {percent(gaps)} of the time: the host launches kernels too late"
    if (spot := in_most_gaps(case.account, case.ranks, "launching")) is not None:
        place = launching_text(spot)
        how = "compile it with torch.compile, or let one operation of torch._foreach work on many tensors"
        if spot["library"] == OPTIMIZER:
            how = "give it `fused=True` or `foreach=True` where it has them, or compile its `step` with torch.compile"
        return Found(
            f"Launch fewer operations in {place}: {how}",
            formula(gaps / 2, 0.0, gaps),
            (reason, f"{place} launches most of them, and is outside the model"),
        )
    if few_looks(case.ranks) or in_turns(case.account, case.ranks) or _is_beside_the_model(case):
        return None
    return Found(
        "Compile the model with torch.compile(mode='reduce-overhead'), which replays kernels as CUDA graphs",
        formula(gaps / 2, 0.0, gaps),
        (reason,),
        {"mode": "reduce-overhead"},
    )


def _is_beside_the_model(case: Case) -> bool:
    """Whether most looks that find the loop in launches find it outside the model."""
    looks = {kind: sum(rank.places[kind][2] for rank in case.ranks if kind in rank.places) for kind in AT_WORK}
    launches = (
        sum(rank.work_looks - rank.own_looks - rank.lock_looks for rank in case.ranks)
        - looks["outside"]
        - looks["inside"]
    )
    return 2 * looks["launching"] > launches > 0


RULES: tuple[Rule, ...] = (
    Rule(
        "host.gc",
        ("host",),
        "Garbage collection stops the loop. No objects are frozen, or the program itself asks for the collections",
        "Call `gc.freeze()` before the loop, and `gc.collect()` less often",
        "Replay without `host_gc`",
        "`host_gc` falls",
        _gc,
        removes=("host_gc",),
    ),
    Rule(
        "host.compile",
        ("host",),
        "Steps compile again and again, not only the first ones",
        "Use fixed or dynamic shapes",
        "Replay without `host_compile`",
        "`host_compile` stops growing after the first steps",
        _compile,
        removes=("host_compile",),
    ),
    Rule(
        "host.blocked",
        ("host",),
        "The loop's own code is blocked outside of any phase",
        "Move the code that blocks into workers or a thread. If it is seen in a logger: log less often. In an"
        " environment: run several in processes of their own. In a reward: ask for those of all completions together",
        "Replay without `host_blocked`. What a thread does behind the loop saves no more than the rest of the time,"
        " except in the upper bound. Lower bound: 0 for environments, rewards and threads of the loop's own, and if"
        " looks do not tell what blocks it",
        "`host_blocked` falls",
        _blocked,
        removes=("host_blocked",),
    ),
    Rule(
        "host.code",
        ("host",),
        "The loop runs one function of its own between two steps, or while the GPU has no work",
        "Call it less often, or in another process",
        "The share of that function, and of the waits for ranks that it made late. Lower bound: 0",
        "`whyidle report` no longer names the function",
        _code,
        removes=("host",),
    ),
    Rule(
        "host.lock",
        ("host",),
        "The loop waits for Python's lock, which another thread of the process holds",
        "Do what that thread does in another process",
        "The time that the loop waits for the lock, or half of what the report's line `beside` says of the thread if"
        " that is more. On an accelerator: the part of the GPU's idle time in compute in which looks find it waiting."
        " Lower bound: 0. Upper bound: all of `host_blocked`, or of what that line says",
        "`whyidle report` no longer names the thread",
        _lock,
        removes=None,
    ),
    Rule(
        "host.allocator",
        ("host",),
        "The loop calls `torch.cuda.empty_cache()` in most steps",
        "Call it less often",
        "Replay without `host_allocator`. Upper bound: also all of the GPU's idle time in compute",
        "`host_allocator` falls",
        _allocator,
        NOT + "needs the memory of a real GPU",
        removes=("host_allocator", "host"),
    ),
    Rule(
        "host.memory",
        ("host",),
        "torch's allocator runs out of memory in most steps, and the GPU has no work in a part of compute",
        "Make batches smaller, or let the allocator use expandable segments",
        "Half of the GPU's idle time in compute. Lower bound: none of it. Upper bound: all of it",
        "`whyidle report` counts no more retries, and GPU idle time in compute falls",
        _memory,
        NOT + "needs the memory of a real GPU",
        removes=("host",),
    ),
    Rule(
        "host.modes",
        ("host",),
        "The GPU has no work while the rank computes: anomaly detection, a profiler or `CUDA_LAUNCH_BLOCKING` is on",
        "Switch the mode off, or on for some steps only",
        "Half of that time. Lower bound: none of it. Upper bound: all of it",
        "GPU idle time in compute falls",
        _modes,
        NOT + "was only timed on a stand-in for CUDA",
        removes=("host",),
    ),
    Rule(
        "host.launch",
        ("host",),
        "The GPU has no work while the rank computes and the loop is in torch",
        "Use `torch.compile` with CUDA graphs. Beside the model: compile that function, or use `torch._foreach`."
        " In an optimizer: `fused=True`",
        "Half of that time. Lower bound: none of it. Upper bound: all of it",
        "GPU idle time in compute falls",
        _launch,
        SIMULATED,
        removes=("host",),
    ),
)

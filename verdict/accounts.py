"""Where the seconds of a run went: computes the numbers of the report from ledgers. Pure functions.

The window of a rank begins at its first step. It ends at the last moment that its ledger accounts for, or now if the
rank is alive. The time before the window is startup and is reported separately. So is time outside the loop: see
outside.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType
from typing import NamedTuple

from ..ledger.causes import (
    CAUSE_FAMILY,
    CAUSES,
    CHECKPOINT_KINDS,
    FAMILIES,
    LATE_FAMILIES,
    OUTSIDE_CAUSES,
    PHASE_CAUSE,
    ROLLOUT_PARTS,
    WAIT_CAUSES,
    WORK_CAUSES,
)
from ..ledger.directory import Run, age, drop_duplicates, run_of
from ..ledger.doing import DOING
from ..ledger.failures import failure_of
from ..ledger.gpus import UNUSED
from ..ledger.layout import CLEAN
from ..ledger.mounts import Mount
from ..ledger.reader import Ledger, Slot
from . import out_of_memory
from .carried import Links, add_links, busy_seconds
from .devices import SOME, busy_shares, idle_share, used
from .gaps import NO_GAPS, WORKED, Gaps, Idle, move_gaps, move_worked, pool, shares_of_looks, weighed
from .hang import (
    HANG_SECONDS,
    Missing,
    missing_ranks,
    open_blocked,
    open_computed,
    open_seconds,
    silent_seconds,
    unbooked_seconds,
)
from .operations import places as operation_places
from .operations import sentences as different_collectives
from .outside import evaluation_gaps, evaluation_waits_ns, shutdown_of
from .sampled import Sampled, enough, move, move_lateness, own_looks, with_moved
from .stuck import awaits_threads, stuck_line
from .tail import Tail, split_tails
from .unentered import Unentered, lateness, never_entered

_SAVE, _LOAD = CHECKPOINT_KINDS.index("save"), CHECKPOINT_KINDS.index("load")

Seconds = dict[str, float]


class Place(NamedTuple):
    """A place in the training's own code."""

    file: str
    line: int
    function: str
    library: str
    """The package that the line calls; empty if it is not known."""


Places = dict[str, tuple[Place, int, int]]
"""Kind of time (`host`, `blocked`) -> (the most frequent place, looks that found the loop there, all looks). As
many as looks at equal distances would be."""
AT_WORK = ("outside", "inside", "launching")
"""The kinds that are parts of work."""
NO_IDLE: Mapping[int, Idle] = MappingProxyType({})


@dataclass(slots=True)
class GroupAccount:
    """The waits of one rank in one group of ranks, in seconds."""

    key: int
    label: str
    size: int
    pairwise: bool
    network: float = 0.0
    straggler: float = 0.0
    pipeline: float = 0.0
    latency: float = 0.0
    """Part of `pipeline`: what transfers cost beyond the waits for the rank's own messages."""
    link: tuple[int, int] | None = None
    """The link that caused most of `latency`."""
    queue: float = 0.0
    """The part of its transfers in which threads of ranks got no CPU."""
    unsplit: float = 0.0
    behind: dict[int, float] = field(default_factory=dict)
    """The late ranks for which it waited longest -> seconds."""
    late_own: Seconds = field(default_factory=dict)
    """How late it was in this group through its own time: family -> seconds."""
    late_elsewhere: dict[int, float] = field(default_factory=dict)
    """How late it was in this group because it waited in others: key of the other group -> seconds."""
    late_unexplained: float = 0.0
    """How late it was for no recorded reason: for example, it had ended."""

    @property
    def waited(self) -> float:
        return self.network + self.straggler + self.pipeline + self.unsplit


@dataclass(slots=True)
class RankAccount:
    """One rank of a run, summed over its attempts. All times are seconds inside the window unless stated otherwise."""

    newest: Ledger
    attempts: int = 0
    stepped: bool = False  # whether a first step has begun
    steps: int = 0
    wall: float = 0.0
    startup: float = 0.0
    outside: Seconds = field(default_factory=lambda: dict.fromkeys(OUTSIDE_CAUSES, 0.0))  # in no window
    faults: int = 0
    unmeasured: int = 0
    seconds: Seconds = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    late: Seconds = field(default_factory=dict)  # how late it was, by the family that made it late
    late_steps: int = 0
    host_write: float = 0.0  # part of seconds["host"] and ["host_blocked"] in which the loop's own code wrote files
    host_write_bytes: int = 0
    thread_read_bytes: int = 0  # what its training thread read from files, in all phases
    thread_major_faults: int = 0  # page faults of that thread that had to wait for a read
    batches: int = 0
    eval_batches: int = 0
    eval_data: float = 0.0  # waits for their batches, by the host's clock
    eval_idle: float = 0.0  # part of seconds["host"] and ["host_blocked"]: in evaluations
    evaluations: int = 0  # steps with an evaluation
    evaluation_gaps: list[int] = field(default_factory=list)  # steps from one of the last evaluations to the next
    rollouts: int = 0  # steps with a rollout
    rollout_parts: Seconds = field(default_factory=lambda: dict.fromkeys(ROLLOUT_PARTS, 0.0))  # by the host's clock
    data_own_cpu: float = 0.0  # CPU time of its training thread in batches that it makes itself
    worker_read_bytes: int = 0  # what its data workers read while it waited for them and they were blocked
    worker_read_calls: int = 0  # the calls that read this; 0: not known
    worker_disk_bytes: int = 0
    worker_looks: dict[str, int] = field(default_factory=dict)  # what looks found its data workers doing: see DOING
    together_looks: int = 0  # looks that found several workers making batches
    parallel_looks: int = 0  # those in which at least two of them did not wait for a lock
    skipped_batches: int = 0  # batches on which it did not compute, in long runs
    skipped: float = 0.0  # how long these runs took
    skips: int = 0  # the number of these runs
    data_gone: float = 0.0  # part of seconds["unattributed"]: waits for a data worker that was gone at their end
    open_data: float = 0.0  # part of seconds["unattributed"]: the wait for a batch that is open now, or was at its end
    no_grad: float = 0.0  # part of seconds["compute"] and seconds["recompute"]: without gradients, see layout.WORDS
    bubble: float = 0.0  # the least that the schedule of its pipeline costs; a part may be in waits in collectives
    groups: dict[int, GroupAccount] = field(default_factory=dict)
    gaps: float | None = None  # part of seconds["host"]: compute in which its device ran nothing; None: not known
    gaps_by: Gaps = NO_GAPS  # what `gaps` is from
    busy: dict[int, float] = field(default_factory=dict)  # of several devices: index -> share of time with a kernel
    looks: int = 0  # looks at its home stream
    empty_looks: int = 0  # those in which it computed and the stream was empty; without those at what is in `moved`
    effective_looks: float = 0.0  # as many looks at equal distances would be as sure
    pooled_looks: float = 0.0  # the same of the mean rank, if all ranks together tell how idle this one was
    empty: float = 0.0  # the seconds for which empty_looks stand
    empty_by: Seconds = field(default_factory=dict)  # the same, by the cause of the open phase; empty: not known
    empty_host: float = 0.0  # the same for those in `host` in which the device had no work as far as is known
    line: str = ""  # of the training's own code, as file:line
    line_looks: int = 0  # looks that found the training thread at this line, while its device had work
    busy_looks: int = 0  # looks that found a device with work in compute, outside backward passes
    gaps_unsure: float = 0.0  # more gaps than the rank with fewest, seconds, if this may be chance
    own_looks: float = 0.0  # of work_looks: below functions of the loop's own, too few to move their share
    places: Places = field(default_factory=dict)  # where the loop's own time was spent, as far as it was sampled
    place_looks: dict[str, int] = field(default_factory=dict)  # kind of `places` -> the looks that were taken
    moved: Sampled = field(default_factory=dict)  # parts of `seconds` that looks have moved to other causes
    worked: float = 0.0  # the part of `host` that looks at the device have found to be work
    gaps_of: Seconds = field(default_factory=dict)  # cause of work -> the part of it that they have moved to `host`
    gaps_in: Seconds = field(default_factory=dict)  # the same in seconds
    base_looks: int = 0  # looks at the training thread in the loop's own phases
    work_looks: int = 0  # those that found it on a CPU in phases of work, or its device without work in them
    lock_looks: int = 0  # of base_looks, with a device of work_looks: it waited for Python's lock
    lock: float = 0.0  # part of seconds["host_blocked"]: it waited for Python's lock, while another thread computed
    lock_thread: str = ""  # the name of that thread
    awake: float = 0.0  # on a CPU rank: the training thread had a CPU in the loop's own phases
    new_groups: int = 0  # process groups that the loop has made
    new_group: float = 0.0  # how long that took
    threads: int = 0  # of the process, at the last count; 0: not known
    open_files: int = 0
    looked: float = 0.0  # the seconds for which these looks stand
    open_wait: float = 0.0  # part of seconds["collective"]: the wait that is open now
    afterwards: Seconds = field(
        default_factory=dict
    )  # part of `seconds`, after the last step of a rank that ended cleanly
    cpu_asked: float = 0.0  # CPU seconds that were asked for on the CPUs that the rank may use; 0: not known
    cpu_stolen: float = 0.0  # part of it: a hypervisor gave these CPUs to other machines
    cpu_queued: float = 0.0  # how long its training thread was runnable without a CPU
    step_seconds: list[float] = field(default_factory=list)  # step times of the last steps
    before: Seconds = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))  # `startup` by cause
    saves: int = 0
    save_bytes: int = 0
    loads: int = 0
    samples: int = 0
    links: Links = field(default_factory=dict)
    mounts: list[tuple[str, Mount]] = field(default_factory=list)  # node and mount, of each attempt: see mounts.py

    @property
    def rank(self) -> int:
        return self.newest.rank

    @property
    def gaps_unknown(self) -> bool:
        """Whether its device may have been idle in compute for any time."""
        return self.newest.device != "cpu" and self.gaps is None

    @property
    def counted(self) -> float:
        """The seconds for which the kernel's counters stand: from the first step on, also outside the loop."""
        return self.wall + sum(self.outside.values())

    @property
    def not_learned(self) -> float:
        """Compute that it does not learn from: evaluation, generation, a teacher."""
        return self.seconds["evaluation"] + self.seconds["rollout"] + self.no_grad

    def family_seconds(self) -> Seconds:
        totals = dict.fromkeys(FAMILIES, 0.0)
        for cause, spent in self.seconds.items():
            totals[CAUSE_FAMILY[cause]] += spent
        return totals


@dataclass(slots=True)
class RunAccount:
    """One run: its ranks in order, and the ranks that are missing from a collective now, or were when they ended."""

    run: str
    ranks: list[RankAccount]
    missing: list[Missing]
    owner: str = ""
    unentered: list[Unentered] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    """Sentences about ranks that wait in different collectives."""
    places_apart: list[str] = field(default_factory=list)
    """Sentences about ranks that may do so: they wait at different lines."""
    now_ns: int = 0
    """When it was computed, on CLOCK_MONOTONIC."""

    @property
    def rank_seconds(self) -> float:
        """The sum of the windows of all ranks. Shares are relative to this."""
        return sum(rank.wall for rank in self.ranks)

    def family_seconds(self) -> Seconds:
        totals = dict.fromkeys(FAMILIES, 0.0)
        for rank in self.ranks:
            for family, spent in rank.family_seconds().items():
                totals[family] += spent
        return totals


def account(run: Run, ledgers: Iterable[Ledger], now_ns: int, idle: Mapping[int, Idle] = NO_IDLE) -> RunAccount:
    """Computes the account of one run, given as owner and name.

    ``ledgers`` may be of any run, and must be read with their steps. ``idle``: rank -> its compute in which its device
    ran nothing, according to the device's counters. It counts as `host`, because the host had not launched the next
    kernel.
    """
    believed, _ = drop_duplicates(ledger for ledger in ledgers if run_of(ledger) == run)
    by_rank: dict[int, list[Ledger]] = {}
    for ledger in believed:
        by_rank.setdefault(ledger.rank, []).append(ledger)
    kinds = enough(ledger for attempts in by_rank.values() for ledger in attempts)
    ranks = [_account_rank(sorted(by_rank[rank], key=age), now_ns, kinds) for rank in sorted(by_rank)]
    homes: dict[str, Counter[int]] = {}
    for rank in ranks:
        homes.setdefault(rank.newest.node, Counter())[rank.newest.device_index] += 1
    for rank in ranks:
        rank.busy = busy_shares(rank.newest, homes[rank.newest.node] - Counter([rank.newest.device_index]))
        move_worked(rank)
    pool(ranks)
    for rank in ranks:
        move_gaps(rank, idle.get(rank.rank))
        _move_turns(rank)
    tails = split_tails(rank.newest for rank in ranks)
    for rank in ranks:
        late = [0]  # steps, by group
        for group in rank.groups.values():
            own = tails.get((rank.rank, group.key), ())
            late.append(sum(tail.settled.late_steps for tail in own))
            for tail in own:
                _add_tail(rank, group, tail)
        rank.late_steps += max(late)  # a step in which it was late in several groups counts once
        _move_full(rank)
    missing = missing_ranks((rank.newest for rank in ranks), now_ns, longer_than=HANG_SECONDS)
    unentered = never_entered((rank.newest for rank in ranks), longer_than=HANG_SECONDS)
    for one in unentered:
        _add_unentered({rank.rank: rank for rank in ranks}, one)
    move_lateness(ranks)
    owner, name = run
    apart = different_collectives([rank.newest for rank in ranks], now_ns, HANG_SECONDS)
    places_apart = operation_places([rank.newest for rank in ranks], now_ns, HANG_SECONDS)
    return RunAccount(name, ranks, missing, owner, unentered, apart, places_apart, now_ns)


def _move_full(account: RankAccount) -> None:
    """Moves queues of communication threads to `network` as far as a link was surely busy meanwhile: the kernel goes on
    to send what they gave it. It may have been busy beside all other time, too."""
    queue, network = account.seconds["collective_queue"], account.seconds["network"]
    whole = account.wall + account.startup + sum(account.outside.values())
    beside = whole - sum(account.seconds[cause] for cause in WAIT_CAUSES)
    moved = min(queue, busy_seconds(account.links) - beside - network)
    if moved <= 0:
        return
    account.seconds["network"] += moved
    account.seconds["collective_queue"] -= moved
    for group in account.groups.values():
        part = min(group.queue, moved * group.queue / queue)
        group.network, group.queue = group.network + part, group.queue - part


def _move_turns(account: RankAccount) -> None:
    """Device-seconds of a rank with several devices are those of all of them. So work in which only some ran kernels
    is moved to `pipeline`, as far as they were idle: the others waited for them."""
    if not account.busy or idle_share(account.busy) < SOME:
        return
    worked = {cause: account.seconds[cause] for cause in WORKED}
    whole = sum(worked.values())
    idle = min(max(0.0, whole - account.wall * (1 - idle_share(account.busy))), whole)
    for cause, seconds in worked.items():
        account.seconds[cause] -= idle * seconds / whole if whole else 0.0
    account.seconds["pipeline"] += idle


def place_of(text: str) -> Place | None:
    """Reads the string `host_line` or the like of a ledger; None if it is empty or cut off."""
    where, _, library = text.rpartition(" ")
    where, _, function = where.rpartition(" ")
    file, _, line = where.rpartition(":")
    if not (file and line.isdigit()):
        return None
    return Place(file, int(line), function, "" if library == "-" else library)


def _account_rank(attempts: list[Ledger], now_ns: int, kinds: frozenset[str]) -> RankAccount:
    account = RankAccount(attempts[-1], attempts=len(attempts))
    for ledger in attempts:
        _add_attempt(account, ledger, now_ns, kinds)
    return account


def _add_attempt(account: RankAccount, ledger: Ledger, now_ns: int, kinds: frozenset[str]) -> None:
    account.steps += ledger.words["steps"][0]
    account.faults += ledger.faults
    account.unmeasured += ledger.unmeasured
    end_ns = ledger.last_sign_ns
    if ledger.alive:
        end_ns = max(end_ns, now_ns)
    account.startup += ((ledger.window_ns or end_ns) - ledger.start_ns) / 1e9
    account.saves += ledger.words["checkpoints"][_SAVE]
    account.save_bytes += ledger.words["checkpoint_bytes"][_SAVE]
    account.loads += ledger.words["checkpoints"][_LOAD]
    account.samples += ledger.words["samples"][0]
    for cause, ns in zip(CAUSES, ledger.words["window_cause_ns" if ledger.window_ns else "cause_ns"], strict=True):
        account.before[cause] += ns / 1e9
    waited = account.before["interactive"]
    if not ledger.window_ns and ledger.position.phase == "interactive":
        waited += max(0, end_ns - ledger.position.since_ns) / 1e9
    account.outside["interactive"] += waited
    account.startup -= waited
    account.before["interactive"] = 0.0
    if not ledger.window_ns:
        return
    account.stepped = True
    window, opened, after = (end_ns - ledger.window_ns) / 1e9, unbooked_seconds(ledger, end_ns), shutdown_of(ledger)
    blocked = open_blocked(ledger, opened)
    walls = account.wall
    account.wall += window
    spent = {
        cause: (total - before) / 1e9
        for cause, total, before in zip(CAUSES, ledger.words["cause_ns"], ledger.words["window_cause_ns"], strict=True)
    }
    known = not awaits_threads(ledger)  # otherwise this wait may be for something that never comes
    spent["host_blocked"] += blocked * known
    sampled = move(spent, ledger, kinds, window)
    spent["host_blocked"] += blocked * (not known)
    for pair, moved in sampled.items():
        account.moved[pair] = account.moved.get(pair, 0.0) + moved
    for cause, seconds in spent.items():
        account.seconds[cause] += seconds
    account.seconds["collective"] += ledger.pending_ns / 1e9
    _add_open(account, ledger, opened, blocked)
    account.awake += max(0.0, open_computed(ledger, opened))
    if silent_seconds(ledger, now_ns):
        account.open_data = 0.0  # nobody knows what it does now
    for family, late_ns in zip(FAMILIES, ledger.words["late_ns"], strict=True):
        if late_ns:
            account.late[family] = account.late.get(family, 0.0) + late_ns / 1e9
    account.late_steps += ledger.late_steps
    account.bubble += ledger.bubble_ns / 1e9
    account.host_write += ledger.host_write_ns / 1e9
    account.host_write_bytes += ledger.host_write_bytes
    account.thread_read_bytes += ledger.thread_read_bytes
    account.thread_major_faults += ledger.thread_major_faults
    account.no_grad += ledger.no_grad_ns / 1e9
    _add_aside(account, ledger, after)
    _add_workers(account, ledger)
    add_links(account.links, ledger)
    mounts = with_moved(ledger, spent["host_blocked"] + spent["logging"], sampled)
    account.mounts += [(ledger.node, mount) for mount in mounts]
    _add_sampled(account, ledger)
    account.own_looks += own_looks(ledger, sampled)
    account.cpu_asked += ledger.cpu_asked_ns / 1e9
    account.cpu_stolen += ledger.cpu_stolen_ns / 1e9
    account.cpu_queued += ledger.cpu_queued_ns / 1e9
    account.step_seconds += [step.wall_ns / 1e9 for step in ledger.ring]
    for slot in ledger.slots:
        _add_group(account, ledger, slot)
    if ledger.rest and ledger.ended == CLEAN:  # others were in another step when they ended
        account.afterwards = {cause: ns / 1e9 for cause, ns in zip(CAUSES, ledger.rest.causes, strict=True)}
    _leave_out(account, after)
    if ledger.looks:
        looked = min(window, ledger.words["looked_ns"][0] / 1e9)
        _add_looks(account, ledger, max(0.0, account.wall - walls, looked))


def _leave_out(account: RankAccount, after: Mapping[str, int]) -> None:
    """Takes what is outside the loop out of the window. The attempt must have been added. ``after``: `shutdown_of`."""
    for cause, ns in after.items():
        spent = min(ns / 1e9, max(0.0, account.seconds[cause]))
        account.seconds[cause] -= spent
        account.seconds["shutdown"] += spent
        account.afterwards[cause] = max(0.0, account.afterwards.get(cause, 0.0) - spent)
    for cause in OUTSIDE_CAUSES:
        account.outside[cause] += account.seconds[cause]
        account.wall -= account.seconds[cause]
        account.seconds[cause] = 0.0
        account.afterwards.pop(cause, None)


def _add_looks(account: RankAccount, ledger: Ledger, window: float) -> None:
    """Adds the looks at the home stream of a device. ``window``: its seconds, without time outside the loop for which
    looks do not stand."""
    account.looks += ledger.looks
    account.empty_looks += min(ledger.empty_looks, ledger.looks)
    empty, in_host, effective = shares_of_looks(ledger)
    account.empty += empty * window
    account.empty_host += in_host * window
    if ns := ledger.words["looked_ns"][0]:
        for cause, spent in zip(WORK_CAUSES, ledger.words["empty_by_ns"], strict=True):
            account.empty_by[cause] = account.empty_by.get(cause, 0.0) + min(1.0, spent / ns) * window
    account.effective_looks += effective
    account.line, account.line_looks, account.busy_looks = ledger.strings["line"], ledger.line_looks, ledger.busy_looks
    account.looked += window


def _with_place(before: tuple[Place, int, int] | None, place: Place, at: int, looks: int) -> tuple[Place, int, int]:
    """The place of several attempts: that with most looks, of all looks."""
    if before is None:
        return place, at, looks
    known, known_at, known_looks = before
    if (known.file, known.function) == (place.file, place.function):
        return place, at + known_at, looks + known_looks
    return (place, at, looks + known_looks) if at >= known_at else (known, known_at, looks + known_looks)


def _add_sampled(account: RankAccount, ledger: Ledger) -> None:
    """Adds what the watcher saw of the training thread and the process."""
    for kind in ("host", "blocked", *AT_WORK):
        looks, at, ns, at_ns = (ledger.words[f"{kind}_{word}"][0] for word in ("looks", "at", "looked_ns", "at_ns"))
        if looks and (place := place_of(ledger.strings[f"{kind}_line"])):
            of = "work" if kind in AT_WORK else kind
            whole, found = (round(weighed(ledger, *one, of)) for one in ((looks, ns), (at, at_ns)))
            account.place_looks[kind] = account.place_looks.get(kind, 0) + looks
            account.places[kind] = _with_place(account.places.get(kind), place, min(found, whole), whole)
    account.base_looks += ledger.base_looks
    account.work_looks += ledger.words["work_looks"][0]
    account.lock_looks += ledger.lock_looks
    account.lock += ledger.lock_ns / 1e9
    account.lock_thread = ledger.strings["lock_thread"] or account.lock_thread
    account.awake += ledger.thread_cpu_ns / 1e9
    account.new_groups += ledger.new_groups
    account.new_group += ledger.new_group_ns / 1e9
    account.threads, account.open_files = ledger.threads, ledger.open_files


def _add_aside(account: RankAccount, ledger: Ledger, after: Mapping[str, int]) -> None:
    account.eval_batches += ledger.words["eval_batches"][0]
    account.eval_data += evaluation_waits_ns(ledger, after) / 1e9
    account.eval_idle += ledger.words["eval_idle_ns"][0] / 1e9
    account.evaluations += ledger.words["evaluations"][0]
    account.evaluation_gaps += evaluation_gaps(ledger)
    account.rollouts += ledger.words["rollouts"][0]
    for part, ns in zip(ROLLOUT_PARTS, ledger.words["rollout_part_ns"], strict=True):
        account.rollout_parts[part] += ns / 1e9


def _add_workers(account: RankAccount, ledger: Ledger) -> None:
    account.batches += ledger.batches
    account.data_own_cpu += ledger.data_own_cpu_ns / 1e9
    account.data_gone += ledger.data_gone_ns / 1e9
    account.worker_read_bytes += ledger.worker_read_bytes
    account.worker_read_calls += ledger.worker_read_calls
    account.worker_disk_bytes += ledger.worker_disk_bytes
    for kind, looks in zip(DOING, ledger.words["worker_looks"], strict=True):
        account.worker_looks[kind] = account.worker_looks.get(kind, 0) + looks
    account.together_looks += ledger.together_looks
    account.parallel_looks += ledger.parallel_looks
    account.skipped_batches += ledger.skipped_batches
    account.skipped += ledger.skipped_ns / 1e9
    account.skips += ledger.skips


def _add_group(account: RankAccount, ledger: Ledger, slot: Slot) -> None:
    keys = {other.index: other.key for other in ledger.slots}
    group = account.groups.setdefault(slot.key, GroupAccount(slot.key, slot.label, slot.size, slot.pairwise))
    group.network += slot.network / 1e9
    group.straggler += slot.straggler / 1e9
    group.pipeline += slot.pipeline / 1e9
    group.latency += slot.latency / 1e9
    group.link = slot.link or group.link
    group.queue += slot.queue / 1e9
    group.unsplit += (slot.unsplit + slot.pending) / 1e9
    for rank, ns in slot.behind.items():
        group.behind[rank] = group.behind.get(rank, 0.0) + ns / 1e9
    for family, ns in slot.late_own.items():
        group.late_own[family] = group.late_own.get(family, 0.0) + ns / 1e9
    for index, ns in slot.late_elsewhere.items():
        if (key := keys.get(index)) is not None:
            group.late_elsewhere[key] = group.late_elsewhere.get(key, 0.0) + ns / 1e9


def _add_unentered(ranks: dict[int, RankAccount], found: Unentered) -> None:
    """Moves waits that a member of a group never entered to `straggler`. They are unsplit in the ledgers."""
    for wait in found.waits:
        account = ranks[wait.ledger.rank]
        # Before the first step, they are startup.
        spent = min(wait.seconds, account.seconds["collective"])
        group = account.groups.get(found.key)
        if group is None or spent <= 0:
            continue
        account.seconds["collective"] -= spent
        account.seconds["straggler"] += spent
        group.unsplit = max(0.0, group.unsplit - wait.closed)
        group.straggler += spent
        for missing in found.missing:
            group.behind[missing.rank] = group.behind.get(missing.rank, 0.0) + spent / len(found.missing)
    for missing in found.missing:
        account = ranks[missing.rank]
        keys = {slot.index: slot.key for slot in missing.slots}
        if (group := account.groups.get(found.key)) is None:
            continue
        own, slot, dead = lateness(missing, found.waits[0])
        for family, seconds in own.items():
            group.late_own[family] = group.late_own.get(family, 0.0) + seconds
            account.late[family] = account.late.get(family, 0.0) + seconds
        if slot in keys:
            elsewhere = found.seconds - dead
            group.late_elsewhere[keys[slot]] = group.late_elsewhere.get(keys[slot], 0.0) + elsewhere
        group.late_unexplained += dead


def _add_tail(account: RankAccount, group: GroupAccount, found: Tail) -> None:
    """Adds the split of the last waits, which are unsplit or pending in the ledger."""
    tail = found.settled
    keys = {slot.index: slot.key for slot in account.newest.slots}
    group.late_unexplained += found.unexplained / 1e9
    network, straggler = tail.network / 1e9, tail.straggler / 1e9
    account.seconds["collective"] -= network + straggler
    account.seconds["network"] += network
    account.seconds["straggler"] += straggler
    group.unsplit -= network + straggler
    group.network += network
    group.straggler += straggler
    for rank, ns in tail.behind.items():
        group.behind[rank] = group.behind.get(rank, 0.0) + ns / 1e9
    for family, ns in zip(LATE_FAMILIES, tail.late_own, strict=True):
        if ns:
            group.late_own[family] = group.late_own.get(family, 0.0) + ns / 1e9
            account.late[family] = account.late.get(family, 0.0) + ns / 1e9
    for index, ns in enumerate(tail.late_elsewhere):
        if ns and (key := keys.get(index)) is not None:
            group.late_elsewhere[key] = group.late_elsewhere.get(key, 0.0) + ns / 1e9


def _add_open(account: RankAccount, ledger: Ledger, spent: float, blocked: float) -> None:
    """Adds the time that is not in the ledger yet: what the device clock has not harvested, and the open phase, which
    took ``spent`` seconds. In ``blocked`` of them it was blocked; these have been added."""
    accounted_ns = max(ledger.until_ns, ledger.window_ns)
    phase, since_ns, _ = ledger.position
    account.seconds["unattributed"] += max(0, since_ns - accounted_ns) / 1e9
    # An open wait for data cannot be split before its end.
    cause = "unattributed" if phase == "data" else PHASE_CAUSE[phase]
    account.seconds[cause] += spent - blocked
    account.open_data = spent if phase == "data" else 0.0  # attempts come in order: that of the newest one counts
    if phase == "collective" and ledger.alive:
        account.open_wait += spent


def quantile(ordered: list[float], q: float) -> float:
    """The nearest-rank quantile of values in ascending order."""
    return ordered[max(0, ceil(q * len(ordered)) - 1)]


def step_times(step_seconds: list[float]) -> dict[str, float] | None:
    """Median, 95th percentile and maximum of step times, in seconds; None without a step."""
    ordered = sorted(step_seconds)
    return {"p50": quantile(ordered, 0.5), "p95": quantile(ordered, 0.95), "max": ordered[-1]} if ordered else None


def rank_entry(account: RankAccount, now_ns: int) -> dict[str, object]:
    """One entry of the report's ``per_rank``. ``families`` are shares of the rank's wall time; absent means unknown."""
    ledger = account.newest
    return {
        "rank": ledger.rank,
        "node": ledger.node,
        "device": ledger.device,
        "uuid": ledger.strings["uuid"],
        "gpus_visible": ledger.gpus_visible or None,
        "devices_used": used(ledger),
        "device_memory": {
            name: ledger.words[name][0]
            for name in ("memory_peak", "memory_reserved", "memory_total", "alloc_retries", "alloc_flushes")
        },
        "devices_busy": {f"cuda:{index}": share for index, share in account.busy.items()},
        "unused": UNUSED[ledger.gpu_unused] or None,
        "attempt": ledger.attempt,
        "attempts": account.attempts,
        "alive": ledger.alive,
        "out_of_memory": out_of_memory.evidence(ledger) or None,
        "failure": failure._asdict() if (failure := failure_of(ledger.strings["failure"])) else None,
        "steps": account.steps,
        "wall_seconds": account.wall,
        "startup_seconds": account.startup,
        "outside_seconds": account.outside,
        "seconds": account.seconds,
        "sampled": [{"from": of, "to": to, "seconds": spent} for (of, to), spent in account.moved.items()],
        "families": shares(account.family_seconds(), account.wall),
        "late_seconds": account.late,
        "step_seconds": step_times(account.step_seconds),
        "hooks": ledger.hook_states,
        "gap_seconds": account.gaps,
        "gap_error_seconds": account.gaps_by.error,
        "gap_covered": account.gaps_by.covered,
        "looks": account.looks or None,
        "cpu": {"asked": account.cpu_asked, "stolen": account.cpu_stolen, "queued": account.cpu_queued}
        if account.cpu_asked
        else None,
        "links": [link.entry for link in account.links.values() if link.bytes],
        "faults": account.faults,
        "unmeasured": account.unmeasured,
        "open_phase": ledger.position.phase if ledger.alive else None,
        "open_seconds": open_seconds(ledger, now_ns) if ledger.alive else None,
        "open_line": stuck_line(ledger) if ledger.alive else None,
    }


def shares(seconds: Seconds, whole: float) -> Seconds:
    """Seconds as shares of ``whole``; empty if ``whole`` is not positive."""
    return {name: spent / whole for name, spent in seconds.items()} if whole > 0 else {}

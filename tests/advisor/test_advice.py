"""Advice: each rule gives advice if its condition holds, and no rule does in a healthy run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from schedules.cases import cases
from schedules.replay import replay
from schedules.traces import slot, trace_of
from support_background import Work
from support_ledgers import Spec, write
from support_links import Words, interface, limited, used
from support_mounts import mount

from whyidle.advisor.advice.case import Case, Counters, Room
from whyidle.advisor.advice.links import TODO
from whyidle.advisor.advice.page import DOCS, filled, pages
from whyidle.advisor.advice.rule import FLOOR, HERE, NOT, SIMULATED, Advice, Found, Gain, Rule
from whyidle.advisor.advice.stragglers import not_its_device
from whyidle.advisor.advice.table import RULES, advise
from whyidle.advisor.goodput import goodput
from whyidle.advisor.intervals import Rhythm
from whyidle.advisor.whatif.answer import answer
from whyidle.advisor.whatif.changes import Changes
from whyidle.advisor.whatif.predict import Basis
from whyidle.advisor.whatif.trace import RankStep, RankTrace, Trace, with_late_ends
from whyidle.cli.advice import entries, render
from whyidle.ledger.causes import CAUSE, CAUSES
from whyidle.ledger.directory import read_directory, run_of
from whyidle.ledger.given import QUOTA_INSIDE
from whyidle.ledger.layout import Call
from whyidle.ledger.links import RDMA_MISSING
from whyidle.verdict.accounts import GroupAccount, RunAccount, account
from whyidle.verdict.gaps import Idle
from whyidle.verdict.mounts import UNKNOWN, floors
from whyidle.verdict.workers import exhausted

MS = 1_000_000
STEPS = 40
WAITS = ("network", "straggler", "pipeline")
Step = dict[str, float]
"""Cause -> seconds."""


@dataclass
class Fault:
    """The ranks of a run, what each does in a step, and what is special about them."""

    steps: list[Step]
    """By rank."""
    odd: list[Step] = field(default_factory=list)
    """By rank, in each 20th step."""
    turns: bool = False
    """Whether ranks swap their work from one step to the next."""
    workers: int = 0
    messages: int = 0
    """Each rank sends to the next one in a step."""
    calls: int = 0
    """Collectives of a rank in a step."""
    spec: Spec = field(default_factory=Spec)
    by_rank: list[dict[str, object]] = field(default_factory=list)
    """What differs from ``spec``, by rank."""
    counters: Counters = field(default_factory=Counters)
    trace: Callable[[], Trace] | None = None
    """The replayed steps, if they are not made from the fields above."""
    idle: dict[int, Idle] = field(default_factory=dict)
    """By rank, seconds in compute in which its device executed nothing."""
    settings: dict[str, object] = field(default_factory=dict)
    """The rules that give advice."""
    first: bool = False
    """Whether the waits of the odd steps are the first ones after `__iter__`."""
    gain: float | None = None


def case_of(fault: Fault, folder: Path) -> Case:
    ranks = len(fault.steps)
    for rank, step in enumerate(fault.steps):
        own = fault.by_rank[rank] if fault.by_rank else {}
        spec = replace(fault.spec, rank=rank, world_size=ranks, steps=STEPS, step=step, workers=fault.workers)
        write(str(folder), replace(spec, **own)).close()  # pyright: ignore[reportArgumentType]
    ledgers, problems = read_directory(str(folder), steps=True)
    assert not problems
    run, now = run_of(ledgers[0]), time.monotonic_ns()
    trace = fault.trace() if fault.trace else Trace(tuple(_trace(fault, rank) for rank in range(ranks)), 0, False)
    reads = floors(ledgers)
    idle = {ledger.rank: exhausted(ledger) for ledger in ledgers}
    ranks_read = (
        replace(one, reads=reads.get(one.rank, UNKNOWN), workers=one.workers - idle[one.rank]) for one in trace.ranks
    )
    basis = Basis.of(replace(trace, ranks=tuple(ranks_read)))
    whole = account(run, ledgers, now, fault.idle)
    if fault.odd:
        _count(whole, trace)
    return Case(whole, basis, "", goodput(run, ledgers, now), fault.counters)


def _count(whole: RunAccount, trace: Trace) -> None:
    """Makes the account that of the replayed steps."""
    for rank, recorded in zip(whole.ranks, trace.ranks, strict=True):
        rank.wall = sum(step.wall for step in recorded.steps) / 1e9
        for index, cause in enumerate(CAUSES):
            if cause not in WAITS:
                rank.seconds[cause] = sum(step.own[index] for step in recorded.steps) / 1e9


def _trace(fault: Fault, rank: int) -> RankTrace:
    ranks = len(fault.steps)
    steps, end = [], 0
    for number in range(1, STEPS + 1):
        said = fault.steps[(rank + number) % ranks if fault.turns else rank]
        if fault.odd and number % 20 == 0:
            said = fault.odd[rank]
        own = tuple(0 if cause in WAITS else round(1e9 * said.get(cause, 0.0)) for cause in CAUSES)
        wait = round(1e9 * sum(said.get(cause, 0.0) for cause in WAITS))
        calls = []
        if fault.messages and ranks > 1:
            peer, sent = (rank + 1, True) if rank < ranks - 1 else (rank - 1, False)
            calls = [Call(number, 1, 0, sum(own) if not n else 0, peer, sent) for n in range(fault.messages)]
        elif ranks > 1:
            count = max(1, fault.calls)
            calls = [Call(number, 0, wait // count, 0 if n else sum(own)) for n in range(count)]
        wall = sum(own) + wait
        end += wall
        first = sum(own) - own[CAUSE["compute"]] if fault.first and said is not fault.steps[rank] else 0
        steps.append(RankStep(number, end, wall, own, 0, tuple(calls), first))
    slots = {0: slot(0, "world", 1, ranks)} | ({1: slot(1, "pp", 2, ranks, pairwise=True)} if fault.messages else {})
    return RankTrace(rank, "boot", slots, fault.workers, tuple(steps))


def _uneven_stages() -> Trace:
    """Four stages, one of which takes longer."""
    kinds = (one for one in cases() if one.fault and one.fault.kind == "stage" and one.pp == 4 and one.ranks == 4)
    return trace_of(replay(next(kinds)))


def synced(backwards: float, reduced: float, again: float) -> list[dict[str, object]]:
    """Two ranks with these counts for each step: backward passes, all-reduces by DistributedDataParallel, and those of
    gradients that were reduced before."""
    counts = {"backwards": backwards, "reduced": reduced, "reduced_again": again, "collective_calls": reduced}
    return [{"words": {word: round(count * STEPS) for word, count in counts.items()}}] * 2


FAST = ("/fast", "", "xfs", "/dev/nvme0n1")
FAST_KEY = FAST[0], *FAST[2:]
TWO = [{"compute": 0.05}] * 2
REDUCING = Spec(handed=[("dp", 7, 2, {"all_reduce": STEPS * 10_000_000})])
GATHERING = Spec(handed=[("fsdp", 7, 4, {"all_gather": STEPS * 2 * 10**7, "reduce_scatter": STEPS * 10**7})])
"""Parameters are gathered for the forward and for the backward pass."""
SLOW_LINK = [{"compute": 0.05, "network": 0.05}] * 2
PIPELINE = Spec(bubble=0.4, slots=[{}, {"key": 2, "size": 2, "pairwise": 1, "pipeline_ns": 1}])
LATE: dict[str, object] = {"late": {"compute": 1.6}, "late_steps": STEPS}
UNEVEN = [{"compute": 0.05, "straggler": 0.04}, {"compute": 0.09}]


def linked(*links: Callable[[int], Words], **spec: object) -> list[dict[str, object]]:
    """Two ranks with these links, on two nodes."""
    return [{"links": [link(rank) for link in links], "node": f"n{rank}", **spec} for rank in range(2)]


def eth(number: int, gbits: float = 10, /, **words: Any) -> Callable[[int], Words]:
    return lambda node: interface(number, node, gbits, **words)


WRONG_LINK = linked(eth(0, **used(0.19), **limited(0.2)), eth(1))
NO_RDMA = linked(
    eth(0, 1, **used(0.94)),
    lambda _: {"link": "rdma mlx5_0/1 -", "up": 1, "speed": 100 * 10**9},
    device="cuda",
    words={"rdma_missing": 0b1001},  # NCCL_IB_DISABLE, devices
)

CPUS = {
    "cpus_node": 8,
    "cpus_at_start": 1,
    "cpus_allowed": 1,
    "given_ns": STEPS * 100 * MS,
    "used_cpu_ns": STEPS * 100 * MS,
    "worker_cpu_ns": STEPS * 90 * MS,
}
"""A rank that may use one CPU, and uses it."""
FULL = {"memory_at_ns": 1, "memory_of": 2, "memory_used_bytes": 600_000_000, "memory_limit_bytes": 800_000_000}

FAULTS: dict[str, Fault] = {
    "cpu.limit": Fault(
        [{"compute": 0.04, "data_cpu": 0.01, "data_queue": 0.05}],
        workers=4,
        spec=Spec(words=CPUS, strings={"cpu_list": "3"}),
        settings={"cpus": 3},
        gain=0.6,
    ),
    "cpu.others": Fault(
        [{"compute": 0.04, "data_cpu": 0.01, "data_queue": 0.05}],
        workers=4,
        spec=Spec(
            words=CPUS
            | {"cpus_node": 2, "cpus_at_start": 2, "cpus_allowed": 2, "cpu_asked_ns": STEPS * 200 * MS}
            | {"used_cpu_ns": STEPS * 50 * MS, "worker_cpu_ns": STEPS * 40 * MS},
            strings={"cpu_list": "0-1"},
        ),
        gain=0.6,
    ),
    "cpu.affinity": Fault(
        [{"compute": 0.04, "data_cpu": 0.01, "data_queue": 0.05}],
        workers=4,
        spec=Spec(
            words=CPUS | {"cpus_at_start": 8, "cpus_allowed": 8, "worker_cpus": 1},
            strings={"cpu_list": "0-7", "worker_cpu_list": "1"},
        ),
        settings={"cpus": 8},
        gain=0.6,
    ),
    "memory.limit": Fault(
        [{"compute": 0.04, "data_cpu": 0.04, "data_read": 0.02}],
        workers=1,
        spec=Spec(words=FULL | {"refault_bytes": 1 << 30}, strings={"launcher": "slurm"}),
        settings={"memory_bytes": 5 << 28},
        gain=0.42,
    ),
    "shm.size": Fault(
        [{"compute": 0.1}],
        workers=2,
        spec=Spec(
            words={"dead_worker_pid": 7, "dead_worker_signal": 7, "shm_bytes": 64 << 20, "checkpoint_step": STEPS // 4},
            strings={"launcher": "docker"},
        ),
        settings={"shm_bytes": 128 << 20},
        gain=0.75,
    ),
    "cpu.threads": Fault(
        [{"compute": 0.06, "compute_queue": 0.04}] * 2,
        spec=Spec(
            words=CPUS | {"cpus_node": 2, "cpus_at_start": 2, "cpus_allowed": 2, "threads_intra": 8},
            strings={"cpu_list": "0-1"},
        ),
        settings={"OMP_NUM_THREADS": 1},
        gain=0.16,
    ),
    "data.workers": Fault([{"compute": 0.05, "data_read": 0.04}], workers=1, settings={"num_workers": 2}, gain=0.44),
    "data.uneven": Fault(
        [{"compute": 0.05, "data_cpu": 0.04}],
        workers=3,
        spec=Spec(words={"data_exhausted_ns": STEPS * 40 * MS, "exhausted_worker_ns": STEPS * 80 * MS}),
        gain=0.44,
    ),
    "data.prefetch": Fault(
        [{"compute": 0.05}],
        [{"compute": 0.05, "data_read": 0.3}],
        workers=2,
        settings={"prefetch_factor": 5},
        gain=0.23,
    ),
    "data.decode": Fault([{"compute": 0.06, "data_cpu": 0.03, "data_queue": 0.01}], gain=0.4),
    "data.cache": Fault(
        [{"compute": 0.06, "data_read": 0.04}], spec=Spec(words={"thread_read_bytes": 1 << 30, "batches": 1}), gain=0.4
    ),
    "data.first": Fault([{"compute": 0.05}], [{"compute": 0.05, "data_read": 0.3}], workers=2, first=True, gain=0.23),
    "data.skip": Fault(
        [{"compute": 0.1}],
        spec=Spec(words={"skipped_batches": 500, "skipped_ns": 1200 * MS, "skips": 1}),
        gain=0.3,
    ),
    "data.shards": Fault(
        [{"compute": 0.06, "data_read": 0.04}],
        spec=Spec(words={"thread_read_bytes": 1 << 30, "batches": 1}),
        counters=Counters(bytes_per_read=16384),
        gain=0.39,
    ),
    "storage.mount": Fault(
        [{"compute": 0.06, "data_read": 0.04}],
        spec=Spec(mounts=[mount(data=1.5, rates=[8]), mount(FAST, data=0.1, rates=[80])]),
        counters=Counters(rooms={FAST_KEY: Room("/fast", 10**12)}),
        settings={"mount": "/fast"},
        gain=0.4 * 15 / 16 * 0.9,
    ),
    "data.handoff": Fault([{"compute": 0.09, "data_handoff": 0.01}], gain=0.1),
    "data.start": Fault(
        [{"compute": 0.09, "data_start": 0.01}],
        spec=Spec(words={"loader_starts+1": 2}),
        settings={"persistent_workers": "True"},
        gain=0.1,
    ),
    "network.link": Fault(SLOW_LINK, by_rank=WRONG_LINK, settings={"GLOO_SOCKET_IFNAME": "eth1"}, gain=0.48),
    "network.limit": Fault(SLOW_LINK, by_rank=linked(eth(0, **used(0.19), **limited(0.2))), gain=0.48),
    "network.rdma": Fault(SLOW_LINK, by_rank=NO_RDMA, gain=0.49),
    "network.no_sync": Fault(
        SLOW_LINK, by_rank=synced(4, 4, 3), spec=REDUCING, settings={"no_sync_batches": 3}, gain=0.375
    ),
    "network.accumulation": Fault(SLOW_LINK, spec=REDUCING, settings={"accumulation_steps": 8}, gain=0.44),
    "network.buckets": Fault(
        SLOW_LINK, by_rank=synced(1, 1, 0), spec=REDUCING, settings={"bucket_cap_mb": 1.19}, gain=0.29
    ),
    "network.coalesce": Fault(
        SLOW_LINK,
        calls=20,
        spec=replace(REDUCING, handed=[("dp", 7, 2, {"all_reduce": STEPS * 100_000})], op_bytes={"all_reduce": 1}),
        by_rank=[{"words": {"collective_calls": 20 * STEPS}}] * 2,
        settings={"collectives": 1},
        gain=0.45,
    ),
    "network.hierarchy": Fault(
        SLOW_LINK * 2,
        spec=GATHERING,
        by_rank=[{"node": f"n{rank // 2}"} for rank in range(4)],
        gain=0.5 * (1 - 1 / 2.25),
    ),
    "network.jumbo": Fault(SLOW_LINK, counters=Counters(mtu={"eth0": 1500}), settings={"mtu": 9000}, gain=0.025),
    "straggler.drain": Fault(UNEVEN, by_rank=[{}, LATE], gain=0.44),
    "straggler.uneven": Fault(
        UNEVEN,
        turns=True,
        by_rank=[
            {
                "late": {"compute": 0.8},
                "late_steps": STEPS // 2,
                "step": {"compute": 0.07, "straggler": 0.02},
                "slots": [{"key": 1, "size": 2, "straggler_ns": 800 * MS}],
            }
        ]
        * 2,
        gain=0.22,
    ),
    "pipeline.balance": Fault(
        [{"compute": 0.05, "pipeline": 0.04}] * 3 + [{"compute": 0.09}],
        spec=replace(PIPELINE, bubble=0.0),
        trace=_uneven_stages,
        settings={"stage_of_rank": 3},
    ),
    "pipeline.microbatches": Fault(
        [{"compute": 0.06, "pipeline": 0.01}] * 2, spec=PIPELINE, messages=4, settings={"microbatches": 12}
    ),
    "pipeline.interleave": Fault([{"compute": 0.06, "pipeline": 0.01}] * 2, spec=PIPELINE, messages=4),
    "checkpoint.async": Fault([{"compute": 0.06, "checkpoint_write": 0.03, "checkpoint_cpu": 0.01}], gain=0.3),
    "checkpoint.sharded": Fault(
        [{"compute": 0.06, "checkpoint_write": 0.04}, {"compute": 0.06, "straggler": 0.04}],
        settings={"writers": 2},
        gain=0.2,
    ),
    "checkpoint.interval": Fault(
        [{"compute": 0.08, "checkpoint_write": 0.02}],
        spec=Spec(words={"checkpoints": STEPS}),
        settings={"save_every_steps": 5},
    ),
    "host.gc": Fault([{"compute": 0.08, "host_gc": 0.02}], gain=0.2),
    "host.compile": Fault([{"compute": 0.08, "host_compile": 0.02}], gain=0.2),
    "host.allocator": Fault(
        [{"compute": 0.08, "host_allocator": 0.02}],
        spec=Spec(device="cuda", words={"alloc_steps": STEPS, "alloc_flushes": STEPS}),
        gain=0.2,
    ),
    "host.memory": Fault(
        [{"compute": 0.1}],
        spec=Spec(device="cuda", words={"alloc_steps": STEPS, "alloc_flushes": STEPS, "alloc_retries": STEPS}),
        idle={0: Idle(STEPS * 0.04)},
        gain=0.2,
    ),
    "host.modes": Fault(
        [{"compute": 0.1}],
        spec=Spec(device="cuda", words={"mode_looks+1": 20, "base_looks": 20}),
        idle={0: Idle(STEPS * 0.04)},
        gain=0.2,
    ),
    "host.launch": Fault([{"compute": 0.1}], spec=Spec(device="cuda"), idle={0: Idle(STEPS * 0.04)}, gain=0.2),
    "host.blocked": Fault([{"compute": 0.08, "host_blocked": 0.02}], gain=0.2),
    "host.lock": Fault(
        [{"compute": 0.08, "host_blocked": 0.02}],
        spec=Spec(words={"lock_ns": STEPS * 20 * MS}, strings={"lock_thread": "tokenizer"}),
        gain=0.2,
    ),
    "host.code": Fault(
        [{"compute": 0.08, "host": 0.02}],
        spec=Spec(
            words={"host_looks": 50, "host_at": 45, "base_looks": 250},
            strings={"host_line": "train.py:9 count_words -"},
        ),
        gain=0.18,
    ),
    "host.logging": Fault([{"compute": 0.08, "logging": 0.02}], gain=0.2),
    "compute.reference": Fault(
        [{"compute": 0.08, "rollout": 0.02}],
        spec=Spec(strings={"framework": "trl.dpo"}, words={"loader_starts": 4}),
        settings={"precompute_ref_log_probs": "True"},
        gain=0.15,
    ),
    "data.ahead": Fault([{"compute": 0.06, "data_read": 0.04}], workers=-1, gain=0.4),
    "evaluation.less": Fault(
        [{"compute": 0.08, "evaluation": 0.02}],
        spec=Spec(words={"evaluations": 4} | {f"evaluated_step+{at}": 10 * (at + 1) for at in range(4)}),
        settings={"evaluation_steps": 20},
        gain=0.1,
    ),
    "evaluation.ranks": Fault([{"compute": 0.06, "evaluation": 0.04}, {"compute": 0.06, "straggler": 0.04}], gain=0.2),
}
"""Rule -> a run in which it gives advice."""
HEALTHY: dict[str, Fault] = {
    "one rank": Fault([{"compute": 0.098, "data_handoff": 0.0005, "host": 0.001}], workers=2),
    "two ranks": Fault(
        [{"compute": 0.099, "network": 0.001}] * 2,
        spec=REDUCING,
        by_rank=synced(1, 1, 0),
        counters=Counters(64, 4096.0, {"eth0": 1500}),
    ),
    "a pipeline": Fault([{"compute": 0.1}] * 2, spec=replace(PIPELINE, bubble=0.01), messages=8),
    "nothing yet": Fault([{}]),
}


@pytest.mark.parametrize("rule", FAULTS)
def test_a_rule_gives_advice_if_its_condition_holds(rule: str, tmp_path: Path) -> None:
    fault = FAULTS[rule]
    said = {one.id: one for one in advise(case_of(fault, tmp_path), price=2.0)}
    assert rule in said
    one = said[rule]
    assert dict(one.settings) == fault.settings or not fault.settings
    assert all(
        f"{value:g}" in one.change for value in fault.settings.values() if isinstance(value, int) and value < 1 << 20
    )
    assert one.gain.least <= one.gain.share <= one.gain.most + 1e-9
    if fault.gain is not None:
        assert one.gain.share == pytest.approx(fault.gain, abs=0.03)
    assert one.evidence
    assert one.money == pytest.approx(2 * one.gpu_hours)


@pytest.mark.parametrize("name", HEALTHY)
def test_gives_no_advice_to_a_healthy_run(name: str, tmp_path: Path) -> None:
    assert advise(case_of(HEALTHY[name], tmp_path)) == []


@pytest.mark.parametrize("rule", FAULTS)
def test_no_rule_promises_more_than_the_share_of_what_it_removes(rule: str, tmp_path: Path) -> None:
    case = case_of(FAULTS[rule], tmp_path)
    [of] = [one for one in RULES if one.id == rule]
    if of.removes is None:
        return
    assert set(of.removes) <= set(CAUSES)
    most = case.removable(of.families, of.removes)
    sure = Found("Do it", Gain(0.81, 0.72, 0.89, "replay"), ("it is slow",))
    [one] = advise(case, rules=[replace(of, find=lambda case: sure)])
    assert most < 0.72
    assert (one.gain.share, one.gain.least) == (pytest.approx(most), pytest.approx(most))
    assert one.gain.most == (0.89 if "network" in of.families else pytest.approx(most))


def test_every_rule_has_a_case() -> None:
    assert {rule.id for rule in RULES} == FAULTS.keys()
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.id.count(".") == 1 and rule.families for rule in RULES)


@pytest.mark.parametrize(
    ("rule", "spec"),
    [
        ("checkpoint.async", Spec(words={"saves_behind": 4})),
        ("network.hierarchy", replace(GATHERING, handed=[("shard", 7, 2, GATHERING.handed[0][3])])),  # inside a node
    ],
)
def test_does_not_advise_what_the_run_does_already(rule: str, spec: Spec, tmp_path: Path) -> None:
    assert rule not in {one.id for one in advise(case_of(replace(FAULTS[rule], spec=spec), tmp_path))}


@pytest.mark.parametrize(
    ("label", "ms", "most"),
    [
        ("thread tokenizer", 100, 0.36),
        ("save", 100, 0.36),
        ("thread prefetch", 100, 0.2),
        ("save process", 100, 0.2),
        ("thread tokenizer", 10, 0.2),
    ],
    ids=["the thread", "saves in a thread", "another thread", "saves in a process", "less than is blocked"],
)
def test_a_thread_that_holds_the_lock_may_cost_what_steps_beside_it_lose(
    label: str, ms: float, most: float, tmp_path: Path
) -> None:
    fault = FAULTS["host.lock"]
    stretches = [(4, ms), (3, ms * 1.04), (4, ms * 0.97), (3, ms)]
    spec = replace(fault.spec, backgrounds=[Work(label, stretches)])
    [said] = [one for one in advise(case_of(replace(fault, spec=spec), tmp_path)) if one.id == "host.lock"]
    assert said.gain.most == pytest.approx(most, abs=0.02)


def test_a_thread_that_serves_a_process_that_saves_cannot_work_elsewhere(tmp_path: Path) -> None:
    fault = FAULTS["host.lock"]
    work = Work("save process", [(10, 25)] * 4)
    spec = replace(fault.spec, strings={**fault.spec.strings, "lock_thread": "_serve"}, backgrounds=[work])
    [said] = [one for one in advise(case_of(replace(fault, spec=spec), tmp_path)) if one.id == "host.lock"]
    assert said.change.startswith("Save less often, or fewer and larger tensors: the thread _serve")


@pytest.mark.parametrize(("part", "rule"), [("lock", "host.lock"), ("storage", "host.blocked")])
def test_a_thread_that_holds_the_lock_in_bursts_is_moved_though_looks_missed_it(
    part: str, rule: str, tmp_path: Path
) -> None:
    fault = FAULTS["host.blocked"]
    work = Work("thread tokenizer", [(4, 100), (3, 104), (4, 97), (3, 100)], part=part)
    words = {"lock_looks": 1, "lock_ns": MS, "base_looks": 200}
    spec = replace(fault.spec, backgrounds=[work], words=words, strings={"lock_thread": "tokenizer"})
    said = advise(case_of(replace(fault, spec=spec), tmp_path))
    assert [one.id for one in said if one.id in ("host.lock", "host.blocked")] == [rule]


def test_a_thread_that_saves_is_not_told_to_become_a_data_worker(tmp_path: Path) -> None:
    fault = FAULTS["host.lock"]
    spec = replace(fault.spec, words={**fault.spec.words, "saves_behind": 4})
    [said] = [one for one in advise(case_of(replace(fault, spec=spec), tmp_path)) if one.id == "host.lock"]
    assert "AsyncCheckpointerType.PROCESS" in said.change
    assert "DataLoader" not in said.change


def test_advice_with_the_largest_gain_comes_first(tmp_path: Path) -> None:
    both = Fault([{"compute": 0.05, "host_gc": 0.02, "checkpoint_write": 0.03}])
    said: list[Advice] = advise(case_of(both, tmp_path))
    assert [one.id for one in said] == ["checkpoint.async", "host.gc"]
    assert said[0].gpu_hours == pytest.approx(0.3 * STEPS * 0.1 / 3600, rel=0.02)
    assert said[0].money is None


@pytest.mark.parametrize(
    "fault",
    [
        replace(FAULTS["data.workers"], workers=-1),
        replace(FAULTS["data.workers"], steps=[{"compute": 0.05, "data_cpu": 0.04}]),  # the number of CPUs is not known
        replace(FAULTS["data.workers"], steps=[{"compute": 0.05, "data_cpu": 0.02, "data_queue": 0.02}]),
        replace(FAULTS["data.workers"], steps=[{"compute": 0.05, "data_read": 0.0005}]),
    ],
    ids=["workers unknown", "CPUs unknown", "no CPU to spare", "too little"],
)
def test_does_not_advise_more_workers_if_the_gain_is_unknown(fault: Fault, tmp_path: Path) -> None:
    assert "data.workers" not in {one.id for one in advise(case_of(fault, tmp_path))}


@pytest.mark.parametrize("rule", ["data.prefetch", "data.workers", "data.decode"])
def test_slow_first_batches_give_no_advice_on_workers_or_prefetching(rule: str, tmp_path: Path) -> None:
    assert rule not in {one.id for one in advise(case_of(FAULTS["data.first"], tmp_path))}


SLOW_WORKERS = Fault([{"compute": 0.05, "data_read": 0.04}], workers=2)


@pytest.mark.parametrize(
    ("looks", "together", "parallel", "least"),
    [
        ({"sleep": 60}, 30, 30, 0.3),
        ({"lock": 30, "sleep": 30}, 30, 0, None),
        ({"sleep": 30}, 0, 0, 0.0),
        ({}, 0, 0, 0.0),
    ],
    ids=["in parallel", "one by one", "never together", "not looked"],
)
def test_more_workers_surely_help_only_if_they_were_seen_to_read_in_parallel(
    looks: dict[str, int], together: int, parallel: int, least: float | None, tmp_path: Path
) -> None:
    words = {"together_looks": together, "parallel_looks": parallel}
    latency = mount(data=1.5, rates=[4, 8])
    case = case_of(replace(SLOW_WORKERS, spec=Spec(words=words, mounts=[latency] if together else [])), tmp_path)
    case.ranks[0].worker_looks = looks
    found = [one.gain.least for one in advise(case) if one.id == "data.workers"]
    assert found == ([] if least is None else [pytest.approx(least, abs=0.15)])


def test_workers_that_wait_for_a_lock_do_not_wait_for_storage(tmp_path: Path) -> None:
    case = case_of(SLOW_WORKERS, tmp_path)
    case.ranks[0].worker_looks = {"lock": 30, "sleep": 30}
    assert "data.cache" not in {one.id for one in advise(case)}


@pytest.mark.parametrize("workers", [-1, 2])
def test_advises_no_other_reads_where_none_were_seen(workers: int, tmp_path: Path) -> None:
    """Whoever makes the batches sleeps, and the bytes of a read are those of the process's other files."""
    spec = Spec(words={"data_awaited_ns": STEPS * 40 * MS} if workers < 0 else {})
    fault = Fault([{"compute": 0.06, "data_read": 0.04}], spec=spec, workers=workers)
    ids = {one.id for one in advise(case_of(replace(fault, counters=Counters(bytes_per_read=2048)), tmp_path))}
    assert "data.shards" not in ids
    assert ("data.cache" in ids) == (workers > 0)
    assert ("data.ahead" in ids) == (workers < 0)


@pytest.mark.parametrize(("starts", "advised"), [(0, False), (1, False), (2, True)])
def test_keeping_workers_is_not_advised_if_they_have_started_once(starts: int, advised: bool, tmp_path: Path) -> None:
    fault = replace(FAULTS["data.start"], spec=Spec(words={"loader_starts+1": starts}))
    assert ("data.start" in {one.id for one in advise(case_of(fault, tmp_path))}) is advised


def test_does_not_advise_to_decode_what_is_taken_from_memory(tmp_path: Path) -> None:
    fault = Fault([{"compute": 0.06, "data_cpu": 0.04}], spec=Spec(words={"samples": STEPS * 64}))
    assert "data.decode" not in {one.id for one in advise(case_of(fault, tmp_path))}


def test_decoding_once_may_save_nothing_where_samples_are_augmented_at_random(tmp_path: Path) -> None:
    [one] = [each for each in advise(case_of(FAULTS["data.decode"], tmp_path)) if each.id == "data.decode"]
    assert "not random augmentation" in one.change
    assert (one.gain.least, one.gain.share) == (0.0, pytest.approx(0.4, abs=0.01))


@pytest.mark.parametrize(("cpus", "most"), [(1, 0.6), (8, 0.2)])
def test_a_loop_that_is_short_of_cpus_may_queue_for_those_that_decode(cpus: int, most: float, tmp_path: Path) -> None:
    fault = Fault(
        [{"compute": 0.04, "compute_queue": 0.04, "data_cpu": 0.01, "data_queue": 0.01}],
        workers=2,
        spec=Spec(words=CPUS | {"cpus_allowed": cpus, "cpus_at_start": cpus}, strings={"cpu_list": f"0-{cpus - 1}"}),
    )
    [one] = [each for each in advise(case_of(fault, tmp_path)) if each.id == "data.decode"]
    assert (one.gain.share, one.gain.most) == (pytest.approx(0.2, abs=0.01), pytest.approx(most, abs=0.01))


def test_does_not_advise_to_prefetch_for_waits_as_long_as_an_evaluation(tmp_path: Path) -> None:
    fault = replace(FAULTS["data.prefetch"], odd=[{"compute": 0.05, "data_read": 10.0}])
    assert "data.prefetch" not in {one.id for one in advise(case_of(fault, tmp_path))}


def test_does_not_advise_to_prefetch_for_batches_of_evaluations(tmp_path: Path) -> None:
    fault = replace(FAULTS["data.prefetch"], spec=Spec(words={"eval_data_ns": 10**9}))
    assert "data.prefetch" not in {one.id for one in advise(case_of(fault, tmp_path))}


def test_does_not_advise_to_prefetch_if_the_loop_waits_for_each_round_of_its_workers(tmp_path: Path) -> None:
    """Twenty workers that are always busy deliver together, so each twentieth step waits."""
    fault = replace(FAULTS["data.prefetch"], workers=20)
    assert "data.prefetch" not in {one.id for one in advise(case_of(fault, tmp_path))}


def test_advises_as_many_computing_workers_as_cpus(tmp_path: Path) -> None:
    fault = replace(
        FAULTS["data.workers"],
        steps=[{"compute": 0.02, "data_cpu": 0.08}],
        counters=Counters(cpus=4.0),
    )
    [workers] = [one for one in advise(case_of(fault, tmp_path)) if one.id == "data.workers"]
    assert workers.settings == {"num_workers": 3}


@pytest.mark.parametrize(("iterables", "says"), [(0, False), (1, True)])
def test_says_that_workers_must_share_a_stream(iterables: int, says: bool, tmp_path: Path) -> None:
    fault = replace(FAULTS["data.workers"], spec=Spec(words={"loader_iterables": iterables}))
    [workers] = [one for one in advise(case_of(fault, tmp_path)) if one.id == "data.workers"]
    assert ("own part" in workers.change) is says


def test_does_not_advise_to_freeze_what_is_frozen(tmp_path: Path) -> None:
    fault = replace(FAULTS["host.gc"], spec=Spec(words={"gc_frozen": 1}))
    assert "host.gc" not in {one.id for one in advise(case_of(fault, tmp_path))}
    asked = {"gc_frozen": 1, "gc_asked": STEPS, "gc_asked_ns": STEPS * 19 * MS}
    [one] = advise(case_of(replace(fault, spec=Spec(words=asked)), tmp_path / "asked"))
    assert one.change.startswith("Call gc.collect() less often")


BLOCKED_MOSTLY = [{"compute": 0.05, "host_blocked": 0.06}, {"compute": 0.055, "straggler": 0.055}]
"""The first rank is late by 55 ms, because its loop is blocked."""


@pytest.mark.parametrize("waited", [0.0005, 0.01], ids=["negligible", "some"])
def test_does_not_advise_another_device_for_what_is_not_compute(waited: float, tmp_path: Path) -> None:
    """The second rank computes longer in each 20th step. Another device does not help the first one."""
    longer = 20 * waited
    odd = [{"compute": 0.05, "straggler": longer}, {"compute": 0.05 + longer}]
    late = [
        {"late": {"host": 1.1}, "late_steps": STEPS - 2, "step": BLOCKED_MOSTLY[0] | {"straggler": waited}},
        {"late": {"compute": STEPS * waited}, "late_steps": 2},
    ]
    gains = {one.id: one.gain.share for one in advise(case_of(Fault(BLOCKED_MOSTLY, odd, by_rank=late), tmp_path))}
    assert "straggler.drain" not in gains
    assert gains["host.blocked"] > 0.3


def test_a_thread_hides_what_blocks_the_loop_only_behind_the_rest(tmp_path: Path) -> None:
    case = case_of(Fault([{"compute": 0.03, "host_blocked": 0.07}]), tmp_path)
    [gain] = [one.gain for one in advise(case) if one.id == "host.blocked"]
    assert (gain.share, gain.most) == (pytest.approx(0.3, abs=0.01), pytest.approx(0.7, abs=0.01))


def test_a_place_gets_its_part_of_what_blocks_the_loop(tmp_path: Path) -> None:
    spec = Spec(words={"blocked_looks": 20, "blocked_at": 12}, strings={"blocked_line": "train.py:9 send requests"})
    [gain] = [
        one.gain
        for one in advise(case_of(replace(FAULTS["host.blocked"], spec=spec), tmp_path))
        if one.id == "host.blocked"
    ]
    assert (gain.share, gain.most) == (pytest.approx(0.12, abs=0.01), pytest.approx(0.2, abs=0.01))


def test_a_loop_without_a_cpu_to_receive_batches_has_no_slow_workers(tmp_path: Path) -> None:
    """In 19 of 20 steps the batch is ready, and in one a worker decodes."""
    receiving = {"compute": 0.05, "data_handoff": 0.02, "data_queue": 0.03}
    fault = Fault([receiving], [{"compute": 0.05, "data_cpu": 0.04, "data_queue": 0.03}], workers=1)
    gains = {one.id: one.gain for one in advise(case_of(fault, tmp_path))}
    assert gains["data.handoff"].share == pytest.approx(0.95 * 0.5, abs=0.02)
    assert gains["data.handoff"].least == pytest.approx(0.95 * 0.2, abs=0.02)
    assert gains.get("data.decode", Gain(0.0, 0.0, 0.0, "")).share < 0.05


def test_queues_for_too_few_cpus_do_not_count_as_slow_hand_overs(tmp_path: Path) -> None:
    """Nobody works in these waits for a batch, because somebody else has the CPU."""
    starved = [{"compute": 0.02, "data_handoff": 0.01, "data_queue": 0.07}]
    said = advise(case_of(replace(FAULTS["cpu.limit"], steps=starved), tmp_path))
    gains = {one.id: one.gain for one in said}
    assert said[0].id == "cpu.limit"
    assert gains["data.handoff"].share == pytest.approx(0.1, abs=0.02)


def test_time_in_which_the_loop_itself_gets_no_cpu_counts_for_the_advised_limit(tmp_path: Path) -> None:
    starved = [{"compute": 0.05, "compute_queue": 0.05}]
    said = advise(case_of(replace(FAULTS["cpu.limit"], steps=starved, workers=0), tmp_path))
    assert (said[0].id, said[0].gain.share) == ("cpu.limit", pytest.approx(0.5, abs=0.02))


@pytest.mark.parametrize(
    ("queued", "threads", "advised"),
    [
        (30, 1, {"cpu.limit": (0.0, 0.15, 0.5), "host.launch": (0.0, 0.2, 0.4)}),
        (80, 1, {"cpu.limit": (0.2, 0.3, 0.5), "host.launch": (0.0, 0.2, 0.4)}),
        (30, 8, {"cpu.limit": (0.0, 0.15, 0.5), "host.launch": (0.0, 0.2, 0.4)}),
        (3, 8, {"host.launch": (0.0, 0.2, 0.4)}),
    ],
)
def test_a_gpu_whose_host_queues_for_a_cpu_is_given_more_of_them_first(
    queued: int, threads: int, advised: dict[str, tuple[float, ...]], tmp_path: Path
) -> None:
    """The GPU has no work for 40 of 100 ms."""
    words = CPUS | {"cpu_queued_ns": STEPS * queued * MS, "threads_intra": threads}
    spec = Spec(device="cuda", words=words, strings={"cpu_list": "3"})
    said = advise(case_of(replace(FAULTS["host.launch"], spec=spec), tmp_path))
    assert [one.id for one in said] == [*advised]
    for one in said:
        assert (one.gain.least, one.gain.share, one.gain.most) == pytest.approx(advised[one.id], abs=0.02)


@pytest.mark.parametrize(("have", "gain"), [(0, 0.73), (1, 0.75)])
def test_who_makes_batches_on_the_only_cpu_needs_more_cpus_and_workers(have: int, gain: float, tmp_path: Path) -> None:
    """Nobody queues: there is one process for one CPU."""
    busy = [{"compute": 0.02, "data_cpu": 0.08}]
    said = advise(case_of(replace(FAULTS["cpu.limit"], steps=busy, workers=have), tmp_path))
    assert said[0].id == "cpu.limit"
    assert said[0].settings["num_workers"] == float(said[0].settings["cpus"]) + have - 1
    assert (said[0].gain.share, said[0].gain.least) == (pytest.approx(gain, abs=0.05), 0.0)


def test_data_workers_with_many_threads_that_queue_are_advised_to_use_one(tmp_path: Path) -> None:
    words = CPUS | {"cpus_node": 2, "cpus_at_start": 2, "cpus_allowed": 2, "worker_threads": 9}
    fault = Fault(
        [{"compute": 0.05, "data_cpu": 0.02, "data_queue": 0.03}],
        workers=3,
        spec=Spec(words=words, strings={"cpu_list": "0-1"}),
    )
    [one] = [one for one in advise(case_of(fault, tmp_path)) if one.id == "cpu.threads"]
    assert (one.settings, one.gain.share) == ({"worker_threads": 1}, pytest.approx(0.12, abs=0.02))
    few = replace(fault, spec=Spec(words=words | {"worker_threads": 4}, strings={"cpu_list": "0-1"}))
    assert "cpu.threads" not in {one.id for one in advise(case_of(few, tmp_path))}


def test_never_advises_more_computing_workers_than_the_given_cpus_can_serve(tmp_path: Path) -> None:
    words = CPUS | {"cpus_allowed": 3, "cpus_at_start": 3}
    fault = replace(
        FAULTS["data.workers"],
        steps=[{"compute": 0.02, "data_cpu": 0.08}],
        spec=Spec(words=words, strings={"cpu_list": "0-2"}),
        counters=Counters(cpus=64.0),
    )
    [workers] = [one for one in advise(case_of(fault, tmp_path)) if one.id == "data.workers"]
    assert workers.settings == {"num_workers": 2}


@pytest.mark.parametrize(
    ("backwards", "reduced", "advised", "change"),
    [
        (1, 1, 8, "Accumulate the gradients of 8 batches, and reduce"),
        (2, 1, 8, "Accumulate the gradients of 8 batches instead of 2, and reduce"),
        (
            4,
            2,
            8,
            "Accumulate the gradients of 8 batches instead of 4, and reduce",
        ),  # one of the all-reduces is of the loss
        (4, 4, 8, "Accumulate the gradients of 8 batches, and reduce"),  # it is not known what the all-reduces are for
        (8, 1, None, ""),
        (12, 1, None, ""),
    ],
)
def test_advises_more_accumulation_than_the_loop_has(
    backwards: int, reduced: int, advised: int | None, change: str, tmp_path: Path
) -> None:
    words = {"backwards": backwards * STEPS, "collective_calls": reduced * STEPS}
    case = case_of(replace(FAULTS["network.accumulation"], by_rank=[{"words": words}] * 2), tmp_path)
    found = [one for one in advise(case) if one.id == "network.accumulation"]
    assert [one.settings["accumulation_steps"] for one in found] == ([] if advised is None else [advised])
    assert all(one.change.startswith(change) for one in found)
    if backwards == 4 and reduced == 2:
        assert found[0].gain.share == pytest.approx(0.25, abs=0.03)  # half of the transfers remain


@pytest.mark.parametrize(("network", "advised"), [(0.003, None), (0.009, None), (0.015, 2), (0.03, 4)])
def test_accumulation_is_advised_until_transfers_take_a_tenth_of_the_time(
    network: float, advised: int | None, tmp_path: Path
) -> None:
    fault = replace(FAULTS["network.accumulation"], steps=[{"compute": 0.1 - network, "network": network}] * 2)
    found = {one.id: one for one in advise(case_of(fault, tmp_path))}
    assert ("network.accumulation" in found) is (advised is not None)
    if advised:
        assert found["network.accumulation"].settings == {"accumulation_steps": advised}


def test_no_sync_is_advised_where_there_is_one(tmp_path: Path) -> None:
    words = {"backwards": STEPS, "reduced": STEPS, "collective_calls": STEPS}
    case = case_of(replace(FAULTS["network.accumulation"], by_rank=[{"words": words}] * 2), tmp_path)
    [one] = [one for one in advise(case) if one.id == "network.accumulation"]
    assert one.change.endswith("with no_sync() in all but the last")


@pytest.mark.parametrize(("device", "logging", "code"), [("cpu", 45, 0), ("cuda", 45, 0), ("cpu", 10, 1)])
def test_a_logger_is_not_the_loops_own_code_too(device: str, logging: int, code: int, tmp_path: Path) -> None:
    words = {"host_looks": 50, "host_at": 45, "base_looks": 250, "logging_looks+1": logging}
    strings = {"host_line": "train.py:9 write -", "logging_below": "train.py:5 write"}
    spec = Spec(device=device, words=words, strings=strings)
    found = [one.id for one in advise(case_of(Fault([{"compute": 0.05, "host": 0.05}], spec=spec), tmp_path))]
    assert (found.count("host.logging"), found.count("host.code")) == (1, code)


FEWER = "Do the work of `norms` (train.py:9) less often, or with fewer operations"


@pytest.mark.parametrize(
    ("looks", "launching", "outside", "advised"),
    [
        (20, (8, 5), (0, 0), {"host.launch": "Compile the model"}),
        (20, (12, 5), (0, 0), {}),  # most are outside the model, in several places
        (20, (12, 11), (0, 0), {"host.launch": "Launch fewer operations in `norms` (train.py:9)"}),
        (20, (8, 8), (7, 7), {"host.code": FEWER}),
        (4, (0, 0), (0, 0), {}),
        (0, (0, 0), (0, 0), {"host.launch": "Compile the model"}),  # nothing looks at the training thread
    ],
)
def test_advice_on_launches_depends_on_where_looks_find_them(
    looks: int, launching: tuple[int, int], outside: tuple[int, int], advised: dict[str, str], tmp_path: Path
) -> None:
    words, strings = {"work_looks": looks}, {}
    for kind, (whole, at) in (("launching", launching), ("outside", outside)):
        words |= {f"{kind}_looks": whole, f"{kind}_at": at}
        strings |= {f"{kind}_line": "train.py:9 norms -"}
    spec = Spec(device="cuda", words=words, strings=strings)
    found = advise(case_of(replace(FAULTS["host.launch"], spec=spec), tmp_path))
    assert {one.id for one in found} == {*advised}
    assert all(one.change.startswith(advised[one.id]) for one in found)


@pytest.mark.parametrize(("locked", "advised"), [(18, ["host.lock"]), (4, ["host.launch"]), (0, ["host.launch"])])
def test_a_thread_that_holds_the_lock_while_a_device_has_no_work_is_moved(
    locked: int, advised: list[str], tmp_path: Path
) -> None:
    spec = Spec(device="cuda", words={"work_looks": 20, "lock_looks": locked}, strings={"lock_thread": "metrics"})
    found = advise(case_of(replace(FAULTS["host.launch"], spec=spec), tmp_path))
    assert [one.id for one in found] == advised
    if locked == 18:
        assert found[0].change.startswith("Let the thread metrics do its work in a separate process")
        assert found[0].gain.share == pytest.approx(0.4 * 0.9, abs=0.01)


@pytest.mark.parametrize(("of_group", "option"), [(0, "`docker run --cpuset-cpus=0-2`"), (8, "`taskset`, `numactl`")])
def test_what_binds_a_job_inside_of_its_container_is_not_the_containers_option(
    of_group: int, option: str, tmp_path: Path
) -> None:
    spec = Spec(words=CPUS | {"cpus_of_group": of_group}, strings={"cpu_list": "3", "launcher": "docker"})
    found = advise(case_of(replace(FAULTS["cpu.limit"], spec=spec), tmp_path))
    [one] = [one for one in found if one.id == "cpu.limit"]
    assert option in one.change


@pytest.mark.parametrize(
    ("of", "option"),
    [(0, "`docker run --cpus="), (QUOTA_INSIDE, "`cpu.max` of the control group, inside the container")],
)
def test_a_quota_inside_of_a_container_is_not_the_containers_option(of: int, option: str, tmp_path: Path) -> None:
    quota = {"cpu_quota_milli": 400, "cpu_quota_id": 7, "cpu_periods": 249, "cpu_throttled_periods": 248}
    spec = Spec(words=CPUS | quota | {"cpu_quota_of": of}, strings={"cpu_list": "0-3", "launcher": "docker"})
    found = advise(case_of(replace(FAULTS["cpu.limit"], spec=spec), tmp_path))
    [one] = [one for one in found if one.id == "cpu.limit"]
    assert option in one.change


def test_fewer_evaluations_save_their_idle_time_too(tmp_path: Path) -> None:
    fault = FAULTS["evaluation.less"]
    words = dict(fault.spec.words) | {"eval_idle_ns": 10**12}
    steps = [{"compute": 0.06, "evaluation": 0.02, "host_blocked": 0.02}]
    case = case_of(replace(fault, steps=steps, spec=Spec(words=words)), tmp_path)
    [one] = [one for one in advise(case) if one.id == "evaluation.less"]
    assert one.gain.share == pytest.approx(0.2, abs=0.01)
    assert "and is idle in evaluations for 20 %" in one.evidence[0]


def test_a_loop_that_is_blocked_in_evaluations_is_not_told_to_use_data_workers(tmp_path: Path) -> None:
    fault = replace(FAULTS["host.blocked"], spec=Spec(words={"eval_idle_ns": 10**12}))
    [one] = [one for one in advise(case_of(fault, tmp_path)) if one.id == "host.blocked"]
    assert "finish the evaluation" in one.change
    assert "DataLoader" not in one.change


def test_ranks_that_evaluate_as_many_batches_are_not_told_to_share_them(tmp_path: Path) -> None:
    words = [{"words": {"eval_batches": 40}}, {"words": {"eval_batches": 39}}]
    case = case_of(replace(FAULTS["evaluation.ranks"], by_rank=words), tmp_path)
    assert "evaluation.ranks" not in {one.id for one in advise(case)}


def test_ranks_that_take_fewer_batches_of_an_evaluation_are_named_so(tmp_path: Path) -> None:
    """The other one does more with the results."""
    fault = FAULTS["evaluation.ranks"]
    words = [{"words": {"eval_batches": 40}}, {"words": {"eval_batches": 10}, "step": fault.steps[0]}]
    case = case_of(replace(fault, by_rank=words), tmp_path)
    case.account.ranks[1].seconds["evaluation"] *= 2
    [one] = [one for one in advise(case) if one.id == "evaluation.ranks"]
    share = case.account.ranks[0].seconds["evaluation"] / case.account.ranks[0].wall
    assert one.evidence == (
        f"rank 0 evaluates for {100 * share:.0f} % of the time, and the others take less than half as many batches",
    )


def test_an_optimizer_between_two_steps_is_not_told_to_stay_on_the_gpu(tmp_path: Path) -> None:
    words = {"host_looks": 50, "host_at": 45, "base_looks": 250}
    spec = Spec(device="cuda", words=words, strings={"host_line": "train.py:9 main torch.optim"})
    [one] = [one for one in advise(case_of(replace(FAULTS["host.code"], spec=spec), tmp_path)) if one.id == "host.code"]
    assert one.change.startswith("Do the work of `main` (train.py:9) less often")


def test_an_optimizer_on_the_cpu_is_named(tmp_path: Path) -> None:
    words = {"work_looks": 20, "outside_looks": 12, "outside_at": 11}
    spec = Spec(device="cuda", words=words, strings={"outside_line": "train.py:9 main torch.optim"})
    [one] = [
        one for one in advise(case_of(replace(FAULTS["host.launch"], spec=spec), tmp_path)) if one.id == "host.code"
    ]
    assert one.change.startswith("Keep the optimizer of `main` (train.py:9) on the GPU")


def test_an_optimizer_that_launches_most_operations_is_named(tmp_path: Path) -> None:
    words = {"work_looks": 20, "launching_looks": 12, "launching_at": 11}
    spec = Spec(device="cuda", words=words, strings={"launching_line": "train.py:9 main torch.optim"})
    [one] = advise(case_of(replace(FAULTS["host.launch"], spec=spec), tmp_path))
    assert one.change.startswith(
        "Launch fewer operations in the optimizer, at `main` (train.py:9): give it `fused=True`"
    )


def test_a_loop_that_saves_in_its_own_way_is_told_what_to_do(tmp_path: Path) -> None:
    """Looks found it in a function that saves, in a quarter of the time."""
    spec = Spec(words={"work_looks": 40, "saving_looks+2": 10})
    fault = Fault([{"compute": 0.2}], spec=spec)
    [one] = [one for one in advise(case_of(fault, tmp_path)) if one.id == "checkpoint.async"]
    assert one.change.startswith("Copy what is saved, and let a thread")
    assert (one.gain.share, one.gain.least) == (pytest.approx(0.25, abs=0.01), 0.0)
    ledgers, _ = read_directory(str(tmp_path), steps=True)
    [row] = cast(Any, answer(run_of(ledgers[0]), ledgers, time.monotonic_ns(), Changes(async_save=True))["changes"])
    assert (row["share"], row["least"]) == (pytest.approx(one.gain.share, abs=0.01), pytest.approx(0, abs=0.01))


@pytest.mark.parametrize("label", ["dp", "dp (2)", "tp", "tp (2)", "cp"])
def test_only_gradients_are_accumulated(label: str, tmp_path: Path) -> None:
    """Tensor parallelism reduces activations, in each forward and backward pass of each batch."""
    spec = replace(REDUCING, handed=[(label, 7, 2, {"all_reduce": STEPS * 10_000_000})])
    case = case_of(replace(FAULTS["network.accumulation"], spec=spec), tmp_path)
    assert ("network.accumulation" in {one.id for one in advise(case)}) is label.startswith("dp")


@pytest.mark.parametrize(
    ("size", "words", "advised"),
    [(240, {}, False), (100_000, {}, True), (240, {"reduced": STEPS}, True)],
    ids=["metrics", "gradients", "a small model in DDP"],
)
def test_only_what_can_be_gradients_is_accumulated(
    size: int, words: dict[str, int], advised: bool, tmp_path: Path
) -> None:
    spec = replace(REDUCING, handed=[("dp", 7, 2, {"all_reduce": STEPS * size})], words=words)
    case = case_of(replace(FAULTS["network.accumulation"], spec=spec), tmp_path)
    assert ("network.accumulation" in {one.id for one in advise(case)}) is advised


def test_what_evaluations_pass_to_collectives_is_not_accumulated(tmp_path: Path) -> None:
    """The hooks count an evaluation's bytes apart, but not those in each group."""
    spec = replace(REDUCING, handed=[("dp", 7, 2, {"all_reduce": STEPS * 10_000_000})])
    case = case_of(replace(FAULTS["network.accumulation"], spec=spec), tmp_path)
    assert case.bytes()["all_reduce"] == 10_000_000
    for rank in case.ranks:
        passed = rank.newest.words["collective_bytes"]
        rank.newest.words["aside_bytes"] = tuple(number * 3 // 4 for number in passed)
    assert case.bytes("all_reduce") == {"all_reduce": 2_500_000}


def test_gives_the_share_of_the_time_without_a_replay(tmp_path: Path) -> None:
    case = replace(case_of(FAULTS["host.gc"], tmp_path), basis=None, why_not="a rank is missing")
    [one] = advise(case)
    assert (one.id, one.gain.how, one.gain.least) == ("host.gc", "formula", 0.0)
    assert one.gain.share == pytest.approx(0.2, abs=0.01)


def test_rules_say_whether_they_were_tried() -> None:
    untried = {rule.id for rule in RULES if rule.tried not in (HERE, SIMULATED)}
    assert untried == {rule.id for rule in RULES if rule.tried.startswith(NOT)}
    assert untried == {
        *("network.rdma", "compute.reference", "host.allocator", "host.memory", "host.modes", "shm.size"),
    }
    assert FLOOR == 0.02


@pytest.mark.parametrize(
    ("tested", "tried"), [(False, f"{NOT}needs a switch"), (True, SIMULATED)], ids=["no", "simulated"]
)
def test_advice_says_how_it_was_tried(tested: bool, tried: str, tmp_path: Path) -> None:
    rules = [replace(rule, tried=tried) for rule in RULES if rule.id == "host.launch"]
    [one] = entries(advise(case_of(FAULTS["host.launch"], tmp_path), rules=rules))
    assert (one["tested"], one["tried"]) == (tested, tried)
    assert f"   tried: {tried}" in render([one], "GPU-hours", "$")


def test_the_bounds_of_an_interval_are_those_of_the_failures(tmp_path: Path) -> None:
    """Two failures in 3,000 s: with 95 % confidence one in 415 s to one in 12,400 s on average."""
    [gain] = [one.gain for one in killed(2, 1, tmp_path) if one.id == "checkpoint.interval"]
    assert 0 <= gain.least < gain.share < gain.most < 0.5


def test_saving_less_often_saves_no_more_than_the_time_of_the_saves(tmp_path: Path) -> None:
    """The saves that were seen follow each step, but together they take 2 % of the time."""
    [gain] = [one.gain for one in killed(2, 1, tmp_path, saved=0.12) if one.id == "checkpoint.interval"]
    assert (gain.share, gain.most) == (pytest.approx(0.024), pytest.approx(0.024))


def killed(failures: int, save_every: float, folder: Path, *, saved: float = 1.0) -> list[Advice]:
    """The advice for attempts of 1000 s, of which the last one ended well. A save takes 20 ms, and a step 80 ms.
    ``saved``: the share of the steps that have a save."""
    case = case_of(FAULTS["checkpoint.interval"], folder)
    assert case.goodput is not None
    case.goodput.rhythm = Rhythm(save_every, 0.02, 0.0)
    case.goodput.stepping *= failures + 1
    case.goodput.blocked *= saved * (failures + 1)
    first = replace(case.goodput.attempts[0], startup=5.0)
    first.end = first.start + 1000
    case.goodput.attempts[:] = [
        replace(first, number=number, clean=number == failures) for number in range(failures + 1)
    ]
    return advise(case)


@pytest.mark.parametrize(
    ("failures", "every", "advised"), [(0, 1, True), (1, 1, True), (1, 10_000, False), (3, 10_000, True)]
)
def test_does_not_advise_to_save_more_often_after_one_failure(
    failures: int, every: int, advised: bool, tmp_path: Path
) -> None:
    """10,000 steps take 800 s: far too many if a failure comes each 1000 s. After each step is far too often."""
    said = {one.id: one for one in killed(failures, every, tmp_path)}
    assert ("checkpoint.interval" in said) is advised
    if advised:
        assert f"(now every {'step' if every == 1 else f'{every} steps'})" in said["checkpoint.interval"].change


def test_advises_no_interval_if_it_was_not_seen_how_often_the_run_saves(tmp_path: Path) -> None:
    case = case_of(FAULTS["checkpoint.interval"], tmp_path)
    assert case.goodput is not None
    case.goodput.rhythm = None
    assert "checkpoint.interval" not in {one.id for one in advise(case)}


@pytest.mark.parametrize(
    ("by_rank", "advised"),
    [
        (synced(4, 4, 3), "network.no_sync"),  # gradients are removed after each step
        (synced(4, 4, 4), "network.no_sync"),  # gradients are set to zero after each step
        (synced(1, 1, 1), "network.buckets"),  # the same, and each step has one backward pass
        (synced(4, 1, 0), "network.buckets"),  # all but the last are in no_sync()
        (synced(3, 3, 0), "network.buckets"),  # three optimizers, or a closure that an optimizer calls three times
    ],
)
def test_advises_no_sync_where_gradients_are_reduced_again(
    by_rank: list[dict[str, object]], advised: str, tmp_path: Path
) -> None:
    large = Spec(handed=[("dp", 7, 2, {"all_reduce": STEPS * 40_000_000})])
    said = {one.id: one for one in advise(case_of(Fault(SLOW_LINK, spec=large, by_rank=by_rank), tmp_path))}
    buckets = {"network.no_sync", "network.buckets"} & said.keys()
    if by_rank in (synced(1, 1, 1), synced(4, 1, 0)):  # 40 MB are two buckets already
        assert not buckets
        return
    assert buckets == {advised}
    assert ("network.accumulation" in said) is (advised != "network.no_sync")
    assert "stays the same" in said["network.no_sync"].change if advised == "network.no_sync" else True


def links_said(folder: Path, by_rank: list[dict[str, object]], rule: str = "network.link") -> list[Advice]:
    return [one for one in advise(case_of(Fault(SLOW_LINK, by_rank=by_rank), folder)) if one.id == rule]


SLOW_ETH = eth(0, **used(0.19), **limited(0.2))


@pytest.mark.parametrize(
    ("by_rank", "change"),
    [
        (WRONG_LINK, "eth1: set GLOO_SOCKET_IFNAME=eth1"),
        (linked(SLOW_ETH, eth(1), device="cuda"), "eth1: set NCCL_SOCKET_IFNAME=eth1"),
        (linked(SLOW_ETH, eth(1), device="xpu"), "eth1: set GLOO_SOCKET_IFNAME=eth1 and NCCL_SOCKET_IFNAME=eth1"),
        (
            linked(SLOW_ETH, eth(1), device="cuda", words={"rdma_missing": 1 << 8}),  # the backend is gloo
            "eth1: set GLOO_SOCKET_IFNAME=eth1",
        ),
        (
            linked(SLOW_ETH, lambda node: interface(1, node) | {"link": f"tcp ens{node} 10.231.0.{node + 1}/24"}),
            "ens0 and ens1: set GLOO_SOCKET_IFNAME=ens0 on n0 and GLOO_SOCKET_IFNAME=ens1 on n1",
        ),
        (
            linked(SLOW_ETH, lambda _: {"link": "rdma mlx5_0/1 -", "up": 1, "speed": 10**11}, device="cuda"),
            "mlx5_0/1: set NCCL_IB_HCA=mlx5_0:1",
        ),
        (
            [
                {"links": [interface(0, 0, **used(0.19)), interface(1, 0)], "node": "n0"},
                {"links": [interface(1, 1, **used(0.19), **limited(0.2)), interface(0, 1)], "node": "n1"},
            ],
            "eth0: set GLOO_SOCKET_IFNAME=eth0 for rank 1",
        ),
    ],
    ids=["gloo", "NCCL", "neither is known", "gloo on GPUs", "other names", "RDMA", "one rank"],
)
def test_names_the_variable_that_chooses_the_link(
    by_rank: list[dict[str, object]], change: str, tmp_path: Path
) -> None:
    [one] = links_said(tmp_path, by_rank)
    assert one.change == f"Let the transfers use {change}"


@pytest.mark.parametrize(
    "by_rank",
    [
        linked(SLOW_ETH),
        linked(eth(0, 1, **used(0.1)), eth(1)),
        linked(SLOW_ETH, eth(1, up=0)),
        linked(SLOW_ETH, eth(1, all=10**9)),
        linked(eth(1)),
    ],
    ids=["no other", "not at its limit", "down", "busy", "nothing known"],
)
def test_advises_no_other_link_if_it_would_not_help(by_rank: list[dict[str, object]], tmp_path: Path) -> None:
    assert links_said(tmp_path, by_rank) == []


@pytest.mark.parametrize(("gbits", "least", "share", "most"), [(10, 0.46, 0.48, 0.67), (0.4, 0.21, 0.24, 0.43)])
def test_the_gain_of_another_link_is_that_of_its_rate(
    gbits: float, least: float, share: float, most: float, tmp_path: Path
) -> None:
    """Half of the time is transfers. TCP moves 2.5 Gbit/s at least, or fills the link."""
    [one] = links_said(tmp_path, linked(SLOW_ETH, eth(1, gbits)))
    assert (one.gain.least, one.gain.share, one.gain.most) == (
        pytest.approx(least, abs=0.01),
        pytest.approx(share, abs=0.01),
        pytest.approx(most, abs=0.01),
    )


@pytest.mark.parametrize(
    ("link", "said"),
    [
        (SLOW_ETH, "Raise the limit of 0.2 Gbit/s on eth0, or remove it"),
        (eth(0, 0.3, **used(0.19), **limited(0.2)), ""),
        (eth(0, **used(0.05), **limited(0.2)), ""),
        (eth(0, 0.2, **used(0.19)), ""),
    ],
    ids=["much lower than the speed", "hardly lower", "not reached", "the hardware's own"],
)
def test_a_limit_is_only_to_be_raised_if_it_is_what_limits(
    link: Callable[[int], Words], said: str, tmp_path: Path
) -> None:
    found = links_said(tmp_path, linked(link), "network.limit")
    assert [one.change.partition(" (")[0] for one in found] == ([said] if said else [])


def test_a_link_that_loses_packets_gives_no_lower_bound(tmp_path: Path) -> None:
    [one] = links_said(tmp_path, linked(eth(0, **used(0.3, segments=1000, resent=20)), eth(1)))
    assert one.gain.least == 0.0
    assert one.gain.share == pytest.approx(0.47, abs=0.01)


def test_the_right_link_comes_before_what_makes_less_use_of_the_wrong_one(tmp_path: Path) -> None:
    """The other link is only twice as fast, so more accumulation would save more."""
    slow = eth(0, 0.3, **used(0.19), **limited(0.2))
    by_rank = linked(slow, eth(1, 0.4), words={"reduced": STEPS})
    fault = Fault([{"compute": 0.03, "network": 0.05, "host_gc": 0.02}] * 2, by_rank=by_rank, spec=REDUCING)
    said = [one.id for one in advise(case_of(fault, tmp_path))]
    assert said == ["network.link", "network.accumulation", "host.gc", "network.buckets"]
    at_its_limit = replace(fault, by_rank=linked(slow, words={"reduced": STEPS}))
    again = [one.id for one in advise(case_of(at_its_limit, tmp_path / "alone"))]
    assert again == ["network.accumulation", "host.gc", "network.buckets"]


def test_advises_larger_packets_than_500_bytes(tmp_path: Path) -> None:
    [one] = links_said(tmp_path, linked(eth(0, **used(3), mtu=500)), "network.jumbo")
    assert one.change.startswith("Set an MTU of 9000 on eth0")
    assert one.gain.share == pytest.approx(0.5 * (1 - (9038 / 8948) / (538 / 448)), abs=0.01)


def test_names_what_rdma_lacks(tmp_path: Path) -> None:
    [one] = links_said(tmp_path, NO_RDMA, "network.rdma")
    assert one.change.startswith("Let the transfers use RDMA: unset NCCL_IB_DISABLE and give the container /dev/infin")
    assert TODO.keys() == {*RDMA_MISSING}


def test_does_not_advise_ddp_to_a_run_that_uses_it(tmp_path: Path) -> None:
    """Each step reduces 19 metrics one by one, besides the gradients."""
    by_rank: list[dict[str, object]] = [{"words": {"collective_calls": 20 * STEPS, "reduced": STEPS}}] * 2
    fault = replace(FAULTS["network.coalesce"], by_rank=by_rank)
    [one] = [one for one in advise(case_of(fault, tmp_path)) if one.id == "network.coalesce"]
    assert one.change == "Put the 20 collectives of a step together into 2: flatten the tensors"


@pytest.mark.parametrize(
    ("late", "words"),
    [
        ({}, {"no_grad_ns": 1_400_000_000}),  # it generates
        ({"late_steps": STEPS // 4}, {}),  # what it does now and then
    ],
)
def test_does_not_advise_another_device_for_a_rank_that_does_more(
    late: dict[str, object], words: dict[str, int], tmp_path: Path
) -> None:
    fault = Fault(UNEVEN, by_rank=[{}, LATE | late | {"words": words}])
    assert "straggler.drain" not in {one.id for one in advise(case_of(fault, tmp_path))}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([{}, {}], "it takes longer"),  # the samples of its steps are not known
        ([{"samples": 8 * STEPS, "batches": STEPS}] * 2, "with the same work as the others it takes longer"),
        ([{"shared_units": 8 * STEPS}] * 2, "with the same work as the others it takes longer"),
        ([{"shared_units": 10 * STEPS}, {"shared_units": 6 * STEPS}], "it takes longer"),  # it has less, and is late
        ([{"shared_units": 6 * STEPS}, {"shared_units": 10 * STEPS}], ""),
        # Each of its microbatches is a batch of a loader.
        ([{"shared_units": n * STEPS, "samples": n * STEPS, "batches": n * STEPS} for n in (6, 10)], ""),
    ],
)
def test_a_rank_that_share_gave_more_work_has_no_slow_device(
    words: list[dict[str, int]], said: str, tmp_path: Path
) -> None:
    fault = Fault(UNEVEN, by_rank=[{"words": words[0]}, LATE | {"words": words[1]}])
    case = case_of(fault, tmp_path)
    changes = [one.change.rpartition(": ")[2] for one in advise(case) if one.id == "straggler.drain"]
    assert changes == ([said] if said else [])
    late = [one for one in case.verdict["late_ranks"] if one["family"] == "straggler"]
    assert ("whyidle.share gives rank 1 1.7 times" in not_its_device(case, late)) is (not said)


@pytest.mark.parametrize(
    ("sizes", "change", "why"),
    [((3, 5), "Balance what ranks send", "1.7 times as many bytes"), ((4, 4), "another device", "")],
)
def test_a_rank_to_which_others_send_more_has_no_slow_device(
    sizes: tuple[int, int], change: str, why: str, tmp_path: Path
) -> None:
    """Such as the rank of an expert that gets most of the tokens."""
    own, other = ([("experts", 7, 2, {"all_to_all": size * STEPS})] for size in sizes)
    case = case_of(Fault(UNEVEN, by_rank=[{"handed": own}, LATE | {"handed": other}]), tmp_path)
    [found] = [one for one in advise(case) if one.id == "straggler.drain"]
    assert change in found.change
    assert why in found.evidence[0]
    late = [one for one in case.verdict["late_ranks"] if one["family"] == "straggler"]
    assert why in not_its_device(case, late)
    assert bool(not_its_device(case, late)) is bool(why)


LATE_ENDS = Fault(
    [{"compute": 0.02, "network": 0.04, "straggler": 0.04}] * 2,
    by_rank=[{"late": {"network": STEPS * 0.04}} for _ in range(2)],
)


def test_a_slower_network_has_bounds_in_their_order(tmp_path: Path) -> None:
    case = case_of(LATE_ENDS, tmp_path)
    assert case.basis is not None
    case = replace(case, basis=Basis.of(with_late_ends(case.basis.trace, case.account)))
    found = case.predict(Changes(network=2.0))
    assert found is not None
    assert found.share < -0.9
    assert found.least <= found.low <= found.share <= found.high <= found.most


def test_a_window_has_its_part_of_the_late_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(LATE_ENDS, tmp_path)
    assert case.basis is not None
    monkeypatch.setattr("whyidle.advisor.whatif.trace.conclusion_of", lambda account: SimpleNamespace(late_ends=1.0))
    for rank in case.account.ranks:
        rank.groups[1] = GroupAccount(1, "", 2, False, straggler=4.0 * rank.seconds["straggler"])
    found = with_late_ends(case.basis.trace, case.account)
    assert found.late_ends == pytest.approx(0.25 / case.account.rank_seconds)


def test_waits_for_ranks_on_which_transfers_end_later_are_saved_with_the_transfers(tmp_path: Path) -> None:
    """A link is slow in one direction: ranks wait in turns for the one on which a transfer has ended later."""
    case = case_of(LATE_ENDS, tmp_path)
    assert case.basis is not None
    case = replace(case, basis=Basis.of(with_late_ends(case.basis.trace, case.account)))
    found = case.predict(Changes(network=0.5))
    assert found is not None
    # The replay of these steps takes both for transfers.
    assert (found.share, found.most) == (pytest.approx(0.4 + 0.2, abs=0.01), pytest.approx(1.0, abs=0.01))
    assert found.least == pytest.approx(0.4, abs=0.01)
    other = case.predict(Changes(network=0.5, groups=(99,)))
    assert other is not None
    assert other.share == 0


def test_accumulation_takes_late_ends_for_transfers(tmp_path: Path) -> None:
    case = case_of(FAULTS["network.accumulation"], tmp_path)
    assert case.basis is not None
    case = replace(case, basis=Basis.of(replace(case.basis.trace, late_ends=0.3)))
    [one] = [one for one in advise(case) if one.id == "network.accumulation"]
    assert one.evidence[0].startswith("all ranks wait 80 % of the time")


@pytest.mark.parametrize(("first", "advised"), [(8, True), (6, False)])
def test_does_not_advise_equal_work_where_share_gives_ranks_what_suits_them(
    first: int, advised: bool, tmp_path: Path
) -> None:
    fault = FAULTS["straggler.uneven"]
    by_rank = [one | {"words": {"shared_units": n * STEPS}} for one, n in zip(fault.by_rank, (first, 8), strict=True)]
    assert ("straggler.uneven" in {one.id for one in advise(case_of(replace(fault, by_rank=by_rank), tmp_path))}) is (
        advised
    )


def test_a_late_rank_with_as_many_units_as_one_of_the_others_is_not_late_by_them(tmp_path: Path) -> None:
    units = (10, 10, 6)
    by_rank: list[dict[str, object]] = [{"words": {"shared_units": n * STEPS}} for n in units]
    by_rank[0] |= LATE
    case = case_of(Fault([UNEVEN[1], UNEVEN[0], UNEVEN[0]], by_rank=by_rank), tmp_path)
    late = [one for one in case.verdict["late_ranks"] if one["family"] == "straggler"]
    assert [one["rank"] for one in late] == [0]
    assert "whyidle.share" not in not_its_device(case, late)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_that_was_tried_has_a_row_with_its_measured_gain(rule: Rule) -> None:
    measured = (DOCS / "advice.md").read_text().partition("## Predicted and measured")[2]
    assert (f"`{rule.id}`" in measured) or rule.tried.startswith(NOT)


def test_the_pages_are_up_to_date() -> None:
    for name, parts in pages().items():
        text = (DOCS / name).read_text()
        assert filled(text, parts) == text, "run `make docs`"
    with pytest.raises(ValueError, match="is there 0 times"):
        filled("", {"rules": ""})


def test_a_program_that_has_narrowed_its_cpus_is_told_so_without_data_workers(tmp_path: Path) -> None:
    words = CPUS | {"cpus_at_start": 8}
    fault = Fault([{"compute": 0.05, "compute_queue": 0.05}], spec=Spec(words=words, strings={"cpu_list": "3"}))
    found = {one.id: one.change for one in advise(case_of(fault, tmp_path))}
    assert found["cpu.affinity"].startswith("Let the program use all 8 CPUs")

"""Scripts that do not mention whyidle: they compute the same as without it, and every second is accounted for.

Each group of loops runs twice: plain and recorded. The records are compared with what the script itself has counted.
For each way to start a script, one group runs under `whyidle run`: Python, torchrun, and ranks that the script starts
itself. The others run in forks of a process that has imported torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

import pytest
from support_forks import Forks
from support_training import (
    Outcome,
    Told,
    assert_every_second_is_in_one_place,
    command,
    recorded,
    run,
    run_past_torch,
    steps_between,
)

from whyidle.ledger.causes import COLLECTIVE_OP
from whyidle.ledger.reader import Ledger

TORCH = tuple(map(int, version("torch").split(".")[:2]))
FSDP2_ON_CPU = TORCH >= (2, 6)
LOADER = {"step", "backward", "dataloader"}
RANKS = {"step", "backward", "work_wait", "process_group", "ddp"}


@dataclass(frozen=True)
class Group:
    script: str
    loops: str
    ranks: int  # number of ranks of torchrun; 0: started by itself
    recorded: tuple[int, ...]  # ranks that must have a ledger
    active: set[str]
    groups: frozenset[str] | set[str] = frozenset()  # ranks that wait for each other
    returncode: int = 0
    forked: bool = False  # also when it is recorded


GROUPS = {
    "single": Group(
        "single.py",
        "plain evaluation accumulation lbfgs in_backward engine pipelined iterable persistent stateful twice "
        "scheduled saving gan",
        0,
        (0,),
        LOADER | {"stateful_dataloader", "torch_save", "safetensors", "gc"},
    ),
    "compiled": Group(
        "single.py",
        "plain compiled compiled_step compiled_optimizer inductor",
        0,
        (0,),
        LOADER | {"compile"},
        forked=True,
    ),
    "ranks": Group(
        "ranks.py",
        "ddp by_hand no_sync evaluation checkpoints objects gan again",
        2,
        (0, 1),
        LOADER | RANKS | {"dcp", "exchange"},
        groups={"world", "world p2p"},
    ),
    "sharded": Group(
        "ranks.py",
        ("fsdp2 " if FSDP2_ON_CPU else "") + "fsdp1 tensor_parallel compiled_ddp ddp_compiled compiled_collective",
        2,
        (0, 1),
        LOADER | RANKS | {"functional_wait", "compile"} | ({"fsdp2"} if FSDP2_ON_CPU else set()),
        groups={"world"},
        forked=True,
    ),
    "spawn": Group("spawn.py", "", 0, (0, 1), RANKS, {"world"}, returncode=3),
}


@dataclass
class Pair:
    group: Group
    plain: Outcome
    recorded: Outcome

    def ranks(self) -> list[tuple[Told, Ledger]]:
        return [self.recorded.rank(rank) for rank in self.group.recorded]


pytestmark = pytest.mark.parametrize(
    "pair",
    [
        pytest.param(name, marks=[pytest.mark.xdist_group(f"scripts-{name}"), *[pytest.mark.long] * (name == "spawn")])
        for name in GROUPS
    ],
    indirect=True,
    scope="module",
)


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Pair:
    group = GROUPS[request.param]
    words = command(group.script, *group.loops.split(), ranks=group.ranks)
    folder = tmp_path_factory.mktemp(request.param)
    if group.script == "spawn.py":  # it starts its ranks itself, and they import torch
        # These have no exchange, so no thread of whyidle could be the reason.
        return Pair(
            group, run_past_torch(words, folder / "plain"), run_past_torch(recorded(words), folder / "recorded")
        )
    loops = (group.script, *group.loops.split())
    plain, _ = forks.run(loops, folder / "plain", group.ranks, recorded=False)
    if group.forked:
        return Pair(group, plain, forks.run(loops, folder / "recorded", group.ranks)[0])
    return Pair(group, plain, run(recorded(words), folder / "recorded"))


def test_fsdp2_is_among_the_sharded_loops(pair: Pair) -> None:
    if pair.group is GROUPS["sharded"]:
        if not FSDP2_ON_CPU:
            pytest.skip("FSDP2 of torch 2.4 and 2.5 needs CUDA: the other loops run without it")
        assert "fsdp2" in pair.recorded.rank(0)[0].spans


def test_exit_status_is_that_of_the_script(pair: Pair) -> None:
    assert pair.plain.returncode == pair.group.returncode, pair.plain.stderr
    assert pair.recorded.returncode == pair.group.returncode, pair.recorded.stderr


def test_prints_nothing(pair: Pair) -> None:
    assert "whyidle:" not in pair.recorded.stderr
    assert "torch_hooks" not in pair.recorded.stderr


def test_losses_are_bit_identical(pair: Pair) -> None:
    without = {told.rank: told.losses for told in pair.plain.told}
    assert {told.rank: told.losses for told in pair.recorded.told} == without
    assert all(any(without[rank].values()) for rank in pair.group.recorded)


def test_no_new_graph_breaks(pair: Pair) -> None:
    for rank in pair.group.recorded:
        (without,) = (told.facts for told in pair.plain.told if told.rank == rank)
        told, _ = pair.recorded.rank(rank)
        assert told.facts.get("graph_breaks", 0) <= without.get("graph_breaks", 0)
        assert told.facts.get("graphs", 0) == without.get("graphs", 0)


def test_no_process_is_left_behind(pair: Pair) -> None:
    assert pair.plain.left_behind == pair.recorded.left_behind == []


def test_each_rank_and_no_other_process_has_a_ledger(pair: Pair) -> None:
    assert sorted(ledger.rank for ledger in pair.recorded.ledgers) == list(pair.group.recorded)
    assert not pair.plain.ledgers
    for ledger in pair.recorded.ledgers:
        assert (ledger.alive, ledger.ended, ledger.world_size) == (False, 1, len(pair.group.recorded))


def test_every_second_is_in_one_place(pair: Pair) -> None:
    for told, ledger in pair.ranks():
        assert_every_second_is_in_one_place(told, ledger)
        assert ledger.pending_ns == 0


def test_no_hook_failed(pair: Pair) -> None:
    for _, ledger in pair.ranks():
        assert ledger.faults == 0
        assert "failed" not in ledger.hook_states.values()
        assert pair.group.active <= {hook for hook, state in ledger.hook_states.items() if state == "active"}


def test_counts_steps(pair: Pair) -> None:
    for told, ledger in pair.ranks():
        loops = {loop: steps_between(ledger, start, end) for loop, (start, end, _) in told.spans.items()}
        assert loops == {loop: steps for loop, (_, _, steps) in told.spans.items()}
        assert ledger.steps == told.counts["steps"]


def test_counts_backward_passes_and_batches(pair: Pair) -> None:
    for told, ledger in pair.ranks():
        for name in ("backwards", "batches", "samples", "eval_batches"):
            assert getattr(ledger, name) == told.counts.get(name, 0), name


def test_bytes_of_gradients_are_exact(pair: Pair) -> None:
    for told, ledger in pair.ranks():
        assert ledger.words["collective_bytes"][COLLECTIVE_OP["all_reduce"]] == told.counts.get("all_reduce_bytes", 0)
        of_slots = ledger.words["slot_op_bytes"][COLLECTIVE_OP["all_reduce"] :: len(COLLECTIVE_OP)]
        assert sum(of_slots) == told.counts.get("all_reduce_bytes", 0)
        assert (ledger.collectives > 0) == (len(pair.group.recorded) > 1)


PARTS = {
    "network": "network",
    "straggler": "straggler",
    "pipeline": "pipeline",
    "queue": "collective_queue",
    "unsplit": "collective",
}
"""Part of a slot's waits -> cause."""


def test_waits_are_accounted_group_by_group(pair: Pair) -> None:
    keys = set()
    for _, ledger in pair.ranks():
        assert {slot.label for slot in ledger.slots} == pair.group.groups
        keys.add(frozenset((slot.label, slot.key) for slot in ledger.slots))
        for slot in ledger.slots:
            assert (slot.size, slot.pending, slot.calls > 0) == (2, 0, True), slot.label
            assert slot.pairwise == slot.label.endswith("p2p")
        waits = {name: ledger.words[f"slot_{name}_ns"] for name in PARTS}
        assert ledger.words["slot_waited_ns"] == tuple(map(sum, zip(*waits.values(), strict=True)))
        assert ledger.waited_ns == sum(ledger.words["slot_waited_ns"])
        assert ledger.collectives == sum(ledger.words["slot_calls"])
        causes = {name: ledger.cause_ns[cause] for name, cause in PARTS.items()}
        assert causes == {name: sum(slots) for name, slots in waits.items()}
        if "exchange" in pair.group.active:
            world = next(slot for slot in ledger.slots if slot.label == "world")
            assert world.network + world.straggler > 0
            assert world.settled > 0
    assert len(keys) == 1, "a group has the same name and key on all its ranks"


def test_counts_checkpoints(pair: Pair) -> None:
    for told, ledger in pair.ranks():
        assert ledger.words["checkpoints"] == (told.counts.get("saves", 0), told.counts.get("loads", 0))
        saved = ledger.words["checkpoint_bytes"][0]
        assert saved == told.counts.get("save_bytes", saved)
        assert (saved > 0) == (told.counts.get("saves", 0) > 0)


def test_every_kind_of_collective_is_counted(pair: Pair) -> None:
    for told, ledger in pair.ranks() if "objects" in pair.group.loops else ():
        calls = dict(zip(COLLECTIVE_OP, ledger.words["collective_calls"], strict=True))
        used = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "send" if told.rank else "recv"}
        assert used <= {op for op, count in calls.items() if count}


def test_compilation_is_not_compute(pair: Pair) -> None:
    """Dynamo measures it too. Collections of garbage meanwhile are not compilation."""
    for told, ledger in pair.ranks() if "compiled" in pair.group.loops else ():
        compiled, collected = (ledger.cause_ns[cause] / 1e9 for cause in ("host_compile", "host_gc"))
        assert 0.9 * told.facts["compile_seconds"] - collected <= compiled <= 1.1 * told.facts["compile_seconds"]

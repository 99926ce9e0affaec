"""Who keeps a run waiting, and why, by the positions of ranks and what is known about their processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_healthy import RANKS, Day
from support_positions import MESSAGES, NOW, PAIR, SECOND, WORLD, Group, position
from support_positions import SLOTS as SLOTS_OF

from whyidle.ledger.causes import COLLECTIVE_OPS, PHASES, STEP_BUCKETS_SECONDS
from whyidle.ledger.layout import CLEAN, FAILED, SLOTS, Call
from whyidle.ledger.reader import Ledger
from whyidle.verdict import diagnosis, operations
from whyidle.verdict.diagnosis import Diagnosis, diagnose, diagnose_afterwards
from whyidle.verdict.facts import Connection, Facts, Owing, Process, Thread
from whyidle.verdict.unhooked import diagnose_processes


def waiter(rank: int, calls: int = 17, seconds: float = 100.0, *more: Group, **words: Any) -> Ledger:
    """A rank that waits in the world."""
    return position(rank, "collective", seconds, Group(WORLD, calls), *more, within=WORLD, **words)


def process(state: str = "S", wchan: str = "", cores: float = 0.0, pid: int = 7) -> Process:
    return Process(pid, state, (Thread(pid, "python", state, wchan, ""),), cores, 0)


def told(found: Diagnosis) -> list[tuple[int, str]]:
    return [(one.rank, one.kind) for one in found.culprits]


WAITERS = [waiter(0), waiter(1), waiter(2)]
BEFORE = Group(WORLD, 16)
# name -> the last rank, what is known about it, the kind, and whether it counts as hung
LAST: dict[str, tuple[Ledger, Facts, str, bool]] = {
    "sleeps": (position(3, "host", 101, BEFORE), Facts(process(wchan="hrtimer_nanosleep")), "sleep", True),
    "waits for a lock": (position(3, "compute", 101, BEFORE), Facts(process(wchan="futex_do_wait")), "lock", True),
    "computes": (position(3, "compute", 101, BEFORE), Facts(process("R", cores=1.0)), "compute", False),
    "has a device that stands": (
        position(3, "host", 101, BEFORE, device_phase=PHASES.index("compute") + 1, device_since_ns=NOW - 101 * SECOND),
        Facts(process("R", cores=1.0)),
        "compute",
        True,
    ),
    "reads a disk": (position(3, "compute", 101, BEFORE), Facts(process("D")), "compute", False),
    "saves": (position(3, "checkpoint", 101, BEFORE), Facts(process("S", cores=0.5)), "checkpoint", False),
    "is blocked in a save": (position(3, "checkpoint", 101, BEFORE), Facts(process("S")), "checkpoint", True),
    "saves elsewhere": (position(3, "checkpoint", 101, BEFORE), Facts(), "checkpoint", False),
    "saves elsewhere for long": (position(3, "checkpoint", 700, BEFORE), Facts(), "checkpoint", False),
    "is unknown in host": (position(3, "host", 101, BEFORE), Facts(), "host", True),
    "is stopped": (position(3, "compute", 101, BEFORE), Facts(process("T")), "stopped", True),
    "is stopped by a debugger": (position(3, "compute", 101, BEFORE), Facts(process("t")), "stopped", True),
    "was killed": (position(3, "compute", 101, BEFORE, alive=False), Facts(), "killed", True),
    "failed": (position(3, "compute", 101, BEFORE, alive=False, ended=FAILED), Facts(), "failed", True),
    "has ended": (position(3, "host", 101, BEFORE, alive=False, ended=CLEAN), Facts(), "ended", True),
    "has not begun": (position(3, "startup", 101), Facts(process("S")), "startup", True),
    "has a stopped worker": (
        position(3, "data", 101, BEFORE),
        Facts(process(), workers=(process(pid=8), process("T", pid=9))),
        "worker",
        True,
    ),
    "has a dead worker": (position(3, "data", 101, BEFORE), Facts(process(), workers=(process("Z"),)), "worker", True),
    "has a worker that is gone": (
        position(3, "data", 101, BEFORE),
        Facts(process("S"), owing=Owing(9, "gone")),
        "worker",
        True,
    ),
    "has a worker that sleeps": (
        position(3, "data", 101, BEFORE),
        Facts(process("S"), owing=Owing(9, "sleep")),
        "data",
        True,
    ),
    "has a worker that computes": (
        position(3, "data", 101, BEFORE),
        Facts(process("S"), owing=Owing(9, "running")),
        "data",
        False,
    ),
    "waits for data": (position(3, "data", 101, BEFORE), Facts(process("S")), "data", True),
}


@pytest.mark.parametrize(("last", "facts", "kind", "hung"), LAST.values(), ids=LAST)
def test_says_what_keeps_the_last_rank(last: Ledger, facts: Facts, kind: str, hung: bool) -> None:
    found = diagnose([*WAITERS, last], {3: facts}, NOW)
    assert told(found) == [(3, kind)]
    assert found.hung == hung
    assert found.sentence.startswith("Hang: rank 3 " if hung else "No hang yet: rank 3 ")
    assert found.collective is not None
    assert (found.collective.group, found.collective.sequence) == ("world", 17)
    assert list(found.collective.entered) == [0, 1, 2]
    assert found.collective.missing == (3,)


@pytest.mark.parametrize(("seconds", "said"), [(12.0, "No hang yet: rank 3 "), (3.0, "No hang: ")])
def test_names_the_awaited_rank_before_it_counts_as_hung(seconds: float, said: str) -> None:
    waiters = [waiter(rank, 17, seconds) for rank in range(3)]
    found = diagnose([*waiters, position(3, "host", seconds + 1, BEFORE)], {3: Facts(process("S"))}, NOW)
    assert not found.hung
    assert found.sentence.startswith(said)
    assert found.sentence.endswith("Waits count as a hang after 30 s") == (seconds > 5)


def test_a_run_with_long_steps_is_given_more_time() -> None:
    """Its longest step so far took up to 5 minutes."""
    buckets = [0] * (len(STEP_BUCKETS_SECONDS) + 1)
    buckets[STEP_BUCKETS_SECONDS.index(300.0)] = 1
    blocked = Facts(process("S"))
    for seconds, hung in ((100.0, False), (400.0, True)):
        ranks = [waiter(0, 17, seconds), position(3, "host", seconds, BEFORE, step_buckets=buckets, world=2)]
        assert diagnose(ranks, {3: blocked}, NOW).hung == hung


def test_names_the_line_if_it_is_of_this_phase() -> None:
    since = NOW - 90 * SECOND
    stuck = {"stuck_line": "train.py:212 log_metrics", "stuck_since_ns": since}
    found = diagnose([*WAITERS, position(3, "host", 101, BEFORE, **stuck)], {}, NOW)
    assert "at train.py:212 log_metrics" in found.sentence
    old = diagnose([*WAITERS, position(3, "host", 80, BEFORE, **stuck)], {}, NOW)
    assert "train.py" not in old.sentence


def test_follows_waits_to_the_rank_that_waits_for_nobody() -> None:
    """Rank 2 is not in the world's collective because it waits in its pair for rank 3, which sleeps."""
    ranks = [
        waiter(0),
        waiter(1),
        position(2, "collective", 100, Group(WORLD, 16), Group(PAIR, 5, 2), within=PAIR),
        position(3, "host", 101, Group(WORLD, 16), Group(PAIR, 4, 2)),
    ]
    assert told(diagnose(ranks, {}, NOW)) == [(3, "host")]


def test_names_the_rank_in_another_collective_than_most() -> None:
    pair = Group(PAIR, 4, 2)
    ranks = [
        waiter(0, 17, 100.0, pair),
        waiter(1),
        waiter(2),
        position(3, "collective", 100, Group(WORLD, 16), Group(PAIR, 5, 2), within=PAIR),
    ]
    found = diagnose(ranks, {}, NOW)
    assert told(found) == [(3, "elsewhere")]
    assert "call 5 of dp, where it waits for rank 0" in found.sentence


def test_names_both_ranks_that_wait_for_each_other_in_two_collectives() -> None:
    ranks = [
        position(0, "collective", 100, Group(WORLD, 17, 2), Group(PAIR, 4, 2), within=WORLD, world=2),
        position(1, "collective", 100, Group(WORLD, 16, 2), Group(PAIR, 5, 2), within=PAIR, world=2),
    ]
    assert told(diagnose(ranks, {}, NOW)) == [(0, "elsewhere"), (1, "elsewhere")]


@pytest.mark.parametrize("peer", [0, -1], ids=["known", "not known"])
def test_names_the_rank_that_waits_for_a_message_that_nobody_sends(peer: int) -> None:
    messages = Group(MESSAGES, 3, 2)
    ranks = [
        position(0, "collective", 100, Group(WORLD, 17, 2), messages, within=WORLD, world=2),
        position(1, "collective", 100, Group(WORLD, 16, 2), messages, within=MESSAGES, world=2, open_peer=peer + 1),
    ]
    found = diagnose(ranks, {}, NOW)
    assert told(found) == [(1, "message")]
    assert "a message from rank 0" in found.sentence
    waits = "rank 1 waits in a send or receive with rank 0, which waits in a collective that rank 1 has not entered"
    assert operations.sentences(ranks, NOW, 5.0) == [waits] * (peer >= 0)


def test_names_the_sender_of_a_message_if_it_does_something_else() -> None:
    ranks = [
        position(0, "host", 100, Group(MESSAGES, 2, 2), world=2),
        position(1, "collective", 99, Group(MESSAGES, 3, 2), within=MESSAGES, world=2, open_peer=1),
    ]
    assert told(diagnose(ranks, {0: Facts(process("T"))}, NOW)) == [(0, "stopped")]


ALL = [*WAITERS, waiter(3)]


def test_a_rank_that_is_stopped_or_dies_inside_the_collective_is_named() -> None:
    assert told(diagnose(ALL, {1: Facts(process("T"))}, NOW)) == [(1, "stopped")]
    dead = position(3, "collective", 100, Group(WORLD, 17), within=WORLD, alive=False)
    assert told(diagnose([*WAITERS, dead], {}, NOW)) == [(3, "killed")]


def test_a_rank_that_is_stopped_in_an_earlier_call_is_named_as_stopped() -> None:
    """That call has ended, but its ledger was written last when it was in it."""
    last = waiter(3, 15)
    assert told(diagnose([*WAITERS, last], {3: Facts(process("T"))}, NOW)) == [(3, "stopped")]
    assert told(diagnose([*WAITERS, last], {3: Facts(process("S"))}, NOW)) == [(3, "elsewhere")]


def test_names_the_rank_that_others_cannot_reach() -> None:
    facts = {
        rank: Facts(connections=(Connection(f"10.0.0.{rank}", "10.0.0.2", 4096, 5),), addresses=(f"10.0.0.{rank}",))
        for rank in (0, 1)
    } | {2: Facts(connections=(Connection("10.0.0.2", "10.0.0.3", 10, 2),), addresses=("10.0.0.2",))}
    found = diagnose(ALL, facts, NOW)
    assert told(found) == [(2, "link")]
    assert "10.0.0.2 does not acknowledge 4096 bytes from 10.0.0.0" in found.sentence


def test_names_the_rank_that_calls_another_operation() -> None:
    def ranks(odd: dict[str, int]) -> list[Ledger]:
        found = []
        for rank in range(4):
            sizes = [0] * (len(COLLECTIVE_OPS) * SLOTS)
            for op, size in (odd if rank == 2 else {"all_reduce": 170}).items():
                sizes[COLLECTIVE_OPS.index(op)] = size
            found.append(waiter(rank, slot_op_bytes=sizes))
        return found

    found = diagnose(ranks({"all_reduce": 160, "all_gather": 10}), {}, NOW)
    assert told(found) == [(2, "mismatch")]
    assert "has called all_gather where the other ranks of the group called all_reduce" in found.sentence
    assert told(diagnose(ranks({"all_reduce": 160}), {}, NOW)) == []


def test_ranks_without_a_ledger_are_named_if_all_others_have_entered() -> None:
    found = diagnose(WAITERS, {}, NOW)
    assert (told(found), found.hung) == ([(3, "no_ledger")], True)
    assert not diagnose([waiter(rank, 17, 40.0) for rank in range(3)], {}, NOW).hung
    assert "rank 3 may be missing: no ledger of it is here" in found.sentence
    begun = diagnose(WAITERS, {3: Facts(process(wchan="hrtimer_nanosleep"))}, NOW)
    assert (told(begun), begun.hung) == ([(3, "startup")], True)
    on_one_node = [replace(one, words=one.words | {"local_world_size": (4,)}) for one in WAITERS]
    assert "rank 3 has not begun (no ledger yet)" in diagnose(on_one_node, {}, NOW).sentence


def test_no_reason_is_invented_where_all_have_entered() -> None:
    found = diagnose(ALL, {}, NOW)
    assert (found.hung, told(found)) == (True, [])
    assert "nothing shows why" in found.sentence


def test_a_run_without_collectives_hangs_if_no_rank_works() -> None:
    rank = position(0, "host", 100, world=1)
    assert told(diagnose([rank], {0: Facts(process("S", "hrtimer_nanosleep"))}, NOW)) == [(0, "sleep")]
    assert not diagnose([rank], {0: Facts(process("R", cores=1.0))}, NOW).hung
    assert not diagnose([rank], {}, NOW).hung
    assert not diagnose([position(0, "host", 5, world=1)], {0: Facts(process("S"))}, NOW).hung


def test_of_ranks_that_all_start_the_one_that_differs_is_named() -> None:
    """They wait in the store for rank 3."""
    ranks = [position(rank, "startup", 100) for rank in range(4)]
    facts = {rank: Facts(process("S", "do_poll" if rank < 3 else "hrtimer_nanosleep")) for rank in range(4)}
    assert told(diagnose(ranks, facts, NOW)) == [(3, "startup")]


def test_short_waits_and_ended_runs_do_not_count() -> None:
    assert not diagnose([waiter(0, 17, 20.0), position(1, "host", 20, BEFORE)], {1: Facts(process("S"))}, NOW).hung
    assert not diagnose([position(0, "host", 100, alive=False)], {}, NOW).hung
    assert not diagnose([], {}, NOW).hung


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_a_sentence(phase: str) -> None:
    assert "rank 3" in diagnose([*WAITERS, position(3, phase, 101, BEFORE)], {}, NOW).sentence


@pytest.mark.parametrize(
    ("seed", "every"),
    [(0, 60.0), *(pytest.param(seed, 10.0, marks=pytest.mark.long) for seed in range(1, 4))],
)
def test_nobody_is_named_in_a_day_of_a_healthy_training(seed: int, every: float) -> None:
    waits = 0
    for now, ledgers, facts in Day(seed).moments(every):
        for known in (facts, {}, {rank: facts[rank] for rank in range(RANKS // 2)}):
            found = diagnose(ledgers, known, now)
            assert not found.hung, found.sentence
            waits += bool(found.culprits)
    assert waits, "some waits were long enough to be looked at"


def test_says_afterwards_what_the_run_waited_for() -> None:
    """All ranks were killed together, except for rank 2, which was killed before."""
    killed = {"alive": False, "accounted_ns": NOW}
    ranks = [
        waiter(0, **killed),
        waiter(1, **killed),
        position(2, "compute", 150, BEFORE, alive=False, accounted_ns=NOW - 140 * SECOND),
        position(3, "compute", 20, Group(WORLD, 17), **killed),
    ]
    found = diagnose_afterwards(ranks)
    assert (told(found), found.hung) == ([(2, "killed")], True)
    assert found.sentence.startswith(
        "The run has ended. Before its end: Hang: rank 2 was killed or stopped, or crashed."
    )
    ranks[2] = position(2, "host", 101, BEFORE, **killed)
    assert told(diagnose_afterwards(ranks)) == [(2, "host")]
    ranks[2] = position(2, "compute", 1, Group(WORLD, 17), **killed)
    assert not diagnose_afterwards([*ranks[2:]]).hung
    assert not diagnose_afterwards([]).hung


def test_a_rank_that_has_left_after_another_collective_is_not_said_to_be_inside() -> None:
    """It caught an exception, and called the last barrier where the other rank called an all-reduce."""
    group = Group(WORLD, 17, 2)
    reduced, met = ([int(op == called) for op in COLLECTIVE_OPS] for called in ("all_reduce", "barrier"))
    left = position(1, "shutdown", 110, group, world=2, alive=False, ended=CLEAN, collective_calls=met)

    def alone(seconds: float, **words: Any) -> Ledger:
        return position(0, "collective", seconds, group, within=WORLD, world=2, collective_calls=reduced, **words)

    apart = "in another collective than rank 1: it has called all_reduce where rank 1 has called barrier"
    found = diagnose([alone(100), left], {}, NOW)
    assert (told(found), found.hung) == ([(1, "ended")], True)
    assert found.sentence == (
        f"Hang: rank 1 has ended. Rank 0 has been in call 17 of group world for 100.0 s. Rank 0 waits {apart}"
    )
    found = diagnose_afterwards([alone(10, alive=False, accounted_ns=NOW), left])
    assert (found.hung, found.sentence) == (False, f"The run has ended. Before its end: rank 0 waited {apart}")


def test_a_run_without_collectives_whose_wait_for_a_batch_was_long_hung() -> None:
    """Of its processes nothing is known afterwards."""
    rank = position(0, "data", 200, BEFORE, alive=False, accounted_ns=NOW)
    assert diagnose_afterwards([rank]).hung
    assert not diagnose_afterwards([position(0, "host", 200, BEFORE, alive=False, accounted_ns=NOW)]).hung


def test_where_it_is_not_known_whether_a_run_hung_its_last_place_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [position(0, "host", 200, BEFORE, alive=False, accounted_ns=NOW)]
    assert diagnose_afterwards(ranks).sentence.endswith("nothing shows that it hung before")
    monkeypatch.setattr("whyidle.verdict.diagnosis.finish_sentences", lambda ledgers, now_ns: ["rank 0 was ended"])
    assert diagnose_afterwards(ranks).sentence.endswith("it is not known whether it hung: rank 0 was ended")


def test_a_rank_that_stood_in_compute_may_have_hung_there(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [position(0, "compute", 20, BEFORE, alive=False, accounted_ns=NOW)]
    monkeypatch.setattr("whyidle.verdict.diagnosis.standing.sentences", lambda *given: ["rank 0 was in compute"])
    assert diagnose_afterwards(ranks).sentence.endswith("it is not known whether it hung: rank 0 was in compute")


def failed(ledger: Ledger, slot: int, seconds: float) -> Ledger:
    """A rank that an exception ended ``seconds`` after it had entered its last collective."""
    words = {"phase": (PHASES.index("host"),), "open_slot": (-1,), "ended": (FAILED,), "heartbeat_ns": (NOW,)}
    return replace(
        ledger,
        alive=False,
        strings=ledger.strings | {"device": "cpu"},
        words=ledger.words | words,
        calls=[Call(9, slot, 5), Call(9, slot, int(seconds * SECOND))],
    )


def test_an_error_that_ends_a_wait_for_another_rank_is_not_the_reason() -> None:
    """As after the time limit of a collective, or where the launcher kills one of two ranks first."""
    asleep = position(3, "host", 130, BEFORE, alive=False, accounted_ns=NOW)
    timed_out = [failed(waiter(rank), SLOTS_OF[WORLD], 120.0) for rank in range(3)]
    found = diagnose_afterwards([*timed_out, asleep])
    assert (told(found), found.hung) == ([(3, "host")], True)
    assert "Ranks 0, 1 and 2 have been in call 17 of group world for 120.0 s" in found.sentence
    # Rank 3 waited in a group of two for rank 0, which was in the world, and got an error when rank 0 was killed.
    waiters = [waiter(0, 17, 100, Group(PAIR, 4, 2), alive=False, accounted_ns=NOW)]
    waiters += [waiter(rank, alive=False, accounted_ns=NOW) for rank in (1, 2)]
    elsewhere = failed(position(3, "host", 0, BEFORE, Group(PAIR, 5, 2)), SLOTS_OF[PAIR], 100.0)
    assert told(diagnose_afterwards([*waiters, elsewhere])) == [(3, "elsewhere")]
    # All had entered rank 3's last collective, so its error is a reason.
    broken = failed(position(3, "host", 0, BEFORE), SLOTS_OF[WORLD], 100.0)
    assert told(diagnose_afterwards([*waiters, broken])) == [(3, "failed")]


def test_an_error_is_the_reason_where_no_long_wait_is_known() -> None:
    asleep = position(3, "host", 130, BEFORE, alive=False, accounted_ns=NOW)
    # The error came at once, when another rank had been killed.
    at_once = [failed(waiter(rank), SLOTS_OF[WORLD], 0.5) for rank in range(3)]
    assert not diagnose_afterwards([*at_once, asleep]).hung
    # The calls in the ring of an accelerator are not the last ones of its host.
    waiters = [waiter(rank, alive=False, accounted_ns=NOW) for rank in range(3)]
    ahead = failed(waiter(3, 19), SLOTS_OF[WORLD], 120.0)
    ahead.strings["device"] = "cuda:0"
    assert (3, "failed") in told(diagnose_afterwards([*waiters, ahead]))
    # The others are of the next attempt, which is at its third call.
    again = [waiter(rank, 3, 0.1, attempt=1, alive=False, ended=CLEAN) for rank in (2, 3)]
    before = [failed(waiter(rank, 1000), SLOTS_OF[WORLD], 120.0) for rank in (0, 1)]
    assert not diagnose_afterwards([*before, *again]).hung


def test_no_rank_waits_for_itself() -> None:
    """A ledger may say so: it is untrusted input."""
    alone = position(3, "collective", 100, Group(MESSAGES, 0, 2), within=MESSAGES, open_peer=4)
    assert not diagnose([alone], {}, NOW).sentence.startswith("Hang: ")


POSITIONS = st.builds(
    position,
    st.integers(0, 5),
    st.sampled_from(PHASES),
    st.sampled_from((0.0, 20.0, 100.0, 1e6)),
    st.builds(Group, st.just(WORLD), st.integers(0, 2), st.sampled_from((2, 4))),
    st.builds(Group, st.just(PAIR), st.integers(0, 2), st.just(2)),
    st.builds(Group, st.just(MESSAGES), st.integers(0, 2), st.sampled_from((2, 4))),
    within=st.sampled_from((0, WORLD, PAIR, MESSAGES)),
    alive=st.booleans(),
    open_peer=st.integers(0, 8),
    attempt=st.integers(0, 1),
)
PROCESSES_OF_RANKS = st.builds(
    lambda state, cores: Facts(Process(7, state, (Thread(7, "python", state, "futex_do_wait", ""),), cores, 0)),
    st.sampled_from("RSDTtZX"),
    st.sampled_from((None, 0.0, 1.0)),
)


@given(st.lists(POSITIONS, max_size=6), st.dictionaries(st.integers(0, 5), PROCESSES_OF_RANKS))
def test_any_ledgers_have_a_diagnosis(ledgers: list[Ledger], facts: dict[int, Facts]) -> None:
    """Ledgers are untrusted input, so they may contradict each other."""
    found = diagnose(ledgers, facts, NOW)
    assert found.sentence
    assert len({culprit.rank for culprit in found.culprits}) == len(found.culprits)
    assert found.sentence.startswith("Hang: ") == (found.hung and bool(found.culprits))


# -- without ledgers


def of_processes(*processes: Process | None, **more: object) -> dict[int, Facts]:
    return {rank: Facts(one) for rank, one in enumerate(processes) if one is not None}


WAITS = process("S", "futex_do_wait")
# name -> processes of ranks, ranks without a process, what NCCL says, the culprits, and whether it hangs
PROCESSES: dict[str, tuple[dict[int, Facts], tuple[int, ...], dict[int, str], list[tuple[int, str]], bool]] = {
    "all work": (of_processes(process("R", cores=1.0), process("R", cores=1.0)), (), {}, [], False),
    "stopped": (of_processes(WAITS, process("T"), WAITS), (), {}, [(1, "stopped")], True),
    "zombie": (of_processes(WAITS, process("Z"), WAITS), (), {}, [(1, "gone")], True),
    "gone": (of_processes(WAITS, None, WAITS), (1,), {1: "does not answer NCCL"}, [(1, "gone")], True),
    "NCCL": (of_processes(WAITS, WAITS, WAITS), (), {2: "launched 16 of 17 AllReduce"}, [(2, "ras")], True),
    "only NCCL": ({}, (), {2: "does not answer NCCL"}, [(2, "ras")], True),
    "a worker": (
        {0: Facts(WAITS), 1: Facts(WAITS, workers=(process("T"),)), 2: Facts(WAITS)},
        (),
        {},
        [(1, "worker")],
        True,
    ),
    "a dead worker": ({0: Facts(WAITS), 1: Facts(WAITS, workers=(process("Z"),))}, (), {}, [(1, "worker")], True),
    "other programs end": (
        {
            0: Facts(WAITS, workers=(Process(8, "X"),)),
            1: Facts(WAITS, workers=(Process(9, "Z", (Thread(9, "gzip", "Z", "", ""),)),)),
        },
        (),
        {},
        [],
        True,
    ),
    "a worker of a rank that works has ended": (
        {0: Facts(process("R", cores=1.0), workers=(process("Z"),)), 1: Facts(process("R", cores=1.0))},
        (),
        {},
        [],
        False,
    ),
    "odd": (of_processes(WAITS, process("S", "pipe_write"), WAITS), (), {}, [(1, "odd")], True),
    "odd of two": (of_processes(WAITS, process("S", "hrtimer_nanosleep")), (), {}, [(1, "odd")], True),
    "one works": (of_processes(WAITS, process("R", cores=1.0), WAITS), (), {}, [(1, "odd")], False),
    "an idle GPU": (
        {rank: Facts(process("R", cores=1.0), gpu_busy=0.0 if rank == 2 else 1.0) for rank in range(4)},
        (),
        {},
        [(2, "gpu")],
        True,
    ),
    "GPUs that work": (
        {rank: Facts(process("R", cores=1.0), gpu_busy=0.5 if rank == 2 else 0.97) for rank in range(4)},
        (),
        {},
        [],
        False,
    ),
    "nothing differs": (of_processes(WAITS, WAITS), (), {}, [], True),
    "nothing": ({}, (), {}, [], False),
}


@pytest.mark.parametrize(("facts", "gone", "ras", "culprits", "hung"), PROCESSES.values(), ids=PROCESSES)
def test_names_a_rank_without_ledgers(
    facts: dict[int, Facts], gone: tuple[int, ...], ras: dict[int, str], culprits: list[tuple[int, str]], hung: bool
) -> None:
    found = diagnose_processes(facts, gone, ras)
    assert (told(found), found.hung) == (culprits, hung), found.sentence


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "is in compute (for 1.1 s): its training thread sleeps",
            "are in compute (for 1.1 s): the training thread of each sleeps",
        ),
        ("has not begun its first step", "have not begun its first step"),
        ("was killed, or crashed", "were killed, or crashed"),
    ],
)
def test_what_is_said_of_one_rank_is_said_of_several(text: str, said: str) -> None:
    assert diagnosis._of_several(text) == said

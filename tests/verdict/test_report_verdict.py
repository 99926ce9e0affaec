"""The account and its verdict: a table of the contents of ledgers and the conclusions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, children, ended

from whyidle.ledger.causes import CAUSES, FAMILIES, HOOKS
from whyidle.ledger.directory import read_directory
from whyidle.ledger.layout import link_word
from whyidle.verdict import where
from whyidle.verdict.accounts import RankAccount, RunAccount, quantile
from whyidle.verdict.ends import end_sentences
from whyidle.verdict.report import build_report, runs

COMPUTE, NETWORK = {"compute": 0.05}, {"network": 0.01}
STEP = {**COMPUTE, **NETWORK}


def report(directory: Path, run: str = "r1") -> dict[str, Any]:
    ledgers, problems = read_directory(str(directory), steps=True)
    return build_report(("lab", run), ledgers, time.monotonic_ns(), problems)


def of(tmp_path: Path, *specs: Spec) -> dict[str, Any]:
    """The report on ranks that have ended."""
    ended(tmp_path, *specs)
    return report(tmp_path)


@pytest.mark.ages
def test_the_worked_example(tmp_path: Path) -> None:
    """Two ranks, 100 steps. Rank 1's reads take 40 ms a step, and rank 0 waits for it."""
    got = of(
        tmp_path,
        Spec(rank=0, steps=100, step={**STEP, "straggler": 0.04}),
        Spec(rank=1, steps=100, step={**STEP, "data_read": 0.04}, late={"storage": 4.0}),
    )
    assert (got["run"], got["ranks"], got["steps"]) == ("r1", 2, 100)
    assert got["wall_seconds"] == pytest.approx(10.0)
    assert got["startup_seconds"] == pytest.approx(3.0)
    spent = {cause: pytest.approx(seconds) for cause, seconds in got["seconds"].items() if seconds}
    assert spent == {"compute": 10.0, "network": 2.0, "straggler": 4.0, "data_read": 4.0}
    families = {family: pytest.approx(share) for family, share in got["families"].items() if share}
    assert families == {"compute": 0.5, "storage": 0.2, "straggler": 0.2, "network": 0.1}
    assert got["unaccounted_seconds"] == pytest.approx(0.0, abs=1e-9)
    assert got["verdict"] == {
        "family": "storage",
        "share": pytest.approx(0.4),
        "corroborated": None,
        "summary": "rank 1 is late: data workers are blocked",
        "evidence": [
            "rank 1: 4.0 s waiting for a worker that was blocked (data_read)",
            "rank 0 waited 4.0 s for rank 1, which was late by storage",
        ],
        "late_ranks": [{"rank": 1, "node": "n1", "share": pytest.approx(0.2), "family": "storage"}],
        "late_groups": [],
        "where": [],
        "links": [],
        "take_turns": False,
    }
    assert not got["problems"]
    assert not got["hangs"]


def both(**step: float) -> tuple[Spec, Spec]:
    """Two ranks with the same steps."""
    return Spec(rank=0, steps=50, step=step), Spec(rank=1, steps=50, step=step)


def one_late(by: str, **own: float) -> tuple[Spec, Spec]:
    """Rank 1 is late by 40 ms a step; rank 0 waits."""
    return (
        Spec(rank=0, steps=50, step={**STEP, "straggler": 0.04}),
        Spec(rank=1, steps=50, step={cause: STEP.get(cause, 0.0) + own.get(cause, 0.0) for cause in {**STEP, **own}},
             late={by: 2.0}),
    )  # fmt: skip


# ranks -> family, share, summary
VERDICTS: list[tuple[tuple[Spec, ...], str, float, str]] = [
    (both(compute=0.1), "compute", 1.0, "no other family takes a tenth of the time"),
    (both(compute=0.091, data_read=0.009), "compute", 0.91, "no other family takes a tenth of the time"),
    (both(compute=0.09, data_read=0.01), "storage", 0.1, "data workers are blocked"),
    (both(compute=0.02, data_cpu=0.08), "cpu", 0.8, "data workers are busy on the CPU"),
    (both(compute=0.05, data_queue=0.03, data_cpu=0.02), "cpu", 0.5, "data workers get no CPU"),
    (both(compute=0.02, data_cpu=0.03, data_queue=0.026, compute_queue=0.024), "cpu", 0.8, "data workers get no CPU"),
    (
        both(compute=0.04, data_cpu=0.03, data_queue=0.015, compute_queue=0.015),
        "cpu",
        0.6,
        "data workers are busy on the CPU",
    ),
    (both(compute=0.05, network=0.05), "network", 0.5, "the transfers themselves take long"),
    (both(compute=0.05, network=0.04, collective_queue=0.01), "network", 0.4, "the transfers themselves take long"),
    (
        both(compute=0.05, network=0.03, collective_queue=0.02),
        "network",
        0.3,
        "the transfers themselves take long, and the ranks' communication threads get no CPU",
    ),
    (both(compute=0.05, collective=0.05), "communication", 0.5, "waits in collectives could not be split"),
    (both(compute=0.05, checkpoint_write=0.05), "storage", 0.5, "saves block the loop"),
    (both(compute=0.05, recompute=0.05), "lost", 0.5, "steps are repeated that an earlier attempt had finished"),
    (both(compute=0.05, unattributed=0.05), "unattributed", 0.5, "nothing that was measured explains it"),
    (both(compute=0.05, straggler=0.05), "straggler", 0.5, "ranks wait for a late rank"),
    (one_late("compute", compute=0.04), "straggler", 0.2, "rank 1 is late: compute takes longer than on the others"),
    (one_late("cpu", data_cpu=0.04), "cpu", 0.4, "rank 1 is late: data workers are busy on the CPU"),
    (one_late("host", host_gc=0.04), "host", 0.4, "rank 1 is late: garbage collection pauses the loop"),
    (one_late("storage", checkpoint_write=0.04), "storage", 0.4, "rank 1 is late: saves block the loop"),
    (one_late("cpu", checkpoint_cpu=0.04), "cpu", 0.4, "rank 1 is late: saves serialise or copy on the CPU"),
]  # fmt: skip


@pytest.mark.parametrize(("specs", "family", "share", "summary"), VERDICTS)
def test_verdicts(tmp_path: Path, specs: tuple[Spec, ...], family: str, share: float, summary: str) -> None:
    got = of(tmp_path, *specs)
    verdict = got["verdict"]
    assert (verdict["family"], verdict["summary"]) == (family, summary)
    assert verdict["share"] == pytest.approx(share)
    assert sum(got["families"].values()) == pytest.approx(1.0)
    assert set(got["families"]) == set(FAMILIES)
    assert set(got["seconds"]) == set(CAUSES)


def test_a_line_of_another_rank_is_not_that_of_the_rank_in_the_headline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []

    def reason(account: RunAccount, ranks: Sequence[RankAccount], otherwise: str) -> str:
        asked.append([rank.rank for rank in ranks])
        return otherwise

    monkeypatch.setattr(where, "reason", reason)
    fast, slow = both(compute=0.1)
    verdict = of(tmp_path, fast, replace(slow, step={"compute": 0.04, "host_blocked": 0.06}))["verdict"]
    assert verdict["summary"].startswith("rank 1: ")
    assert asked == [[1]]


@pytest.mark.parametrize(("network", "named"), [(0.029, True), (0.02, False)])
def test_a_family_that_takes_nearly_as_much_is_named(network: float, named: bool, tmp_path: Path) -> None:
    verdict = of(tmp_path, *both(compute=0.07 - network, data_read=0.03, network=network))["verdict"]
    assert verdict["family"] == "storage"
    told = f"network takes nearly as much, {1000 * network:.0f} %: the transfers themselves take long"
    assert (told in verdict["evidence"]) == named


@pytest.mark.parametrize(
    ("host", "groups", "threads", "family"),
    [(0.03, 50, 180, "host"), (0.03, 50, 40, "cpu"), (0.03, 3, 180, "cpu"), (0.015, 50, 180, "cpu")],
    ids=["left", "freed", "few", "small"],
)
def test_a_lack_of_cpus_follows_from_the_groups_that_a_loop_leaves(
    host: float, groups: int, threads: int, family: str, tmp_path: Path
) -> None:
    step = {"compute": 0.05, "host": host, "compute_queue": 0.035}
    words = {"new_groups": groups, "new_group_ns": int(0.9 * host * 50e9), "threads": threads}
    verdict = of(tmp_path, *[Spec(rank=number, steps=50, step=step, words=words) for number in range(2)])["verdict"]
    assert verdict["family"] == family
    made = "the loop makes a process group in each step, and 180 threads are left"
    assert (made in verdict["summary"]) == (threads == 180 and groups == 50)


@pytest.mark.parametrize(("queued", "said"), [(2.0, True), (0.4, False)])
def test_says_that_the_host_of_an_idle_gpu_queues_for_a_cpu(queued: float, said: bool, tmp_path: Path) -> None:
    """Half of the looks in 5 s find it without work. It is not known whether the host queued just then."""
    words = {"looks": 200, "looked_ns": 5 * 10**9, "empty_looks": 100, "empty_ns": 5 * 10**9 // 2, "work_looks": 100}
    words |= {"cpu_queued_ns": int(queued * 1e9)}
    verdict = of(tmp_path, Spec(device="cuda", steps=50, step={"compute": 0.1}, words=words))["verdict"]
    assert verdict["family"] == "host"
    assert (". The training thread queued for a CPU in 40 % of the time" in verdict["summary"]) == said


# own time of rank 1 a step, of both ranks a step, evaluation of rank 1 in total (negative: other compute without
# gradients) -> what made rank 1 late
LATE_BY: list[tuple[str, dict[str, float], dict[str, float], float, str]] = [
    ("storage", {"checkpoint_write": 0.04}, {}, 0.0, "its checkpoints"),
    ("storage", {"checkpoint_write": 0.04}, {"data_read": 0.1}, 0.0, "its checkpoints"),
    ("storage", {"checkpoint_write": 0.02, "data_read": 0.02}, {}, 0.0, "storage"),
    ("storage", {"data_read": 0.04}, {"checkpoint_write": 0.1}, 0.0, "storage"),
    ("storage", {"checkpoint_read": 0.04}, {}, 0.0, "restoring"),
    ("cpu", {"checkpoint_cpu": 0.04}, {"data_cpu": 0.1}, 0.0, "its checkpoints"),
    ("cpu", {"data_cpu": 0.04}, {}, 0.0, "cpu"),
    ("compute", {"compute": 0.04}, {}, 1.9, "its evaluation"),
    ("compute", {"compute": 0.04}, {}, 1.0, "compute"),
    ("compute", {"compute": 0.04}, {}, -1.9, "its generation or evaluation"),
    ("compute", {"compute": 0.04}, {}, 0.0, "compute"),
]


@pytest.mark.parametrize(("family", "own", "common", "evaluation", "by"), LATE_BY)
def test_names_checkpoints_and_evaluations_of_a_late_rank(
    tmp_path: Path, family: str, own: dict[str, float], common: dict[str, float], evaluation: float, by: str
) -> None:
    """Rank 1 is late because of the time that it needs beyond rank 0, not because of what both need."""
    first, second = one_late(family, **own)
    for spec in (first, second):
        for cause, seconds in common.items():
            spec.step[cause] = spec.step.get(cause, 0.0) + seconds
    for spec, seconds in ((first, 0.5), (second, 0.5 + abs(evaluation))):
        if evaluation < 0:
            spec.words["no_grad_ns"] = int(seconds * 1e9)
        else:
            spec.step["compute"] -= seconds / spec.steps
            spec.step["evaluation"] = seconds / spec.steps
    verdict = of(tmp_path, first, second)["verdict"]
    assert f"rank 0 waited 2.0 s for rank 1, which was late by {by}" in verdict["evidence"]
    if by == "its evaluation":
        assert verdict["summary"] == "rank 1 is late: it evaluates while others wait"
    elif by == "its checkpoints" and verdict["family"] == "storage":
        # If both ranks read for far longer, most of what storage takes is not because of the late rank.
        expected = "data workers are blocked" if common else "rank 1 is late: saves block the loop"
        assert verdict["summary"] == expected


@pytest.mark.parametrize(("own", "waited", "led"), [(0.04, 0.03, True), (0.09, 0.01, False)])
def test_a_headline_names_late_ranks_only_if_waits_for_them_are_a_good_part(
    tmp_path: Path, own: float, waited: float, led: bool
) -> None:
    """Both ranks run their own Python in each step. Rank 1 needs longer for it, and rank 0 waits."""
    specs = (
        Spec(rank=0, steps=100, step={"compute": 0.05, "host": own - waited, "straggler": waited}),
        Spec(rank=1, steps=100, step={"compute": 0.05, "host": own}, late={"host": 100 * waited}),
    )
    verdict = of(tmp_path, *specs)["verdict"]
    assert verdict["family"] == "host"
    assert verdict["summary"].startswith("rank 1 is late") == led
    assert [late["rank"] for late in verdict["late_ranks"]] == [1]  # it is listed all the same


def test_a_short_evaluation_does_not_explain_a_long_wait(tmp_path: Path) -> None:
    """Ranks that take turns at being late compute for the same time in total, so one of them only
    has an evaluation of one batch more."""
    specs = (
        Spec(rank=0, world_size=2, steps=100, step={"compute": 0.06, "straggler": 0.04}),
        Spec(rank=1, world_size=2, steps=100, step={"compute": 0.06, "network": 0.04}, late={"compute": 4.0}),
    )
    specs[1].step |= {"compute": 0.0599, "evaluation": 0.0001}
    verdict = of(tmp_path, *specs)["verdict"]
    assert "rank 0 waited 4.0 s for rank 1, which was late by compute" in verdict["evidence"]


def test_waits_are_charged_in_proportion_to_the_causes_of_lateness(tmp_path: Path) -> None:
    """Three ranks: one waits for 6 s, of which a third is for compute on rank 1 and two thirds for reads on rank 2."""
    got = of(
        tmp_path,
        Spec(rank=0, world_size=3, steps=100, step={"compute": 0.04, "straggler": 0.06}),
        Spec(rank=1, world_size=3, steps=100, step={"compute": 0.06, "network": 0.04}, late={"compute": 2.0}),
        Spec(rank=2, world_size=3, steps=100, step={"compute": 0.04, "data_read": 0.06}, late={"storage": 4.0}),
    )
    verdict = got["verdict"]
    assert verdict["family"] == "storage"
    assert verdict["share"] == pytest.approx((6 + 4) / 30)
    assert verdict["late_ranks"] == [
        {"rank": 2, "node": "n1", "share": pytest.approx(4 / 30), "family": "storage"},
        {"rank": 1, "node": "n1", "share": pytest.approx(2 / 30), "family": "straggler"},
    ]
    assert "rank 0 waited 4.0 s for rank 2, which was late by storage" in verdict["evidence"]
    assert "rank 0 waited 2.0 s for rank 1, which was late by compute" in verdict["evidence"]


def test_names_the_node_of_the_late_rank_in_a_run_on_several_nodes(tmp_path: Path) -> None:
    got = of(
        tmp_path,
        Spec(rank=0, node="n1", steps=100, step={**STEP, "straggler": 0.04}),
        Spec(rank=1, node="n2", steps=100, step={**STEP, "data_read": 0.04}, late={"storage": 4.0}),
    )
    assert got["verdict"]["summary"] == "rank 1 on n2 is late: data workers are blocked"
    assert "rank 0 waited 4.0 s for rank 1 on n2, which was late by storage" in got["verdict"]["evidence"]
    assert [late["node"] for late in got["verdict"]["late_ranks"]] == ["n2"]


def test_waits_for_stages_behind_a_slow_link_are_network(tmp_path: Path) -> None:
    """Each of four stages waits for others for 3 s. The link between ranks 1 and 2 explains 2 s of these."""
    slot = {"key": 5, "size": 4, "pairwise": 1, "pipeline_ns": 3 * 10**9, "latency_ns": 2 * 10**9}
    slot["link"] = link_word((1, 2))
    specs = [
        Spec(rank, world_size=4, steps=100, step={"compute": 0.02, "pipeline": 0.03}, slots=[slot]) for rank in range(4)
    ]
    found = of(tmp_path, *specs)
    verdict = found["verdict"]
    assert (verdict["family"], verdict["share"]) == ("network", pytest.approx(0.4))
    assert found["families"]["pipeline"] == pytest.approx(0.6)  # the causes stay as measured
    (entry,) = verdict["late_groups"]
    assert (entry["ranks"], entry["family"], entry["share"]) == ([1, 2], "network", pytest.approx(0.4))
    assert any("stages waited 12.0 s" in line and "slow transfers made 8.0 s" in line for line in verdict["evidence"])


def test_does_not_name_a_rank_that_was_hardly_late(tmp_path: Path) -> None:
    step = {"compute": 0.099, "straggler": 0.001}
    got = of(tmp_path, *(Spec(rank=rank, steps=100, step=step, late={"compute": 0.05}) for rank in (0, 1)))
    assert got["verdict"]["late_ranks"] == []


def test_unsplit_waits_are_listed_as_evidence(tmp_path: Path) -> None:
    evidence = of(tmp_path, *both(compute=0.05, collective=0.05))["verdict"]["evidence"]
    assert evidence[0] == "both ranks: 5.0 s waiting in collectives that could not be split (collective)"
    assert evidence[1].startswith("5.0 s of waits in collectives could not be split into network and straggler: not e")


def test_a_wait_after_the_last_step_is_not_blamed_on_the_exchange(tmp_path: Path) -> None:
    step = {"compute": 0.05, "collective": 0.05}
    hooks = {"exchange": "active"}
    evidence = of(tmp_path, *(Spec(rank=rank, steps=50, step=step, hooks=hooks) for rank in (0, 1)))["verdict"][
        "evidence"
    ]
    assert evidence[1].endswith("they came after the last step, or the ranks have not exchanged them yet")


def test_many_late_ranks_are_named_briefly(tmp_path: Path) -> None:
    step = {"compute": 0.05, "data_read": 0.05}
    got = of(tmp_path, *(Spec(rank=rank, world_size=20, steps=10, step=step if rank < 8 else {"compute": 0.1})
                         for rank in range(20)))  # fmt: skip
    assert got["verdict"]["summary"] == "ranks 0, 1, 2 and 5 more: data workers are blocked"


@pytest.mark.parametrize(
    ("startup", "steps", "remarks"),
    [
        (12.0, 50, ["startup took 12.0 s, longer than the training (5.0 s): 12.0 s in imports, process groups, building"
                    " the model and the dataset"]),
        (12.0, 0, []),  # nothing was trained
        (4.0, 50, []),  # shorter
        (9.0, 50, []),  # a short script
    ],
)  # fmt: skip
def test_says_that_the_startup_took_longer_than_the_training(
    startup: float, steps: int, remarks: list[str], tmp_path: Path
) -> None:
    got = of(tmp_path, Spec(steps=steps, step={"compute": 0.1}, startup=startup, world_size=1, idle=2.0))
    assert got["remarks"] == remarks


def test_startup_is_separate_and_there_is_no_verdict_before_the_first_step(tmp_path: Path) -> None:
    got = of(tmp_path, Spec(startup=7.0, phase="startup"))
    assert got["verdict"] is None
    assert got["families"] == {}
    assert (got["wall_seconds"], got["startup_seconds"]) == (0.0, pytest.approx(7.0))


def test_attempts_of_a_rank_are_summed(tmp_path: Path) -> None:
    got = of(
        tmp_path,
        Spec(rank=0, steps=10, step={"compute": 0.1}, startup=2.0),
        Spec(rank=0, steps=10, step={"recompute": 0.1}, startup=3.0, attempt=1, node="n2"),
    )
    [rank] = got["per_rank"]
    assert (rank["attempt"], rank["attempts"], rank["node"], rank["steps"]) == (1, 2, "n2", 20)
    assert rank["wall_seconds"] == pytest.approx(2.0)
    assert rank["startup_seconds"] == pytest.approx(5.0)
    assert rank["families"]["lost"] == pytest.approx(0.5)
    assert got["verdict"]["family"] == "lost"


@pytest.mark.parametrize(
    ("steps", "attempts", "expected"),
    [
        (
            (40, 80),
            (0, 0),
            "rank 0 took 40 steps and rank 1 80, and waits can be split only in steps that all ranks take",
        ),
        ((79, 80), (0, 0), "they came after the last step, or the ranks have not exchanged them yet"),
        ((40, 80), (1, 0), "they came after the last step, or the ranks have not exchanged them yet"),
    ],
    ids=["uneven inputs", "even", "another attempt"],
)
def test_evidence_says_why_waits_could_not_be_split(
    steps: tuple[int, int], attempts: tuple[int, int], expected: str, tmp_path: Path
) -> None:
    """With uneven inputs (torch's Join), a rank without batches follows the collectives of the others."""
    waits = {"compute": 0.1, "collective": 0.1}
    ranks = [
        Spec(rank=rank, steps=count, step=waits, hooks={"exchange": "active"}, attempt=attempt)
        for rank, (count, attempt) in enumerate(zip(steps, attempts, strict=True))
    ]
    verdict = of(tmp_path, *ranks)["verdict"]
    assert verdict["family"] == "communication"
    [sentence] = [one for one in verdict["evidence"] if "could not be split into" in one]
    assert sentence.endswith(expected)


@pytest.mark.parametrize(
    ("storage", "host", "expected"),
    [
        (2.4, 1.6, "by storage (2.4 s) and by host (1.6 s)"),
        (1.5, 2.5, "by host (2.5 s) and by storage (1.5 s)"),
        (3.6, 0.4, "by storage"),
    ],
)
def test_evidence_names_each_family_that_made_a_rank_late(
    storage: float, host: float, expected: str, tmp_path: Path
) -> None:
    got = of(
        tmp_path,
        Spec(rank=0, steps=100, step={"compute": 0.06, "straggler": 0.04}),
        Spec(
            rank=1,
            steps=100,
            step={"compute": 0.06, "data_read": storage / 100, "host": host / 100},
            late={"storage": storage, "host": host},
        ),
    )
    assert f"rank 0 waited 4.0 s for rank 1, which was late {expected}" in got["verdict"]["evidence"]


BEFORE = Spec(steps=20, step={"compute": 0.1}, idle=9.0)
AFTER = replace(BEFORE, rank=1, idle=7.0)
# name -> (per rank: how it ended, seconds since its last sign of life and since the last phase change, and perhaps 1 +
# the others that were alive then; sentences)
ENDS: dict[str, tuple[list[tuple[Any, ...]], list[str]]] = {
    "the others were alive after their last heartbeats": (
        [("failed", 9.0, 9.0, 3), ("killed", 9.8, 30.0), ("killed", 8.6, 9.1)],
        [
            "rank 0 ended with an error. Rank 0 was the first to end",
            "ranks 1 and 2 were then killed (by the launcher, it seems)",
        ],
    ),
    "a rank was dead when another failed": (
        [("failed", 9.0, 9.0, 2), ("killed", 9.8, 30.0), ("killed", 8.6, 9.1)],
        ["rank 0 ended with an error", "ranks 1 and 2 were killed, or crashed"],
    ),
    "the only other rank was dead when one failed": (
        [("failed", 9.0, 9.0, 1), ("killed", 9.1, 9.3)],
        [
            "rank 0 ended with an error",
            "rank 1 was killed, or crashed. That was before the main program of rank 0 ended: that error may only be"
            " what follows from it",
        ],
    ),
    "a rank had crashed when the others failed, which were killed before they exited": (
        [("raised", 9.0, 9.0, 2), ("killed", 9.1, 9.3), ("raised", 9.0, 9.0, 2)],
        [
            "ranks 0 and 2 failed: RuntimeError at train.py:9 step, and were killed before they exited",
            "rank 1 was killed, or crashed. That was before the main programs of ranks 0 and 2 ended: that error may"
            " only be what follows from it",
        ],
    ),
    "two ranks failed, and both saw all others": (
        [("failed", 9.0, 9.0, 2), ("failed", 8.9, 9.0, 2)],
        ["ranks 0 and 1 ended with an error. Rank 0 was the first to end, 0.1 s before the next one"],
    ),
    "the launcher kills the others after a failure": (
        [("failed", 9.0, 9.0), ("killed", 8.5, 30.0), ("killed", 8.4, 9.1)],
        [
            "rank 0 ended with an error. Rank 0 was the first to end, at least 0.5 s before the next one",
            "ranks 1 and 2 were then killed (by the launcher, it seems)",
        ],
    ),
    "a scheduler kills all ranks": (
        [("killed", 9.0, 30.0), ("killed", 8.9, 10.0)],
        ["ranks 0 and 1 were killed, or crashed"],
    ),
    "a rank was killed and another failed at once": (
        [("killed", 9.1, 10.0), ("failed", 9.0, 9.0)],
        ["rank 1 ended with an error", "rank 0 was killed, or crashed"],
    ),
    "a rank was stopped, or died, long before the others": (
        [("killed", 40.0, 41.0), ("killed", 9.0, 40.0)],
        [
            "ranks 0 and 1 were killed, or crashed. Rank 0 gave its last sign of life 31.0 s before the next one: it "
            "died then, or stood still"
        ],
    ),
    "a rank that outlived the failure for long was not killed by the launcher": (
        [("failed", 90.0, 90.0), ("killed", 9.0, 9.0)],
        [
            "rank 0 ended with an error. Rank 0 was the first to end, at least 81.0 s before the next one",
            "rank 1 was killed, or crashed",
        ],
    ),
}


@pytest.mark.parametrize(("ranks", "sentences"), ENDS.values(), ids=ENDS)
def test_order_of_ends_is_said_only_if_it_is_known(
    ranks: list[tuple[Any, ...]], sentences: list[str], tmp_path: Path
) -> None:
    now = time.monotonic_ns()
    for rank, (end, sign, changed, *alive) in enumerate(ranks):
        words = {
            "alive_at_end": sum(alive),
            "heartbeat_ns": now - int(sign * 1e9),
            "accounted_ns": now - int(changed * 1e9),
        }
        spec = Spec(rank=rank, world_size=len(ranks), steps=20, step={"compute": 0.1}, idle=changed,
                    words=words | {"phase_since_ns": words["accounted_ns"]}, failed=end == "failed",
                    strings={"failure": "RuntimeError - train.py:9 step" if end == "raised" else ""})  # fmt: skip
        if end != "failed":
            with children(tmp_path, spec) as [child]:
                child.kill()
        else:
            ended(tmp_path, spec)
    ledgers, _ = read_directory(str(tmp_path))
    assert end_sentences(sorted(ledgers, key=lambda one: one.rank)) == sentences


FIRST = ". Rank 0 was the first to end, 2.0 s before the next one"
"""The ledgers of one child are written at the same time."""


@pytest.mark.parametrize(
    ("first", "second", "state", "problem"),
    [
        (BEFORE, AFTER, "ended", ""),
        (replace(BEFORE, failed=True), AFTER, "failed", "rank 0 ended with an error" + FIRST),
        (BEFORE, replace(AFTER, failed=True), "failed", "rank 1 ended with an error"),
        (
            replace(BEFORE, failed=True),
            replace(AFTER, failed=True),
            "failed",
            "ranks 0 and 1 ended with an error" + FIRST,
        ),
        (replace(BEFORE, failed=True), replace(AFTER, idle=11.0), "failed", "rank 0 ended with an error"),
        (replace(BEFORE, failed=True), replace(AFTER, node="n2"), "failed", "rank 0 ended with an error"),
    ],
    ids=["clean", "one", "the later one", "both", "after a clean one", "two nodes"],
)
def test_report_says_which_rank_an_exception_ended_first(
    first: Spec, second: Spec, state: str, problem: str, tmp_path: Path
) -> None:
    got = of(tmp_path, first, second)
    assert (got["state"], got["problems"]) == (state, [problem] if problem else [])


def test_report_says_which_ranks_were_killed(tmp_path: Path) -> None:
    with children(tmp_path, BEFORE, AFTER) as ranks:
        ranks[0].kill()
        got = report(tmp_path)
        assert (got["state"], got["problems"]) == ("1 live", ["rank 0 was killed, or crashed"])
        ranks[1].kill()
        got = report(tmp_path)
    [problem] = got["problems"]
    assert got["state"] == "killed"
    assert problem == "ranks 0 and 1 were killed, or crashed"


def test_report_has_an_entry_per_rank(tmp_path: Path) -> None:
    [rank] = of(
        tmp_path,
        Spec(rank=4, world_size=8, steps=20, step={"compute": 0.1}, hooks={"step": "active", "dcp": "failed"},
             words={"faults": 2, "unmeasured": 3}),
    )["per_rank"]  # fmt: skip
    assert (rank["rank"], rank["device"], rank["uuid"], rank["alive"]) == (4, "cpu", "GPU-4", False)
    assert rank["step_seconds"] == {"p50": 0.1, "p95": 0.1, "max": 0.1}
    assert (rank["faults"], rank["unmeasured"]) == (2, 3)
    assert set(rank["hooks"]) == set(HOOKS)
    assert (rank["open_phase"], rank["open_seconds"]) == (None, None)
    problems = report(tmp_path)["problems"]
    assert problems[0].startswith("the hook dcp failed on 1 of 1 ranks")
    assert problems[1] == "2 errors inside the hooks were caught"


@pytest.mark.parametrize("unattributed", [0.0, 0.01])
def test_intervals_that_could_not_be_measured_are_a_problem_if_time_is_unattributed(
    unattributed: float, tmp_path: Path
) -> None:
    """The device may still work at the end of the job, after the last step."""
    step = {"compute": 0.1, "unattributed": unattributed}
    problems = of(tmp_path, Spec(steps=20, step=step, words={"unmeasured": 3}))["problems"]
    said = ["3 intervals could not be measured on the device: that time is unattributed"]
    assert problems == said * bool(unattributed)


# -- live ranks


@pytest.mark.parametrize(
    ("phase", "cause"),
    [("compute", "compute"), ("host", "host"), ("data", "unattributed"), ("checkpoint", "checkpoint_write"),
     ("collective", "collective"), ("gc", "host_gc")],
)  # fmt: skip
def test_the_open_phase_of_a_live_rank_counts_up_to_now(tmp_path: Path, phase: str, cause: str) -> None:
    """Ten seconds of steps in network, and an open phase of unknown length, at least ten seconds."""
    spec = Spec(rank=0, world_size=1, steps=100, step={"network": 0.1}, phase=phase, idle=10.0)
    with children(tmp_path, spec):
        got = report(tmp_path)
        [rank] = got["per_rank"]
        opened = rank["wall_seconds"] - 10.0
        assert opened >= 10.0
        assert got["seconds"][cause] == pytest.approx(opened)
        assert (rank["open_phase"], rank["open_seconds"]) == (phase, pytest.approx(opened))
        assert got["unaccounted_seconds"] == pytest.approx(0.0, abs=1e-9)


def test_time_after_the_last_update_of_a_dead_rank_is_unknown(tmp_path: Path) -> None:
    with children(tmp_path, Spec(steps=100, step={"compute": 0.1}, phase="data", idle=30.0)) as [child]:
        child.kill()
        got = report(tmp_path)
        assert got["wall_seconds"] == pytest.approx(10.0)
        assert got["seconds"]["unattributed"] == 0.0


def test_waits_not_split_yet_count_as_collective(tmp_path: Path) -> None:
    got = of(tmp_path, Spec(steps=100, step={"compute": 0.1}, pending=2.5))
    assert got["seconds"]["collective"] == pytest.approx(2.5)
    assert got["wall_seconds"] == pytest.approx(12.5)
    assert got["unaccounted_seconds"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.ages
def test_time_that_the_device_clock_has_not_harvested_is_unattributed(tmp_path: Path) -> None:
    now = time.monotonic_ns()
    second = 1_000_000_000
    words = {"window_ns": now - 12 * second, "accounted_ns": now - 2 * second, "phase_since_ns": now}
    got = of(tmp_path, Spec(steps=100, step={"compute": 0.1}, words=words))
    assert got["seconds"]["unattributed"] == pytest.approx(2.0)
    assert got["unaccounted_seconds"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.ages
@pytest.mark.parametrize(
    ("phase", "family"), [("compute", "straggler"), ("checkpoint", "storage"), ("host", "host"), ("restore", "storage")]
)
def test_a_hang_is_charged_to_the_missing_rank(tmp_path: Path, phase: str, family: str) -> None:
    step = {"compute": 0.1}
    waits = Spec(rank=0, steps=100, step=step, phase="collective", idle=20.0, collectives=101)
    with children(tmp_path, waits, Spec(rank=1, steps=100, step=step, phase=phase, idle=20.0, collectives=100)):
        got = report(tmp_path)
        [hang] = got["hangs"]
        assert (hang["rank"], hang["waiting"]) == (1, [0])
        assert hang["seconds"] >= 20.0
        verdict = got["verdict"]
        assert verdict["family"] == family
        assert verdict["summary"].startswith("rank 1 is late: others have been waiting 2")
        assert verdict["late_ranks"][0]["rank"] == 1
        assert verdict["evidence"][0].startswith("rank 1 is missing: rank 0 waiting 2")
        assert got["families"]["communication"] > 0.3  # the raw cause stays as measured


@pytest.mark.ages
def test_a_hang_before_the_first_step_is_a_problem(tmp_path: Path) -> None:
    with children(tmp_path, Spec(rank=0, phase="collective", idle=20.0), Spec(rank=1, phase="startup", idle=20.0)):
        got = report(tmp_path)
        assert got["verdict"] is None
        assert got["problems"][0].startswith("rank 1 is missing: rank 0 waiting 2")


@pytest.mark.parametrize(("steps", "batches", "said"), [(0, 99, 0), (0, 100, 1), (1, 100, 0)])
def test_batches_without_any_step_are_a_problem(steps: int, batches: int, said: int, tmp_path: Path) -> None:
    ended(tmp_path, Spec(steps=steps, step=STEP, words={"batches": batches}))
    problems = report(tmp_path)["problems"]
    assert len([one for one in problems if "call whyidle.step()" in one]) == said, problems


@pytest.mark.parametrize(
    ("device", "steps", "words", "said"),
    [
        ("cuda:0", 20, {}, 1),
        ("cuda:0", 19, {}, 0),
        ("cuda:0", 20, {"batches": 1}, 0),
        ("cuda:0", 20, {"marked_data": 20}, 0),
        ("cpu", 20, {}, 0),  # what blocks it is measured
    ],
)
def test_an_accelerator_whose_loop_takes_no_batches_is_a_problem(
    device: str, steps: int, words: dict[str, int], said: int, tmp_path: Path
) -> None:
    found = of(tmp_path, Spec(world_size=1, device=device, steps=steps, step={"compute": 0.1}, words=words))
    assert len([one for one in found["problems"] if "no batch was seen" in one]) == said


def test_all_ranks_in_a_collective_is_not_a_hang(tmp_path: Path) -> None:
    specs = [Spec(rank=rank, steps=9, step=STEP, phase="collective", idle=20.0) for rank in (0, 1)]
    with children(tmp_path, *specs):
        assert report(tmp_path)["hangs"] == []


# -- small things


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    ended(tmp_path, Spec(run="old", created=1), Spec(run="new", created=9), Spec(run="old", rank=1, created=2))
    assert runs(read_directory(str(tmp_path))[0]) == [("lab", "new"), ("lab", "old")]


@pytest.mark.parametrize(("q", "expected"), [(0.0, 1.0), (0.5, 2.0), (0.51, 3.0), (0.95, 4.0), (1.0, 4.0)])
def test_quantiles_are_values_that_occurred(q: float, expected: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], q) == expected

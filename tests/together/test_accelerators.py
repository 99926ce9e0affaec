"""Real training on the simulated device: what the hooks record for each rank is what its device did, by its own
schedule.

The device uses virtual time: a loaded machine may change what the device does, but hardly the agreement with the hooks.
So these tests run beside others, except for long ones.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path

import accelerators
import pytest
from accelerators.lab import FAULTS, LOOPS, RANKS, Case, log, ranks, run
from simdevice import build
from support_forks import Forks
from support_sites import report
from support_training import until

from whyidle.ledger.directory import read_directory

pytestmark = [
    pytest.mark.xdist_group("accelerators"),
    pytest.mark.skipif(build.lacks() is not None, reason=f"no simulated device: {build.lacks()}"),
]

ERROR = 0.01
"""Of the wall time. CPU time that a hypervisor took is added, and the time for which a device got no CPU."""
LOOP_ERROR = 0.04
"""In a loop whose device waits for its host, the host's own time in a collective counts as a wait too."""
UNKNOWN = 0.04
"""Of the time of all ranks: waits for a rank that was late for an unknown reason."""
CASES = [(shape, fault) for shape in RANKS for fault in FAULTS if shape != "recomputed" or fault == "slow-link"]
USUAL = {
    "ddp": "slow-reads",
    "recomputed": "slow-link",
    "fsdp1": "hidden",
    "fsdp2": "slow-link",
    "hsdp": "checkpoint",
    "tp-dp": "slow-compute",
    "pipeline": "none",
}
BOUNDARIES, WITHOUT_TIMING = 4, 6
"""Events per group of FSDP2 and microbatch, at most. The second value is for streams of FSDP without a Python class."""
NAMED_WITHIN = 10.0
"""Seconds after a hang."""
CALLS = {"record_event", "query_event", "query_stream", "elapsed_time", "wait_event"}
"""What the hooks may ask of a device. (FSDP's waits are made once more, on the stream that will make them.)"""


@pytest.fixture(scope="module")
def trained(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], list[Case]]:
    """All usual cases, or all others."""

    @functools.cache
    def train(usual: bool) -> list[Case]:
        wanted = [case for case in CASES if (case in USUAL.items()) == usual]
        return list(run(forks, wanted, tmp_path_factory.mktemp("accelerators")))

    return train


@pytest.fixture(
    params=[
        *(pytest.param((shape, True), id=f"{shape}-{fault}") for shape, fault in USUAL.items()),
        *(
            pytest.param((shape, False), id=shape, marks=[pytest.mark.long, pytest.mark.alone])
            for shape in RANKS
            if shape != "recomputed"
        ),
    ]
)
def cases(request: pytest.FixtureRequest, trained: Callable[[bool], list[Case]]) -> dict[str, Case]:
    shape, usual = request.param
    return {case.fault: case for case in trained(usual) if case.shape == shape}


def test_device_seconds_equal_those_of_the_schedule(cases: dict[str, Case]) -> None:
    errors = {fault: max(rank.error - rank.late for rank in case.ranks) - case.stolen for fault, case in cases.items()}
    assert max(errors.values()) < ERROR, errors


def test_the_causes_sum_to_the_wall(cases: dict[str, Case]) -> None:
    for case in cases.values():
        for rank in case.ranks:
            assert sum(rank.seconds.values()) == pytest.approx(rank.wall, rel=0.001)
            assert rank.seconds["unattributed"] < (2 * ERROR + case.stolen) * rank.wall


def test_all_work_is_training(cases: dict[str, Case]) -> None:
    """What FSDP does without gradients is part of a forward pass, however long a busy machine takes for it."""
    for case in cases.values():
        for rank in case.ranks:
            assert (rank.seconds["evaluation"], rank.seconds["rollout"]) == (0, 0), case


def test_family_and_culprit_are_right(cases: dict[str, Case]) -> None:
    for fault, case in cases.items():
        verdict = case.report["verdict"]
        late = [(one["rank"], one["family"]) for one in verdict["late_ranks"][:1]]
        if case.culprit is not None:
            assert (verdict["family"], late) == (case.culprit[1], [case.culprit]), (fault, verdict)
        elif fault == "slow-link":
            assert verdict["family"] == "network", verdict
        elif case.transfer < 0.08:
            assert verdict["family"] not in ("network", "storage", "communication"), (fault, verdict)


def test_ranks_are_late_for_a_known_reason(cases: dict[str, Case]) -> None:
    """With replicas of shards, most ranks wait for ranks that have waited for the slow one themselves."""
    if (case := cases.get("slow-compute")) is not None:
        unknown = case.report["explained"]["unattributed"] / case.report["rank_seconds"]
        assert unknown < UNKNOWN + case.stolen + max(rank.late for rank in case.ranks), case.report["verdict"]


def test_hidden_communication_is_not_a_loss(cases: dict[str, Case]) -> None:
    for case in cases.values():
        network = sum(rank.seconds["network"] for rank in case.ranks) / sum(rank.wall for rank in case.ranks)
        late = max(rank.late for rank in case.ranks)
        assert network < case.transfer + 2 * ERROR + case.stolen + late, (case.fault, network, case.transfer)


def test_makes_no_device_call_that_waits(cases: dict[str, Case]) -> None:
    for case in cases.values():
        for rank in case.ranks:
            assert set(rank.calls) <= CALLS
            assert rank.contexts == [True, False], "a context on a device that the training does not use"


@pytest.mark.long
@pytest.mark.alone
def test_each_way_to_write_a_loop_is_measured_as_the_device_did_it(forks: Forks, tmp_path: Path) -> None:
    """Where the host is ahead of its device, the device hides the fault, and the verdict is compute."""
    for case in run(forks, [(loop, "") for loop in LOOPS], tmp_path):
        verdict, [late, *_] = case.report["verdict"], case.report["verdict"]["late_ranks"]
        assert case.culprit is not None
        assert (late["rank"], late["family"]) == case.culprit, case.shape
        assert verdict["family"] in (case.culprit[1], "compute"), (case.shape, verdict)
        error = max(rank.error - rank.late for rank in case.ranks) - case.stolen
        assert error < LOOP_ERROR, (case.shape, error)


def test_fsdp2_makes_few_boundaries_for_a_group_and_microbatch(forks: Forks, tmp_path: Path) -> None:
    with ranks(forks, "boundaries.py", 2, tmp_path, []) as processes:
        assert [process.wait(300) for process in processes] == [0, 0], log(tmp_path, 0)[-3000:]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(found) == 7
        for *case, timed, count in found:
            assert 0 < count <= (BOUNDARIES if timed else WITHOUT_TIMING), case
    ledgers, _ = read_directory(str(tmp_path / "ledgers"))
    assert [(ledger.faults, ledger.unmeasured) for ledger in ledgers] == [(0, 0), (0, 0)]


@pytest.mark.parametrize(
    ("how", "phase"), [("device", "compute"), pytest.param("host", "data", marks=pytest.mark.long)]
)
def test_names_a_hang_although_the_hosts_run_ahead(forks: Forks, how: str, phase: str, tmp_path: Path) -> None:
    """No host waits for its device: each continues to enqueue steps. Only the devices have stopped."""
    with ranks(forks, "hang.py", 2, tmp_path, [how]):
        assert until(lambda: (tmp_path / "hangs-0").exists(), 120)
        begun = time.monotonic()
        assert until(lambda: report(tmp_path / "ledgers")["hangs"], 60)
        assert time.monotonic() - begun < NAMED_WITHIN
        found = report(tmp_path / "ledgers")
    entries = {rank["rank"]: rank["open_phase"] for rank in found["per_rank"]}
    assert (entries[0], entries[1]) == ("collective", phase)
    (hang,) = found["hangs"]
    assert (hang["rank"], hang["waiting"]) == (1, [0])


def test_a_forked_child_does_not_touch_the_parents_events(forks: Forks, tmp_path: Path) -> None:
    script = Path(accelerators.__file__).with_name("fork.py")
    done, _ = forks.run((str(script), str(tmp_path / "forks")), tmp_path, recorded=False)
    assert (done.returncode, done.stdout) == (0, "calls 0\n"), done.stderr
    ledgers, problems = read_directory(str(tmp_path / "forks"))
    assert not problems
    (ledger,) = [ledger for ledger in ledgers if ledger.device == "sim:0"]
    assert (ledger.steps, ledger.faults, ledger.unmeasured) == (350, 0, 0)


def test_a_watcher_that_ends_last_does_not_destroy_events(forks: Forks, tmp_path: Path) -> None:
    """In its thread, torch's destructor could abort the process. See `torch_hooks/background.py`."""
    script = Path(accelerators.__file__).with_name("ending.py")
    done, _ = forks.run((str(script), str(tmp_path / "ending")), tmp_path, recorded=False)
    assert done.returncode == 0, done.stderr
    made, *destroyers = done.stdout.split()
    assert int(made) > 0
    assert destroyers == ["MainThread"]

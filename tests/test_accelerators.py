"""Real training on the simulated device: what the hooks say of each rank is what its device did, by its own schedule.

The device is virtual in time: a loaded machine may change what it did, and hardly whether that is what we say.
"""

from __future__ import annotations

import pytest
from accelerators.lab import FAULTS, RANKS, Case, run
from simdevice import build

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler: apt-get install g++"),
]

ERROR = 0.02
"""Of the wall; docs/accelerators.md has what it was on idle cores."""
CASES = [(shape, fault) for shape in RANKS for fault in FAULTS if shape != "recomputed" or fault == "slow-link"]
CALLS = {"record_event", "query_event", "elapsed_time", "wait_event"}
"""What the hooks may ask of a device. (FSDP's waits are done once more, on the stream that is about to do them.)"""


@pytest.fixture(scope="module")
def all_cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    return list(run(CASES, tmp_path_factory.mktemp("accelerators")))


@pytest.fixture(params=RANKS)
def cases(request: pytest.FixtureRequest, all_cases: list[Case]) -> dict[str, Case]:
    return {case.fault: case for case in all_cases if case.shape == request.param}


def test_device_seconds_are_those_of_its_schedule(cases: dict[str, Case]) -> None:
    errors = {fault: max(rank.error for rank in case.ranks) for fault, case in cases.items()}
    assert max(errors.values()) < ERROR, errors


def test_the_causes_sum_to_the_wall(cases: dict[str, Case]) -> None:
    for case in cases.values():
        for rank in case.ranks:
            assert sum(rank.seconds.values()) == pytest.approx(rank.wall, rel=0.001)
            assert rank.seconds["unattributed"] < ERROR * rank.wall


def test_family_and_culprit_are_right(cases: dict[str, Case]) -> None:
    for fault, case in cases.items():
        verdict = case.report["verdict"]
        late = [(one["rank"], one["family"]) for one in verdict["late_ranks"][:1]]
        if case.culprit is not None:
            assert (verdict["family"], late) == (case.culprit[1], [case.culprit]), (fault, verdict)
        elif fault == "slow-link":
            assert verdict["family"] == "network", verdict
        elif case.transfer < 0.08:
            assert verdict["family"] in ("compute", "pipeline", "straggler"), (fault, verdict)


def test_hidden_communication_is_no_loss(cases: dict[str, Case]) -> None:
    for case in cases.values():
        network = sum(rank.seconds["network"] for rank in case.ranks) / sum(rank.wall for rank in case.ranks)
        assert network < case.transfer + ERROR, (case.fault, network, case.transfer)


def test_the_device_is_asked_for_nothing_that_waits(cases: dict[str, Case]) -> None:
    for case in cases.values():
        for rank in case.ranks:
            assert set(rank.calls) <= CALLS
            assert rank.contexts == [True, False], "a context on a device that the training does not use"

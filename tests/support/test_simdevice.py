"""The simulated device compared with its own truth: its clock, torch's operators on it, and torch's parallelisms.

whyidle has no part in it. Times are of the device's virtual clock, so no assertion depends on the load of the machine.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support_forks import Forked, Forks

SIMDEVICE = Path(__file__).parent / "simdevice"
CHECKS = [
    name
    for file in ("of_device.py", "of_torch.py")
    for name in re.findall(r"^def (check_\w+)", (SIMDEVICE / "scripts" / file).read_text(), re.MULTILINE)
]
CASES_OF_TWO = (
    *("collectives", "slow_rank", "hang", "ddp", "fsdp1", "fsdp2", "tensor_parallel", "gpipe", "one_f_one_b"),
    *("checkpointed", "saved"),
)
CASES_OF_FOUR = ("hsdp", "tensor_parallel")
STEPS, BLOCKS, FORWARD, BACKWARD, TRANSFER = 3, 3, 8_000_000, 16_000_000, 4_000_000
"""As in scripts/cases.py and scripts/train.py, in nanoseconds."""

pytestmark = pytest.mark.xdist_group("simdevice")


@pytest.fixture(scope="module")
def device() -> None:
    """Builds the device here, so that its time counts once and no rank waits for another's build."""
    from simdevice import build

    lacking = build.lacks()
    if lacking:
        pytest.skip(f"the simulated device cannot be built: {lacking}")
    build.library()


@pytest.fixture(scope="module")
def checks(device: None, tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> dict[str, str | None]:
    script = str(SIMDEVICE / "scripts" / "checks.py")
    done, _ = forks.run((script,), tmp_path_factory.mktemp("checks"), recorded=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CHECKS)
def test_passes_the_checks_of_a_device(name: str, checks: dict[str, str | None]) -> None:
    assert checks[name] is None, checks[name]


def run(forks: Forks, size: int, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The results of each case, by rank."""
    script = str(SIMDEVICE / "scripts" / "train.py")
    ranks: list[Forked] = []
    try:
        for rank in range(size):
            words = (script, str(rank), str(size), str(folder))
            ranks.append(forks.start(words, folder / f"log.{rank}", recorded=False))
        codes = [rank.wait(200) for rank in ranks]
    except TimeoutError:  # if a rank fails, the others wait for ever
        codes = []
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0] * size, "\n".join(log.read_text()[-3000:] for log in folder.glob("log.*/stderr"))
    names = CASES_OF_TWO if size == 2 else CASES_OF_FOUR
    return {name: [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(size)] for name in names}


@pytest.fixture(scope="module")
def of_two(device: None, tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> dict[str, list[dict[str, Any]]]:
    return run(forks, 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def of_four(device: None, tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> dict[str, list[dict[str, Any]]]:
    return run(forks, 4, tmp_path_factory.mktemp("four"))


def agrees(case: list[dict[str, Any]]) -> None:
    for rank in case:
        assert rank["sim"] == rank["cpu"]


@pytest.mark.parametrize("name", CASES_OF_TWO)
def test_two_ranks_compute_the_same_as_on_cpus(name: str, of_two: dict[str, list[dict[str, Any]]]) -> None:
    agrees(of_two[name])


@pytest.mark.parametrize("name", CASES_OF_FOUR)
def test_four_ranks_compute_the_same_as_on_cpus(name: str, of_four: dict[str, list[dict[str, Any]]]) -> None:
    agrees(of_four[name])


class Schedule:
    """One rank's schedule, by stream."""

    def __init__(self, rank: dict[str, Any]):
        from simdevice.spans import Entry

        self.entries = [Entry(*each) for each in rank["schedule"]]
        self.home = [each for each in self.entries if each.stream == rank["home"]]
        self.beside = [each for each in self.entries if each.stream != rank["home"]]

    def ns(self, *kinds: str) -> int:
        return sum(each.ns for each in self.home if each.kind in kinds)


@pytest.mark.parametrize("name", ["ddp", "fsdp1", "fsdp2", "checkpointed", "hsdp"])
def test_compute_takes_the_time_of_the_model(name: str, request: pytest.FixtureRequest) -> None:
    ranks = request.getfixturevalue("of_four" if name == "hsdp" else "of_two")[name]
    recomputed = FORWARD if name == "checkpointed" else 0
    for rank in ranks:
        assert Schedule(rank).ns("busy") == STEPS * BLOCKS * (FORWARD + recomputed + BACKWARD)


@pytest.mark.parametrize("name", CASES_OF_TWO)
def test_a_stream_runs_one_item_at_a_time(name: str, of_two: dict[str, list[dict[str, Any]]]) -> None:
    for rank in of_two[name]:
        schedule = Schedule(rank)
        for stream in {each.stream for each in schedule.entries}:
            spans = sorted((each.start, each.end) for each in schedule.entries if each.stream == stream)
            assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))


@pytest.mark.parametrize("name", ["ddp", "fsdp1", "fsdp2", "tensor_parallel", "saved"])
def test_collectives_run_at_the_same_time_on_all_ranks(name: str, of_two: dict[str, list[dict[str, Any]]]) -> None:
    transfers = [
        sorted((each.start, each.end) for each in Schedule(rank).entries if each.kind == "collective")
        for rank in of_two[name]
    ]
    assert transfers[0] == transfers[1]
    assert transfers[0]
    assert {end - start for start, end in transfers[0]} == {TRANSFER}


def test_ddp_hides_all_buckets_but_the_last(of_two: dict[str, list[dict[str, Any]]]) -> None:
    """In the last step the buckets have the order of the gradients, so each but the last is hidden."""
    for rank in of_two["ddp"]:
        schedule = Schedule(rank)
        reduced = [each for each in schedule.beside if each.tag.endswith("all_reduce")][-BLOCKS:]
        backward = [each for each in schedule.home if each.tag == "block backward"][-BLOCKS:]
        if reduced[0].enqueued < backward[0].end:  # otherwise this rank's host was too late to hide a transfer
            hidden = reduced[:-1]
            assert sum(min(each.end, backward[-1].end) - each.start for each in hidden) > 0
        exposed = [each for each in schedule.home if each.kind == "wait" and each.start >= backward[-1].end]
        assert exposed
        assert exposed[-1].end >= reduced[-1].end


def test_a_hidden_collective_costs_the_home_stream_nothing(of_two: dict[str, list[dict[str, Any]]]) -> None:
    for number, rank in enumerate(of_two["slow_rank"]):
        home = Schedule(rank).home
        compute, met = home[0], home[1 if number == 1 else 2]
        assert compute.ns == 5_000_000 + number * 200_000_000
        if number == 0:
            assert home[1].kind == "rendezvous"
            assert home[1].ns > 0
        assert (met.kind, met.ns) == ("collective", TRANSFER)  # synchronous: on the caller's stream
        after = [each for each in home if each.start >= met.end]
        assert [each.tag for each in after if each.kind == "busy"] == ["beside"]
        assert sum(each.ns for each in Schedule(rank).beside if each.kind == "collective") == TRANSFER


def test_a_pipelines_second_stage_waits_for_the_first(of_two: dict[str, list[dict[str, Any]]]) -> None:
    for name in ("gpipe", "one_f_one_b"):
        first, second = (Schedule(rank) for rank in of_two[name])
        began = [next(each.start for each in stage.home if each.kind == "busy") for stage in (first, second)]
        assert began[1] >= began[0] + FORWARD + TRANSFER
        assert first.ns("busy") == second.ns("busy") == STEPS * 4 * (FORWARD + BACKWARD)

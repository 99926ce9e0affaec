"""What ranks were given and what they used, in two sentences."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, write

from whyidle.advisor.advice.case import case_of
from whyidle.advisor.advice.given import FIRST
from whyidle.advisor.advice.table import advise
from whyidle.ledger.directory import read_directory, run_of
from whyidle.ledger.given import GIVEN_STRINGS, MEMORY_OF
from whyidle.linux.cpu_lists import cpus_in
from whyidle.torch_hooks.given.cpus import fitting
from whyidle.verdict import shortage
from whyidle.verdict.accounts import account
from whyidle.verdict.given import Given

GIB = 1 << 30
SECOND = 10**9
STEPS, STEP = 20, {"compute": 0.4, "data_queue": 0.1}
WALL = 10 * SECOND
CPUS = {"cpus_node": 64, "cpus_at_start": 1, "cpus_allowed": 1, "given_ns": WALL, "used_cpu_ns": WALL}
MEMORY = {"memory_at_ns": 1, "memory_used_bytes": 61 * GIB, "memory_limit_bytes": 64 * GIB, "memory_peak_bytes": GIB}
QUOTA = {"cpu_quota_milli": 400, "cpu_quota_id": 7, "cpu_periods": 249, "cpu_throttled_periods": 248}
GROUP, ABOVE = MEMORY_OF.index("group"), MEMORY_OF.index("above")


def given(folder: Path, *ranks: dict[str, int], lists: tuple[str, ...] = ("0",), **spec: Any) -> Given:
    for rank, words in enumerate(ranks):
        strings = {"cpu_list": lists[rank % len(lists)], **spec.get("strings", {})}
        rest = {name: value for name, value in spec.items() if name != "strings"}
        one = Spec(rank=rank, world_size=len(ranks), steps=STEPS, step=STEP, words=words, strings=strings, **rest)
        write(str(folder), one).close()
    ledgers, problems = read_directory(str(folder), steps=True)
    assert not problems
    return Given(account(run_of(ledgers[0]), ledgers, time.monotonic_ns()))


def sentences(found: Given) -> Any:
    return found.entry["sentences"]


def test_one_cpu_by_affinity(tmp_path: Path) -> None:
    assert sentences(given(tmp_path, CPUS | MEMORY)) == [
        "may use 1 of 64 CPUs (affinity), used 1.0",
        "memory 61 of 64 GiB",
    ]


def test_what_was_given_and_not_used(tmp_path: Path) -> None:
    words = CPUS | {"cpus_at_start": 16, "cpus_allowed": 16, "used_cpu_ns": 13 * SECOND, "launcher_cpus": 16}
    found = given(tmp_path, words, lists=("0-15",), strings={"launcher": "slurm"})
    assert sentences(found) == ["may use 16 of 64 CPUs (affinity), used 1.3; Slurm gave 16"]
    assert not found.cpus[0].short


def test_a_quota(tmp_path: Path) -> None:
    words = CPUS | QUOTA | {"cpus_allowed": 64, "used_cpu_ns": 4 * SECOND, "cpu_quota_of": 1, "cpus_at_start": 64}
    found = given(tmp_path, words, lists=("0-63",))
    assert sentences(found) == [
        "may use 0.4 of 64 CPUs (quota of a control group above), used 0.4; throttled in 248 of 249 periods"
    ]
    assert found.cpus[0].short


def test_what_others_use_does_not_use_up_a_quota(tmp_path: Path) -> None:
    """They use CPUs of the node. The job was never stopped, and has 0.4 of 0.9 CPUs."""
    words = CPUS | {"cpus_allowed": 2, "cpus_node": 2, "cpus_at_start": 2, "cpu_quota_milli": 900, "cpu_quota_id": 7}
    words |= {"cpu_periods": 296, "used_cpu_ns": 4 * SECOND}
    asked = {"cpu_asked_ns": int(1.1 * WALL)}
    [cpus] = given(tmp_path, words | asked, lists=("0-1",)).cpus
    assert (cpus.by_quota, cpus.quota_used_up) == (True, False)
    throttled = words | {"cpu_throttled_periods": 290}
    assert given(tmp_path / "throttled", throttled, lists=("0-1",)).cpus[0].quota_used_up


def test_ranks_of_a_node_share_cpus_and_a_quota(tmp_path: Path) -> None:
    words = CPUS | {"cpu_quota_milli": 3000, "cpu_quota_id": 7, "cpus_allowed": 2, "cpus_at_start": 2}
    [cpus] = given(tmp_path, words, words, lists=("0-1", "2-3")).cpus
    assert (cpus.allowed, cpus.quota, cpus.limit, cpus.used) == (4, 3.0, 3.0, 2.0)
    assert cpus.sentence.startswith("may use 3 of 64 CPUs (quota of the control group), used 2.0")
    slurm = words | {"launcher_cpus": 2}
    [cpus] = given(tmp_path / "slurm", slurm, slurm, lists=("0-1", "2-3"), strings={"launcher": "slurm"}).cpus
    assert cpus.sentence.endswith("; Slurm gave 2 to each")


@pytest.mark.parametrize(
    ("cpus", "text"),
    [
        (range(4), "0-3"),
        (range(0, 64, 2), "0-62:1/2"),
        (range(1, 256, 2), "1-255:1/2"),
        ([*range(0, 200, 9), 201, 203], None),
    ],
    ids=["few", "a socket of two", "and of 256", "irregular"],
)
def test_a_list_that_is_too_long_for_the_ledger(cpus: Iterable[int], text: str | None, tmp_path: Path) -> None:
    """Every second one of 64 CPUs was told as 23, because the list was cut off."""
    known = frozenset(cpus)
    written = fitting(known, GIVEN_STRINGS["cpu_list"])
    assert len(written) <= 64
    assert text is None or written == text
    assert cpus_in(written) == known if text else cpus_in(written) < known
    words = CPUS | {"cpus_node": 256, "cpus_allowed": len(known), "cpus_at_start": len(known)}
    assert given(tmp_path, words, lists=(written,)).cpus[0].allowed == len(known)


def test_workers_that_may_use_fewer_cpus_and_a_program_that_has_narrowed_its_own(tmp_path: Path) -> None:
    words = CPUS | {"cpus_allowed": 2, "cpus_at_start": 64, "worker_cpus": 1}
    words["cpus_changed_ns"] = time.monotonic_ns()
    found = given(tmp_path, words, lists=("0-1",), strings={"worker_cpu_list": "1"})
    assert "data workers may use 1 alone (CPU 1)" in sentences(found)[0]
    assert re.search(r"at the start it was 64: the program has narrowed it, 1\d s after its start", sentences(found)[0])


@pytest.mark.parametrize(
    ("omp", "interop", "said"),
    [
        (0, 0, "OMP_NUM_THREADS is not set"),
        (8, 0, "OMP_NUM_THREADS is 8"),
        (0, 4, "OMP_NUM_THREADS is not set; 4 for inter-op"),
    ],
)
def test_more_threads_than_cpus(omp: int, interop: int, said: str, tmp_path: Path) -> None:
    words = CPUS | {"threads_intra": 8, "threads_omp": omp, "threads_inter": interop}
    [sentence] = sentences(given(tmp_path, words))
    assert sentence.endswith(f"; torch runs operations on 8 threads ({said})")


@pytest.mark.parametrize(
    ("threads", "omp", "used", "device", "said"),
    [
        (1, 1, 1.0, "cpu", "; torch runs operations on 1 thread (OMP_NUM_THREADS is 1)"),
        (1, 0, 1.0, "cpu", ""),  # two CPUs of one core
        (2, 1, 1.0, "cpu", ""),
        (1, 1, 1.9, "cpu", ""),  # data workers use the other CPU
        (1, 1, 1.0, "cuda:0", ""),
    ],
)
def test_fewer_threads_than_cpus(threads: int, omp: int, used: float, device: str, said: str, tmp_path: Path) -> None:
    words = CPUS | {"cpus_node": 2, "cpus_allowed": 2, "cpus_at_start": 2, "threads_intra": threads, "threads_omp": omp}
    words |= {"used_cpu_ns": round(used * WALL)}
    assert sentences(given(tmp_path, words, lists=("0-1",), device=device)) == [
        f"may use 2 of 2 CPUs, used {used}{said}"
    ]


def test_the_worst_node_speaks_for_all(tmp_path: Path) -> None:
    for rank, used in enumerate((WALL // 10, WALL)):
        write(
            str(tmp_path),
            Spec(rank=rank, node=f"n{rank}", steps=STEPS, step=STEP, words=CPUS | {"used_cpu_ns": used}),
        ).close()
    ledgers, _ = read_directory(str(tmp_path), steps=True)
    found = Given(account(run_of(ledgers[0]), ledgers, time.monotonic_ns()))
    assert sentences(found)[0].startswith("on n1, may use 1 of 64 CPUs")


def test_files_that_were_read_again_and_a_full_dev_shm(tmp_path: Path) -> None:
    words = MEMORY | {"memory_of": GROUP, "refault_bytes": 20 * GIB, "shm_bytes": GIB, "shm_used_bytes": GIB}
    assert sentences(given(tmp_path, words)) == [
        "memory 61 of 64 GiB (control group); 20 GiB of files were dropped and read again; "
        "/dev/shm is full: 1.00 of 1.00 GiB"
    ]


def healthy(chance: random.Random) -> tuple[dict[str, int], dict[str, str]]:
    """What a node looks like at some moment of a healthy day: limits that leave room, and a loader that keeps up."""
    node = chance.choice((8, 64, 192))
    allowed = chance.choice((node, node // 2, max(4, node // 8)))
    quota = chance.choice((0, allowed * 750))
    limit = min(allowed, quota / 1000) if quota else allowed
    memory = chance.choice((16, 256, 2048)) * GIB
    words = {
        "cpus_node": node,
        "cpus_at_start": allowed,
        "cpus_allowed": allowed,
        "given_ns": WALL,
        "used_cpu_ns": int(WALL * limit * chance.uniform(0.02, 0.8)),
        "cpu_quota_milli": quota,
        "cpu_quota_id": 7 if quota else 0,
        "cpu_periods": 1000 if quota else 0,
        "cpu_throttled_periods": chance.randrange(20) if quota else 0,
        "worker_cpus": chance.choice((0, allowed)),
        "worker_threads": chance.randrange(1, 5),
        "threads_intra": chance.randrange(1, max(2, int(limit))),
        "memory_at_ns": 1,
        "memory_of": chance.choice((0, GROUP, ABOVE)),
        "memory_limit_bytes": memory,
        "memory_used_bytes": int(memory * chance.uniform(0.05, 0.9)),
        "memory_peak_bytes": int(memory * 0.9),
        "refault_bytes": int(memory * chance.uniform(0, 0.2)),  # files of another time, such as a checkpoint's
        "shm_bytes": memory // 2,
        "shm_used_bytes": memory // 20,
        "loader_starts": chance.randrange(20),
    }
    return words, {"cpu_list": f"0-{allowed - 1}", "worker_cpu_list": f"0-{allowed - 1}"}


def test_nothing_is_advised_on_what_was_given_in_a_day_of_a_healthy_fleet(tmp_path: Path) -> None:
    """96 nodes, each looked at once in 24 hours."""
    chance = random.Random(24)
    for node in range(96):
        words, strings = healthy(chance)
        at = chance.uniform(0.0, 0.04)
        step = {"compute": 0.5, "data_read": at, "data_queue": at / 4, "compute_queue": at / 4}
        spec = Spec(run=f"r{node}", world_size=1, steps=STEPS, step=step, words=words, strings=strings)
        write(str(tmp_path), spec).close()
    ledgers, problems = read_directory(str(tmp_path), steps=True)
    assert (len(ledgers), problems) == (96, [])
    for ledger in ledgers:
        case = case_of(run_of(ledger), [ledger], time.monotonic_ns())
        assert not {one.id for one in advise(case)} & set(FIRST), sentences(case.given)
        for word in ("read again", "is full", "alone", "narrowed", "threads"):
            assert word not in " ".join(sentences(case.given))


def test_nothing_is_said_about_what_is_not_known(tmp_path: Path) -> None:
    assert given(tmp_path, {}).entry == {"cpus": [], "memory": [], "sentences": []}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("3", [3]),
        ("0-2,8", [0, 1, 2, 8]),
        ("0-99999999,x,5-", [5]),
        ("1-", [1]),
        ("4-11:2/4,1", [1, 4, 5, 8, 9]),
        ("0-3:1/0", []),
    ],
)
def test_reads_a_list_of_cpus(text: str, found: list[int]) -> None:
    assert cpus_in(text) == frozenset(found)


@pytest.mark.parametrize(
    ("used", "node", "why"),
    [
        (1.0, 2, "other programs use 1.0 of the 2 CPUs that the ranks may use"),
        (1.9, 2, "more threads run than CPUs that they may use"),
        (1.9, 64, "more threads run than CPUs that they may use, 2 of 64 (affinity)"),
    ],
)
def test_says_who_uses_the_cpus_for_which_the_training_queues(used: float, node: int, why: str, tmp_path: Path) -> None:
    words = CPUS | {"cpus_node": node, "cpus_allowed": 2, "cpus_at_start": 2, "used_cpu_ns": int(used * WALL)}
    words |= {"cpu_asked_ns": 2 * WALL, "cpu_queued_ns": 3 * SECOND}
    found = given(tmp_path, words, lists=("0-1",))
    [sentence] = [one for one in shortage.sentences(found.account) if "queued" in one]
    assert sentence.endswith(f"of the time: {why}"), sentence

"""The split of the wait for data: a table of ways to make a batch -> the cause that must have most of the wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support_forks import Forks

from whyidle.torch_hooks.splits import cpu_between
from whyidle.torch_hooks.tasks import WorkerClock

pytestmark = pytest.mark.xdist_group("machine")  # shares of time: no other test may use the CPU meanwhile

DOMINANT = {
    "sleeps": "data_read",
    "burns": "data_cpu",
    "sleeps_and_burns": "data_read",
    "compresses_in_threads": "data_cpu",
    "unpickles": "data_handoff",
    "sleeps:0": "data_read",
    "burns:0": "data_cpu",
    "collects:0": "data_read",
    "compresses_in_threads:0": "data_cpu",
    "once:spawn": "data_start",
    "once:forkserver": "data_start",
}
"""A name ends in `:0` if there are no workers and the loop makes its batches itself, and in a start method if not
`fork`. `once`: a loader of one batch, so that its worker starts for each."""


def waits(forks: Forks, folder: Path, *names: str, **env: str) -> dict[str, dict[str, int]]:
    done, _ = forks.run(("loaders.py", *names), folder, env=env, recorded=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[0])


def test_reports_the_workers_of_the_loader_that_the_loop_waits_for(tmp_path: Path, forks: Forks) -> None:
    """A training with a fast loader and without workers, which then waits for another loader with one worker."""
    done, _ = forks.run(("loaders.py", "ready:0", "sleeps", "ready:0"), tmp_path, recorded=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[1]) == [0, 1, 1]


@pytest.fixture(scope="module")
def waited(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Callable[[str], tuple[dict[str, int], int]]:
    """The wait of a kind, and for how long (ns) its samples have used the CPU by their own clock."""
    folder = tmp_path_factory.mktemp("loaders")
    table = waits(forks, folder, *DOMINANT)
    lines = [line.split() for line in (folder / "cpu").read_text().splitlines()]
    return lambda name: (table[name], sum(int(ns) for of, ns in lines if of == name))


def share(wait: dict[str, int], *causes: str) -> float:
    return sum(wait[cause] for cause in causes) / sum(wait.values())


@pytest.mark.parametrize(("name", "cause"), DOMINANT.items(), ids=DOMINANT.keys())
def test_most_of_a_wait_has_the_expected_cause(
    waited: Callable[[str], tuple[dict[str, int], int]], name: str, cause: str
) -> None:
    # What others leave of the CPUs decides what part of a wait is CPU time, so its seconds are compared. The rest
    # is not: a thread that waits for a CPU and has ended since looks blocked.
    wait, cpu = waited(name)
    if cause == "data_cpu":
        # While the loop takes a batch, the worker makes the next one, and nobody waits.
        assert 0.9 * cpu - 2 * wait["data_handoff"] - wait["data_queue"] < wait[cause] < 1.1 * cpu + 10_000_000, cpu
    elif cause == "data_handoff":
        assert wait[cause] > 0.9 * cpu > 0, cpu
    else:
        assert share(wait | {"data_queue": 0}, cause) > 0.6, wait


PROGRAM = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"


@pytest.mark.parametrize("words", ['"$0" -S -c "$1"', '"$0" -S -c "$1" | cat'], ids=["program", "pipe"])
def test_the_work_of_programs_is_that_of_the_worker_while_they_run_and_after_it(words: str) -> None:
    """As a `pipe:` of WebDataset, which is a command of a shell."""
    clock = WorkerClock(os.getpid())
    before = clock.read()
    command = ["sh", "-c", words, sys.executable, PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        during = clock.read()
    after = clock.read()
    assert before is not None
    assert during is not None
    assert after is not None
    for reading in (during, after):
        assert cpu_between(before, reading)[1] > 0.28e9
    clock.close()


def test_the_exit_of_workers_is_not_a_handoff(tmp_path: Path, forks: Forks) -> None:
    """Each worker needs 0.3 s to exit."""
    (wait,) = waits(forks, tmp_path, "lingers").values()
    assert wait["data_start"] > 0.25e9, wait
    assert share(wait, "data_handoff") < 0.3, wait


def test_workers_on_one_core_give_data_queue(tmp_path: Path, forks: Forks) -> None:
    """Four of them compute: each gets a quarter of the core, and waits for it for the rest of the time."""
    (wait,) = waits(forks, tmp_path, "crowded", ONE_CORE="1").values()
    assert share(wait, "data_queue") > 0.5, wait
    assert share(wait, "data_queue", "data_cpu") > 0.6, wait  # the loop also waits for its turn to take a batch


def test_direct_reads_give_data_read(tmp_path: Path, forks: Forks) -> None:
    with open(tmp_path / "file", "wb") as file:
        for _ in range(16):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.close(os.open(tmp_path / "file", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip(f"the file system of {tmp_path} has no O_DIRECT")
    (wait,) = waits(forks, tmp_path, "reads_directly").values()
    # The worker's own clocks are the truth: some disks answer so fast that the system calls take most of the time.
    blocked = sum(map(int, (tmp_path / "blocked").read_text().split()))
    # They run on while it queues for a CPU. While the loop takes a batch, it reads on, and nobody waits for that.
    least, most = 0.9 * blocked - wait["data_queue"] - 2 * wait["data_handoff"], 1.1 * blocked + 10_000_000
    assert least < wait["data_read"] < most, (wait, blocked)

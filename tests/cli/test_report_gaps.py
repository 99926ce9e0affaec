"""`whyidle report` asks the node's agent how long GPUs were idle in compute, and says so if no agent knows."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support_ledgers import DEADLINE_SECONDS, Spec, children, ended

from whyidle.cli import counters, gpu_guests
from whyidle.cli.exposition import Reading, read
from whyidle.cli.gaps import ask
from whyidle.ledger.clock import own_clock
from whyidle.ledger.directory import read_directory
from whyidle.verdict.gaps import Idle

BATCHES = {"batches": 100}
RANKS = [Spec(rank=rank, device=f"cuda:{rank}", steps=100, step={"compute": 0.1}, words=BATCHES) for rank in (0, 1)]
ANSWER = """\
# HELP whyidle_compute_idle_seconds_total Part of a rank's compute in which no kernel ran on its GPU.
# TYPE whyidle_compute_idle_seconds_total counter
whyidle_compute_idle_seconds_total{owner="lab",run="r1",rank="0",evidence="sampled"} 9.2
whyidle_compute_idle_seconds_total{owner="lab",run="r1",rank="1",evidence="sampled"} 99
whyidle_compute_idle_seconds_total{owner="other",run="r1",rank="1",evidence="sampled"} 1
whyidle_cpu_frequency_limit_ratio{governor="powersave",driver="acpi-cpufreq"} 0.4
whyidle_cpu_frequency_limit_ratio{governor="performance",driver="acpi-cpufreq"} 1
whyidle_node_info{node="n1"} 1
"""
COVERED = """\
whyidle_compute_idle_seconds_total{owner="lab",run="r1",rank="0",evidence="sampled"} %s
whyidle_compute_observed_seconds_total{owner="lab",run="r1",rank="0",source="gpm"} %s
"""
ADAPTERS = """\
whyidle_nic_info{device="eth0",kind="physical",rdma=""} 1
whyidle_nic_info{device="docker0",kind="virtual",rdma=""} 1
whyidle_nic_speed_bytes_per_second{device="eth0"} 12500000000
whyidle_nic_speed_bytes_per_second{device="docker0"} 12500000000
whyidle_nic_mtu_bytes{device="eth0"} 1500
whyidle_nic_mtu_bytes{device="docker0"} 1400
"""
GUESTS = """\
whyidle_gpu_other_busy_seconds_total{gpu="0",uuid="GPU-0",pid="41",uid="0"} 0.2
whyidle_gpu_other_busy_seconds_total{gpu="1",uuid="GPU-1",pid="42",uid="0"} 35
whyidle_gpu_other_busy_seconds_total{gpu="1",uuid="GPU-1",pid="43",uid="4000000"} 90
whyidle_gpu_other_busy_seconds_total{gpu="2",uuid="GPU-2",pid="44",uid="0"} 99
"""


@contextlib.contextmanager
def answers(text: str, asked: list[str] | None = None) -> Iterator[str]:
    """An agent with a fixed answer -> its address. ``asked`` receives the path of each request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if asked is not None:
                asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def report(folder: Path, agent: str, before: str = "") -> dict[str, Any]:
    """``before`` is a statement that runs first."""
    script = f"import sys; {before}\nfrom whyidle.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", script, "report", "--json", f"--dir={folder}", f"--agent={agent}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_gpu_that_its_own_counters_see_idle_is_not_compute(tmp_path: Path) -> None:
    ended(tmp_path, *RANKS)
    with answers(ANSWER) as agent:
        said = report(tmp_path, agent)
    assert said["verdict"]["family"] == "host"
    assert said["verdict"]["share"] == pytest.approx((9.2 + 10) / 20)
    assert [rank["gap_seconds"] for rank in said["per_rank"]] == [pytest.approx(9.2), pytest.approx(10)]
    assert sum(said["seconds"].values()) == pytest.approx(20), "what is moved is neither lost nor made"
    assert "ranks 0 and 1: 19.2 s between kernels" in " ".join(said["verdict"]["evidence"])
    assert said["verdict"]["evidence"][-1] == "CPUs of this node may reach 40 % of their frequency (governor powersave)"
    assert said["problems"] == []


def test_names_who_else_computes_on_the_gpu_of_a_rank(tmp_path: Path) -> None:
    ended(tmp_path, *RANKS)
    ledgers, _ = read_directory(str(tmp_path))
    own = [SimpleNamespace(strings=one.strings, rank=one.rank, visible_pid=42) for one in ledgers]
    with answers(GUESTS) as agent:
        reading = read(agent, *gpu_guests.NAMES)
        found = gpu_guests.of(reading, ledgers)
        assert report(tmp_path, agent)["gpu_guests"] == [], "of a run that has ended"
    assert [(one["rank"], one["pid"], one["seconds"]) for one in found] == [(1, 43, 90), (1, 42, 35)]
    assert "process 43 of user 4000000 has used the GPU of rank 1, too" in found[0]["sentence"]
    assert "of the user root" in found[1]["sentence"]
    assert not gpu_guests.of(Reading("", [one for one in reading.samples if one.labels["pid"] == "42"]), cast(Any, own))


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "has no data about the GPUs of this run"), (ANSWER.replace("} ", "} x"), "no agent answers")],
    ids=["nothing", "nonsense"],
)
def test_says_that_the_agent_does_not_know(text: str, why: str, tmp_path: Path) -> None:
    ended(tmp_path, *RANKS)
    with answers(text) as agent:
        said = report(tmp_path, agent)
    assert said["verdict"]["family"] == "compute"
    assert [rank["gap_seconds"] for rank in said["per_rank"]] == [None, None]
    (problem,) = said["problems"]
    assert why in problem
    assert "counts as compute" in problem


def test_says_that_there_is_no_agent(tmp_path: Path) -> None:
    ended(tmp_path, *RANKS)
    (problem,) = report(tmp_path, "127.0.0.1:1")["problems"]
    assert problem.startswith("no agent answers at 127.0.0.1:1 (Connection refused)")


def test_asks_no_agent_about_ranks_without_an_accelerator(tmp_path: Path) -> None:
    ended(tmp_path, Spec(steps=10, step={"compute": 0.1}))
    assert report(tmp_path, "127.0.0.1:1")["problems"] == []


def test_looks_of_a_rank_need_no_agent(tmp_path: Path) -> None:
    looked = Spec(device="cuda:0", steps=100, step={"compute": 0.1}, words=BATCHES | {"looks": 200, "empty_looks": 120})
    ended(tmp_path, looked)
    said = report(tmp_path, "127.0.0.1:1")
    assert (said["verdict"]["family"], said["verdict"]["share"]) == ("host", pytest.approx(0.6))
    assert said["verdict"]["summary"].startswith("the GPU runs out of work while the loop computes")
    (rank,) = said["per_rank"]
    assert (rank["gap_seconds"], rank["looks"]) == (pytest.approx(6), 200)
    assert rank["gap_error_seconds"] == pytest.approx(10 * (0.6 * 0.4 / 200) ** 0.5, rel=0.01)
    assert sum(said["seconds"].values()) == pytest.approx(10)
    assert "120 of 200 looks found its stream empty in compute" in " ".join(said["verdict"]["evidence"])
    assert said["problems"] == []


def test_names_the_line_at_which_the_loop_waits_for_its_gpu(tmp_path: Path) -> None:
    words = BATCHES | {"looks": 200, "empty_looks": 60, "busy_looks": 100, "line_looks": 80}
    ended(tmp_path, Spec(device="cuda:0", steps=100, step={"compute": 0.1}, words=words, line="train.py:57"))
    (sentence,) = [one for one in report(tmp_path, "127.0.0.1:1")["verdict"]["evidence"] if "train.py" in one]
    assert sentence.startswith("rank 0: the loop was at train.py:57 in 80 of 100 looks that found work on the GPU")


@pytest.mark.parametrize(("busy", "at", "named"), [(8, 8, True), (7, 7, False), (9, 8, False)])
def test_few_looks_name_a_line_if_all_found_the_loop_there(busy: int, at: int, named: bool, tmp_path: Path) -> None:
    words = BATCHES | {"looks": 200, "empty_looks": 60, "busy_looks": busy, "line_looks": at}
    ended(tmp_path, Spec(device="cuda:0", steps=100, step={"compute": 0.1}, words=words, line="train.py:57"))
    assert ("train.py:57" in " ".join(report(tmp_path, "127.0.0.1:1")["verdict"]["evidence"])) == named


def test_looks_are_compared_with_the_counters_of_the_gpu(tmp_path: Path) -> None:
    words = BATCHES | {"looks": 200, "empty_looks": 20}
    ended(tmp_path, Spec(device="cuda:0", steps=100, step={"compute": 0.1}, words=words))
    with answers(ANSWER) as agent:
        said = report(tmp_path, agent)
    assert said["per_rank"][0]["gap_seconds"] == pytest.approx(1)
    (sentence,) = [one for one in said["verdict"]["evidence"] if "The smaller one counts" in one]
    assert "counters show 9.2 s between kernels, and looks at its stream 1.0 s" in sentence


def test_counters_that_find_less_than_looks_count(tmp_path: Path) -> None:
    words = BATCHES | {"looks": 200, "empty_looks": 200}
    ended(tmp_path, Spec(device="cuda:0", steps=100, step={"compute": 0.1}, words=words))
    with answers(ANSWER) as agent:
        (rank,) = report(tmp_path, agent)["per_rank"]
    assert (rank["gap_seconds"], rank["gap_error_seconds"]) == (pytest.approx(9.2), None)


@pytest.mark.parametrize(
    ("idle", "covered", "empty", "gaps", "error"),
    [
        (9.2, 10, 20, 9.2, False),  # counters cover all: they decide, above the looks
        (1.0, 10, 180, 1.0, False),  # and below them
        (2.0, 5, 80, 2.0 + 2.0, True),  # looks stand for the half that counters do not cover
        (0.0, 0, 80, 0.0, False),  # a GPU without GPM: the smaller figure
        (99.0, 99, 20, 10.0, False),  # never more than the compute
    ],
)
def test_counters_decide_where_they_cover_compute(
    idle: float, covered: float, empty: int, gaps: float, error: bool, tmp_path: Path
) -> None:
    words = BATCHES | {"looks": 200, "empty_looks": empty}
    ended(tmp_path, Spec(device="cuda:0", steps=100, step={"compute": 0.1}, words=words))
    with answers(COVERED % (idle, covered)) as agent:
        said = report(tmp_path, agent)
    (rank,) = said["per_rank"]
    assert rank["gap_seconds"] == pytest.approx(gaps)
    assert (rank["gap_error_seconds"] is not None) == error
    assert sum(said["seconds"].values()) == pytest.approx(10)


def test_says_that_counters_decide_and_how_much_they_cover(tmp_path: Path) -> None:
    words = BATCHES | {"looks": 200, "empty_looks": 80}
    ended(tmp_path, Spec(device="cuda:0", steps=100, step={"compute": 0.1}, words=words))
    with answers(COVERED % (6.3, 9)) as agent:
        said = " ".join(report(tmp_path, agent)["verdict"]["evidence"])
    assert "6.7 s between kernels, in which the GPU's own counters show that nothing ran" in said
    assert "They cover 90 % of the compute; looks at its stream stand for the rest" in said
    assert "counters show 7.0 s between kernels, and looks at its stream 4.0 s. The counters count" in said


@pytest.mark.parametrize(("looks", "empty"), [(4, 4), (12, 5)])
def test_too_few_looks_say_nothing(looks: int, empty: int, tmp_path: Path) -> None:
    """Unless they agree, or leave a tenth of the time by three standard errors."""
    words = BATCHES | {"looks": looks, "empty_looks": empty}
    ended(tmp_path, Spec(device="cuda:0", steps=100, step={"compute": 0.1}, words=words))
    said = report(tmp_path, "127.0.0.1:1")
    assert said["per_rank"][0]["gap_seconds"] is None
    assert said["verdict"]["summary"].endswith("but too few looks asked whether the GPU had work in compute")


def test_other_runs_are_left_out() -> None:
    with answers(ANSWER) as agent:
        assert ask(agent, ("other", "r1")) == ({1: Idle(1.0)}, "")
        assert ask(agent, ("lab", "r2"))[0] == {}


def test_the_agent_is_asked_once_for_gpus_and_adapters(tmp_path: Path) -> None:
    asked: list[str] = []
    boot = own_clock().boot
    ranks = [
        Spec(rank=rank, world_size=4, device=f"cuda:{rank}", boot=boot, steps=100, step={"compute": 0.1})
        for rank in (0, 1)
    ]
    with children(tmp_path, *ranks), answers(ANSWER + ADAPTERS, asked) as agent:
        said = report(tmp_path, agent)
        assert asked == ["/metrics"]
        assert said["per_rank"][0]["gap_seconds"] == pytest.approx(9.2)
        ledgers, _ = read_directory(str(tmp_path), steps=True)
        known = counters.of_node(("lab", "r1"), ledgers, read(agent, *counters.NAMES))
        assert known.mtu == {"eth0": 1500}


def test_reports_without_the_extra_that_reads_an_agent(tmp_path: Path) -> None:
    ended(tmp_path, *RANKS)
    with answers(ANSWER) as agent:
        (problem,) = report(tmp_path, agent, "sys.modules['prometheus_client'] = None")["problems"]
    assert "cannot be asked without prometheus_client" in problem
    assert "pip install 'whyidle[agent]'" in problem

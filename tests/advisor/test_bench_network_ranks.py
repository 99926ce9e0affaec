"""`whyidle bench network` with real ranks: with limited links, under torchrun, and when something fails."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from parallel import links
from support_forks import Forked, Forks
from support_ledgers import Spec, ended
from support_quiet import wait_for_quiet
from support_sites import clean_env
from support_training import kill_all, meeting, pids_of, until

from whyidle.cli.bench.network import tools

SCRIPT = "bench_network.py"
ALL, SLOW = 100_000_000, 10_000_000  # bit/s
ATTEMPTS = 4


@pytest.fixture(scope="module")
def network() -> Iterator[None]:
    """Four network namespaces whose links have 100 Mbit/s."""
    if lacks := links.missing():
        pytest.skip(lacks)
    with links.network(), links.shaped(range(links.RANKS), ALL):
        yield


def bench(forks: Forks, ranks: int, folder: Path, *options: str) -> dict[str, Any]:
    """The report of ranks that each run in their own namespace."""
    env = {"MASTER_ADDR": links.address(0), "GLOO_SOCKET_IFNAME": links.INTERFACE}
    each = {
        rank: {"NAMESPACE": links.namespace(rank), "WHYIDLE_NODE": f"node{rank}", "LOCAL_RANK": "0"}
        for rank in range(ranks)
    }
    words = [SCRIPT, "bench", "network", "--json", "--size-time", "1ms", *options]
    outcome, codes = forks.run(words, folder, ranks, env, recorded=False, each=each)
    assert codes == [0] * ranks, outcome.stderr
    assert not outcome.left_behind
    return json.loads(outcome.stdout)


@pytest.mark.long
@pytest.mark.alone
def test_busbw_of_a_link_of_100_mbit_is_near_100_mbit(network: None, forks: Forks, tmp_path: Path) -> None:
    options = ("--operations", "all_reduce,broadcast", "--sizes", "4MB", "--link", "100Mbit/s", "--pairs", "none")
    found: dict[str, Any] = {}
    for attempt in range(ATTEMPTS):
        wait_for_quiet()
        found = bench(forks, 2, tmp_path / f"two-{attempt}", *options, "--size-time", "2s")  # five calls
        # Who else takes the cores takes time from some calls, and in a busy minute from all of an attempt.
        if all(row["link_share"] * row["seconds"] > 0.85 * row["least_seconds"] for row in found["collectives"]):
            break
    assert [node["name"] for node in found["nodes"]] == ["node0", "node1"]
    for row in found["collectives"]:
        best = row["seconds"] / row["least_seconds"]  # other programs on the cores disturb some blocks, not all
        assert 8 * row["busbw_bytes_per_second"] * best == pytest.approx(ALL, rel=0.15)
        assert row["link_share"] * best == pytest.approx(1, abs=0.15)
        assert 8 * row["busbw_bytes_per_second"] < 1.05 * ALL
        assert row["checked"]
        assert not row["wrong_ranks"]
    if not shutil.which("iperf3"):
        pytest.skip("needs iperf3, to compare with what it says")
    (tool,) = [row for row in found["tools"] if row["tool"] == tools.IPERF]
    assert 0.3 * ALL < 8 * tool["bytes_per_second"] < 1.05 * ALL  # its mean: others may take the cores meanwhile


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("slow", [(), (1, 2)], ids=["healthy", "one-slow-link"])
def test_names_the_slow_link_among_four_nodes(
    network: None, forks: Forks, tmp_path: Path, slow: tuple[int, int] | tuple[()]
) -> None:
    with links.slow_cable(slow, SLOW) if slow else contextlib.nullcontext():
        found = bench(forks, 4, tmp_path / "four", "--operations", "broadcast", "--sizes", "1kB", "--no-tools")
    pairs = found["pairs"]
    assert (pairs["measured"], pairs["rounds"]) == (6, 3)
    assert pairs["slow_nodes"] == []
    assert [(link["one"], link["other"]) for link in pairs["slow_links"]] == ([("node1", "node2")] if slow else [])
    for link in pairs["slow_links"]:
        assert 8 * link["there_bytes_per_second"] == pytest.approx(SLOW, rel=0.15)


def test_names_the_ranks_that_did_not_join(forks: Forks, tmp_path: Path) -> None:
    words = [SCRIPT, "bench", "network", "--join-timeout", "500ms"]
    env = meeting_of(3) | {"RANK": "0"}
    with forks.training(words, tmp_path / "alone", env) as rank:
        assert rank.wait() == 1
    said = (tmp_path / "alone" / "stderr").read_text()
    assert "whyidle bench network: 2 of 3 ranks have not connected within 0.5 s: ranks 1, 2\n" in said


def meeting_of(ranks: int) -> dict[str, str]:
    return meeting(ranks) | {"WHYIDLE": "0", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize(
    ("number", "victim", "statuses", "sentence"),
    [
        (signal.SIGKILL, 1, [1, -9], "another rank is gone, or cannot be reached"),
        (signal.SIGTERM, 0, [143, 1], "ended by SIGTERM"),
        (signal.SIGINT, 0, [130, 1], "ended by SIGINT"),
    ],
)
def test_a_rank_that_ends_early_ends_the_others(
    number: signal.Signals, victim: int, statuses: list[int], sentence: str, forks: Forks, tmp_path: Path
) -> None:
    def end(ranks: list[Forked]) -> None:
        assert until(lambda: "all_reduce" in (tmp_path / "two" / "stderr").read_text())
        ranks[victim].send_signal(number)

    words = [SCRIPT, "bench", "network", "--size-time", "600s", "--time", "600s"]
    env = meeting_of(2)
    outcome, codes = forks.run(words, tmp_path / "two", 2, env, recorded=False, meanwhile=end)
    assert codes == statuses
    assert f": {sentence}" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert not outcome.left_behind


def test_runs_under_torchrun(forks: Forks, tmp_path: Path) -> None:
    launcher = ["--standalone", "--nproc-per-node=2", "-m", "whyidle"]
    options = ["--sizes", "64kB", "--size-time", "10ms", "--pair-time", "10ms", "--json"]
    words = [SCRIPT, *launcher, "bench", "network", *options]
    outcome, codes = forks.run(words, tmp_path / "two", env={"TORCHRUN": "1", "WHYIDLE": "0"}, recorded=False)
    assert codes == [0], outcome.stderr
    assert not outcome.left_behind
    found = json.loads(outcome.stdout)
    assert (found["ranks"], len(found["nodes"]), found["pairs"]["measured"]) == (2, 1, 1)
    rows = {row["op"]: row for row in found["collectives"]}
    assert list(rows) == ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
    assert all(row["checked"] and not row["wrong_ranks"] for row in rows.values())


@pytest.mark.parametrize(
    ("options", "env", "sentence"),
    [
        ([], {}, "RANK is not set, so no launcher started this"),
        (["--ranks", "1"], {}, "one rank has no rank to send to"),
        (
            ["--ranks", "3"],
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
            "--ranks 3 does not match the launcher",
        ),
        (["--sizes", "large"], {}, "'large' must be a size"),
        (["--timeout", "0"], {}, "must be at least 1ms"),
    ],
)
def test_reports_a_failed_start_in_a_sentence(
    options: list[str], env: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from whyidle.cli.main import main

    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    try:
        status = main(["bench", "network", *options])
    except SystemExit as error:  # the status of argparse
        status = error.code
    assert status == 2
    assert sentence in capsys.readouterr().err


LAUNCHER = """
import sys
from whyidle.cli.bench.network import local
sys.exit(local.run(["ranks"], 3, lambda sentence: print(sentence, flush=True)))
"""
RANKS = """
import os, pathlib, time
pathlib.Path(os.environ["RANK"]).touch()
time.sleep(600 if os.environ["WORLD_SIZE"] == "3" else 0)
"""


@pytest.mark.parametrize(
    ("number", "of_rank", "status", "sentence"),
    [
        (signal.SIGTERM, False, 143, "stopped by SIGTERM"),
        (signal.SIGINT, False, 130, "stopped by SIGINT"),
        (signal.SIGKILL, False, -9, ""),
        (signal.SIGKILL, True, 137, "was ended by SIGKILL: the other ranks are ended too"),
    ],
)
def test_no_rank_outlives_the_command(
    number: signal.Signals, of_rank: bool, status: int, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    env = clean_env(TRAINING_TEST_TAG=str(tmp_path))
    command = [sys.executable, "-c", LAUNCHER]
    with subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert until(lambda: all((tmp_path / str(rank)).exists() for rank in range(3)))
            others = [pid for pid in pids_of(tmp_path) if pid != process.pid]
            os.kill(others[0] if of_rank else process.pid, number)
            assert process.wait(60) == status
            assert until(lambda: not pids_of(tmp_path))
            assert process.stdout is not None
            assert sentence in process.stdout.read()
        finally:
            kill_all(tmp_path)


def test_reports_a_missing_run_in_a_sentence(forks: Forks, tmp_path: Path) -> None:
    words = [SCRIPT, "bench", "network", "--run", "none-such"]
    outcome, codes = forks.run(words, tmp_path / "two", 2, meeting_of(2), recorded=False)
    assert codes == [1, 1]
    assert "no ledger of run none-such" in outcome.stderr
    assert "there is no run to compare with" in outcome.stderr


def test_measures_the_groups_of_a_job_at_the_sizes_of_its_calls(forks: Forks, tmp_path: Path) -> None:
    ranks = [
        Spec(
            rank=rank,
            run="mesh",
            world_size=4,
            steps=10,
            step={"compute": 0.1},
            slots=[{}, {"network_ns": 10**9, "waited_ns": 10**9}],
            handed=[("dp", 7 + rank % 2, 2, {"all_reduce": 10 * 48_000})],
            words={"collective_calls": 10},  # of the first operation, all-reduce
        )
        for rank in range(4)
    ]
    ended(tmp_path / "ledgers", *ranks)
    words = [SCRIPT, "bench", "network", "--json", "--sizes", "1kB", "--size-time", "1ms", "--pairs", "none"]
    words += ["--operations", "all_reduce", "--run", "mesh", "--dir", str(tmp_path / "ledgers")]
    outcome, codes = forks.run(words, tmp_path / "four", 4, meeting_of(4), recorded=False)
    assert codes == [0] * 4, outcome.stderr
    found = json.loads(outcome.stdout)
    rows = [(row["label"], row["ranks"], row["size_bytes"], row["wrong_ranks"]) for row in found["collectives"]]
    assert rows == [("world", 4, 1000, []), ("world", 4, 48000, []), ("dp", 2, 48000, [])]
    (group,) = found["job"]["groups"]
    (use,) = group["operations"]
    assert (use["bench_ranks"], use["bench_size_bytes"], use["call_bytes"]) == (2, 48000, 48000)
    assert group["job_step_seconds"] == pytest.approx(0.1)
    assert group["job_share"] == pytest.approx(group["bench_step_seconds"] / 0.1)

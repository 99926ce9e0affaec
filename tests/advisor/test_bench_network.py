"""The calculations of `whyidle bench network`: factors, schedules, which link is slow, and what a job reaches."""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_ledgers import Spec, ended

from whyidle.advisor.bench.network import job, operations, pairs, timing
from whyidle.agent.files import Roots
from whyidle.cli.bench.network import places, report, sizes, text, tools
from whyidle.cli.bench.network.start import BenchError, started
from whyidle.ledger.directory import read_directory


@pytest.mark.parametrize(
    ("op", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("all_to_all", 0.875), ("broadcast", 1.0)],
)
def test_busbw_has_the_factors_of_nccl_tests(op: str, factor: float) -> None:
    assert operations.busbw(op, 8, 4e9, 2.0) == factor * 2e9


def test_sizes_are_rounded_to_whole_parts_of_all_ranks() -> None:
    assert operations.elements("all_reduce", 1000, 3, 4) == 250
    assert operations.elements("all_gather", 1000, 3, 4) == 249
    assert operations.elements("all_to_all", 1, 3, 4) == 3


@pytest.mark.parametrize(
    ("backend", "op", "groups", "bytes_out"),
    [
        ("nccl", "all_reduce", [[0, 1]], 1e6),
        ("nccl", "all_reduce", [[0, 0, 1, 1]], 1.5e6),  # in a ring, data leaves each node once
        ("nccl", "all_reduce", [[0, 1], [0, 1]], 2e6),  # two groups share the links of the node
        ("nccl", "all_reduce", [[0, 0]], 0.0),
        ("gloo", "reduce_scatter", [[0, 1]], 1e6),  # gloo reduces all data on all ranks
        ("gloo", "broadcast", [[0, 1, 2, 3]], 2e6),  # gloo's tree: the root sends twice
        ("nccl", "broadcast", [[0, 1, 2, 3]], 1e6),
    ],
)
def test_least_time_is_set_by_the_traffic_of_the_busiest_node(
    backend: str, op: str, groups: list[list[int]], bytes_out: float
) -> None:
    assert operations.least_seconds(backend, op, 1e6, groups, 1e6) == pytest.approx(bytes_out / 1e6)


@given(st.floats(1e-7, 100), st.floats(1e-3, 100), st.integers(1, 9))
def test_each_size_runs_for_its_time_or_one_call(one_call: float, budget: float, blocks: int) -> None:
    found, calls = timing.plan(one_call, budget, blocks)
    assert 1 <= found <= blocks
    assert 1 <= calls <= timing.MOST_CALLS
    assert found * calls * one_call <= max(budget, one_call) * (1 + 1e-9)


def test_the_slowest_rank_counts() -> None:
    found = timing.timing_of([[2.0, 4.0, 2.0], [1.0, 1.0, 8.0], [6.0, 6.0, 6.0]], calls=2)
    assert (found.seconds, found.least, found.most, found.slowest) == (3.0, 3.0, 4.0, 2)
    assert found.mean == pytest.approx(11 / 6)


@pytest.mark.parametrize("count", range(2, 18))
def test_rounds_have_each_pair_once_and_each_node_once_per_round(count: int) -> None:
    schedule = list(pairs.rounds(count))
    met = [pair for found in schedule for pair in found]
    assert sorted(met) == list(itertools.combinations(range(count), 2))
    assert len(met) == pairs.number_of_pairs(count)
    assert len(schedule) == (count - 1 if count % 2 == 0 else count)
    assert all(len({*itertools.chain(*found)}) == 2 * len(found) for found in schedule)
    assert [pair for (pair,) in pairs.one_at_a_time(count)] == met


def measured(count: int, slow: Sequence[int] = (), links: Sequence[pairs.Pair] = (), rounds: int = 99) -> dict:
    """Values of 100 ± 3, and a tenth of that with a slow node and over a slow link."""
    noise = random.Random(count)
    listed = itertools.chain(*itertools.islice(pairs.rounds(count), rounds))
    return {
        pair: noise.gauss(100, 3) * (0.1 if pair in links or not {*slow}.isdisjoint(pair) else 1.0) for pair in listed
    }


@pytest.mark.parametrize(
    ("count", "slow", "links"),
    [
        (4, [], []),
        (3, [], [(0, 1)]),
        (3, [2], []),
        (4, [], [(1, 2)]),
        (4, [3], []),
        (6, [0], [(1, 2)]),
        (8, [1, 5, 6], []),
        (32, [], []),
        (32, [7], [(0, 1), (2, 30)]),
    ],
)
def test_names_the_slow_node_or_link_and_no_other(count: int, slow: list[int], links: list[pairs.Pair]) -> None:
    found = pairs.judge(measured(count, slow, links))
    assert found is not None
    assert ([*found.nodes], [*found.links]) == (slow, links)
    assert found.usual == pytest.approx(100, rel=0.1)


def test_a_few_rounds_of_many_nodes_find_a_slow_node() -> None:
    found = pairs.judge(measured(200, slow=[123], rounds=5))
    assert found is not None
    assert ([*found.nodes], [*found.links]) == ([123], [])


def test_names_no_node_or_link_after_a_single_pair() -> None:
    assert pairs.judge({(0, 1): 5.0}) is None


@given(st.integers(3, 12), st.integers(0, 1000))
def test_names_no_node_or_link_for_noise_of_a_few_percent(count: int, seed: int) -> None:
    noise = random.Random(seed)
    rates = {pair: 100 * noise.uniform(0.94, 1.06) for pair in itertools.combinations(range(count), 2)}
    found = pairs.judge(rates)
    assert found is not None
    assert not found.nodes
    assert not found.links


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("64kB", (64000,)),
        ("25MiB,1000", (1000, 25 << 20)),
        ("1kB..16kB", (1000, 4000, 16000)),
        ("1k..5k", (1000, 4000, 5000)),
    ],
)
def test_reads_sizes(given_text: str, expected: tuple[int, ...]) -> None:
    assert sizes.sizes(given_text) == expected


@pytest.mark.parametrize("nonsense", ["", "0", "-4MB", "4 parsecs", "9999GB", "4MB..1MB", "nan", "1e999"])
def test_rejects_nonsense_sizes(nonsense: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        sizes.sizes(nonsense)


def test_rejects_an_unknown_operation() -> None:
    assert sizes.operations("all-reduce,broadcast") == ("all_reduce", "broadcast")
    with pytest.raises(argparse.ArgumentTypeError, match="'gossip' is not an operation"):
        sizes.operations("all_reduce,gossip")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE must be"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK must be a whole number from 0 to 1, not 'x'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK must be"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "no rank to send to"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "0"}, "MASTER_PORT must be"),
    ],
)
def test_says_what_is_wrong_with_the_launchers_variables(env: dict[str, str], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        started(env)
    assert started({}) is None


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("", ["mlx5_0:1", "mlx5_1:1", "mlx5_10:1"]),
        ("mlx5_1", ["mlx5_1:1", "mlx5_10:1"]),
        ("=mlx5_1", ["mlx5_1:1"]),
        ("^mlx5_1", ["mlx5_0:1"]),
        ("^=mlx5_1:1", ["mlx5_0:1", "mlx5_10:1"]),
        ("mlx5_0:2", []),
    ],
)
def test_counts_the_adapters_that_nccl_may_use(chosen: str, expected: list[str], tmp_path: Path) -> None:
    roots = Roots(str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path))
    for device, state in (
        ("mlx5_0", "4: ACTIVE"),
        ("mlx5_1", "4: ACTIVE"),
        ("mlx5_10", "4: ACTIVE"),
        ("mlx5_2", "1: DOWN"),
    ):
        folder = tmp_path / "sys/class/infiniband" / device / "ports/1"
        folder.mkdir(parents=True)
        (folder / "state").write_text(state + "\n")
        (folder / "rate").write_text("400 Gb/sec (4X NDR)\n")
    found = places.way_out("nccl", {"NCCL_IB_HCA": chosen, "NCCL_SOCKET_IFNAME": "none"}, "", roots)
    assert found == places.Way(", ".join(expected), 50e9 * len(expected) if expected else None)
    plain = places.way_out("nccl", {"NCCL_IB_DISABLE": "1"}, "", roots)
    assert plain == places.Way("", None)


def test_nodes_of_one_name_are_distinguished_by_address() -> None:
    listed = [places.Place("pod", key, f"10.0.0.{key}") for key in "1122"]
    nodes = places.nodes_of(listed)
    assert nodes == [[0, 1], [2, 3]]
    assert places.labels_of(listed, nodes) == ["pod 10.0.0.1", "pod 10.0.0.2"]


IPERF = '{"end": {"sum_received": {"bits_per_second": 8e8}}}'
# The table that perftest 4.5 prints with --report_gbits.
WRITE = """
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      748700           0.00               196.27 		   0.374352
"""


@pytest.mark.parametrize(("tool", "printed", "rate"), [("iperf3", IPERF, 1e8), ("ib_write_bw", WRITE, 196.27e9 / 8)])
def test_reads_what_other_tools_print(tool: str, printed: str, rate: float) -> None:
    assert tools.rate_of(tool, printed) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("tool", "printed"),
    [
        ("iperf3", '{"error": "unable to connect"}'),
        ("iperf3", "{}"),
        ("iperf3", ""),
        ("ib_write_bw", "No IB devices found"),
    ],
)
def test_says_why_a_tool_has_no_result(tool: str, printed: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        tools.rate_of(tool, printed)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[job.Record]:
    """Two data-parallel groups of two, and the world of four.

    Both groups use all-reduce. Only the world uses all-gather.
    """
    folder = tmp_path_factory.mktemp("ledgers")
    ranks = [
        Spec(
            rank=rank,
            run="mesh",
            world_size=4,
            steps=10,
            step={"compute": 0.1},
            slots=[
                {},
                {"calls": 20, "network_ns": 300_000_000, "queue_ns": 100_000_000, "waited_ns": 500_000_000},
                {"network_ns": 100_000_000, "unsplit_ns": 100_000_000, "waited_ns": 200_000_000},
            ],
            handed=[
                ("dp", 7 + rank % 2, 2, {"all_reduce": 20 * (40 << 20)}),
                ("world", 9, 4, {"all_reduce": 1000, "all_gather": 8000, "gather": 5}),
                ("stages p2p", 11, 4, {"send": 100}),
            ],
        )
        for rank in range(4)
    ]
    ended(folder, *ranks)
    found, problems = read_directory(str(folder), steps=True)
    assert not problems
    return job.records_of(found)


def row_of(label: str, ranks: int, busbw: float) -> dict[str, object]:
    what = {"label": label, "op": "all_reduce", "ranks": ranks}
    return {**what, "size_bytes": 25 << 20, "busbw_bytes_per_second": busbw}


def test_finds_the_groups_and_sizes_of_a_job_in_its_ledgers(records: list[job.Record]) -> None:
    dp, world = job.groups_of(records)
    assert (dp.label, dp.size, dp.members, dp.complete) == ("dp", 2, ((0, 2), (1, 3)), True)
    assert dp.uses == (job.Use("all_reduce", 2 * (40 << 20), 40 << 20),)
    assert [use.op for use in world.uses] == ["all_gather", "all_reduce"]
    assert world.uses[1].call_bytes is None  # its calls are counted together with those of the other group
    # One call in the ledger is a whole backward pass, which DDP sends in buckets.
    assert job.sizes_of([dp], bucket=25 << 20, most=1 << 30) == {"all_reduce": [25 << 20]}
    assert job.sizes_of([dp], bucket=25 << 20, most=1 << 20) == {"all_reduce": [1 << 20]}


def test_says_what_share_of_the_network_a_job_reaches(records: list[job.Record]) -> None:
    dp, world = job.groups_of(records)
    assert dp.waited == pytest.approx(0.04)
    assert dp.busbw() == pytest.approx(2 * (40 << 20) / 0.04)
    assert world.busbw() is None  # half of its waits are unsplit
    row = row_of("dp", 2, 4 * 2**30)
    found = report.of_job("lab/mesh", [dp, world], [row])
    together, other = found["groups"]
    assert together["bench_step_seconds"] == pytest.approx(80 / 4096)
    assert together["job_share"] == pytest.approx(80 / 4096 / 0.04)
    assert other["job_share"] is None
    assert other["bench_step_seconds"] is None
    said = " ".join(" ".join(text._job(found)).split())
    assert "its transfers reach 49 % of the speed of this network" in said
    assert "50 % unsplit" in said


@pytest.mark.parametrize(
    ("busbw", "sentence"),
    [(2**31, "its transfers are as fast as this network allows"), (2**30, "hides a part of them behind compute")],
)
def test_says_if_a_job_is_as_fast_as_the_bench_or_hides_its_transfers(
    busbw: float, sentence: str, records: list[job.Record]
) -> None:
    dp, _ = job.groups_of(records)
    found = report.of_job("lab/mesh", [dp], [row_of("world", 4, busbw)])
    assert sentence in " ".join(" ".join(text._job(found)).split())

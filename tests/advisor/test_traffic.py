"""The traffic model: the bytes of collectives, the bytes of a training's shape, and the comparison with ledgers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support_ledgers import Spec, ended

from whyidle.advisor.traffic import published
from whyidle.advisor.traffic.collectives import OPS, WAYS, sent
from whyidle.advisor.traffic.measured import NotMeasured, measure
from whyidle.advisor.traffic.prediction import predict
from whyidle.advisor.traffic.recognised import NotRecognised, shape_of
from whyidle.advisor.traffic.shape import BACKWARD, FORWARD, Model, Parallel, ShapeError, calls
from whyidle.cli.exposition import samples
from whyidle.cli.main import main
from whyidle.cli.traffic.live import counted
from whyidle.ledger.directory import read_directory

LLAMA = Model(parameters=70e9, batches=published.BATCHES, tokens=156e9, layers=80, hidden=8192)
GROUP = 8


# -- one collective


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("op", OPS)
def test_placement_of_ranks_does_not_change_total_traffic(way: str, op: str) -> None:
    totals = [sum(map(sum, sent(way, op, 840.0, members))) for members in ((8,), (4, 4), (5, 2, 1), (1,) * 8)]
    assert totals == pytest.approx([totals[0]] * 4)
    assert sent(way, op, 840.0, (1,)) == [(0.0, 0.0)]
    assert all(across == 0.0 for _, across in sent(way, op, 840.0, (8,)))
    assert all(inside == 0.0 for inside, _ in sent(way, op, 840.0, (1,) * 8))


@pytest.mark.parametrize(
    ("way", "op", "moved"),
    [
        ("ring", "all_reduce", 2 * 7),
        ("tree", "all_reduce", 2 * 7),
        ("gloo", "all_reduce", 2 * 7),
        ("mesh", "all_reduce", 8 * 7),
        ("ring", "all_gather", 7),
        ("ring", "reduce_scatter", 7),
        ("gloo", "reduce_scatter", 2 * 7),
        ("mesh", "reduce_scatter", 7),
        ("ring", "all_to_all", 7),
        ("ring", "broadcast", 7),
    ],
)
def test_eight_ranks_move_the_published_multiple_of_the_size(way: str, op: str, moved: float) -> None:
    assert sum(map(sum, sent(way, op, 1.0, (4, 4)))) == pytest.approx(moved)


def test_a_ring_leaves_each_node_once() -> None:
    assert sent("ring", "all_reduce", 1.0, (4, 4)) == [(3 * 1.75, 1.75)] * 2


# -- a shape


@pytest.mark.parametrize(
    ("parallel", "moment", "op", "moved"),
    [
        (Parallel(data=GROUP), BACKWARD, "all_reduce", published.data_parallel(GROUP)),
        (Parallel(shard=GROUP), FORWARD, "all_gather", published.fully_sharded(GROUP)),
        (Parallel(shard=GROUP), BACKWARD, "reduce_scatter", published.fully_sharded(GROUP)),
        (Parallel(tensor=GROUP), FORWARD, "all_reduce", published.tensor_forward(GROUP)),
        (Parallel(pipeline=GROUP), FORWARD, "send", published.pipeline(GROUP)),
        (Parallel(pipeline=GROUP), BACKWARD, "send", published.pipeline(GROUP)),
    ],
)
def test_a_full_mesh_moves_what_the_published_formulas_say(
    parallel: Parallel, moment: str, op: str, moved: float
) -> None:
    found = predict(LLAMA, parallel, 8, "mesh")
    rows = [row for row in found.rows if (row.calls.moment, row.calls.op) == (moment, op)]
    assert sum(row.total for row in rows) * LLAMA.batches == pytest.approx(moved)


def test_a_mesh_of_three_dimensions_moves_what_the_published_formula_says_forward() -> None:
    found = predict(LLAMA, Parallel(tensor=8, pipeline=8, data=16), 8, "mesh")
    moved = sum(row.total for row in found.rows if row.calls.moment == FORWARD) * LLAMA.batches
    handed_on = published.pipeline(8)
    # Here each tensor-parallel rank sends all activations of its stage. The source counts them once.
    assert moved - 8 * handed_on == pytest.approx(published.mesh_forward(8, 8) - handed_on)


def test_gpus_of_a_node_keep_tensor_parallelism_inside_it() -> None:
    found = predict(LLAMA, Parallel(tensor=8, pipeline=8, data=16), 8, "ring")
    across = {row.calls.dimension for row in found.rows if row.across}
    inside = {row.calls.dimension for row in found.rows if row.inside}
    assert (inside, across) == ({"tensor"}, {"data", "pipeline"})
    # 64 ranks of tensor × pipeline share the gradients. 7 of 8 stages send activations, and 7 get gradients.
    gradients = 2 * 15 / 16 * 140e9 / 64 * 8
    tokens = 156e9 / published.BATCHES / 16 * 8192 * 2 * 8
    assert found.node_across == pytest.approx(gradients + 2 * tokens)


def test_transfer_time_depends_on_number_and_speed_of_links() -> None:
    found = predict(Model(parameters=1e9, batches=1, element=4), Parallel(data=2), 1, "ring")
    assert found.node_across == pytest.approx(4e9)
    assert found.seconds(1e9, links=1) == pytest.approx(4.0)
    assert found.seconds(1e9, links=4) == pytest.approx(1.0)
    assert found.link_for(2.0, links=1) == pytest.approx(2e9)
    inside = predict(Model(parameters=1e9, batches=1, element=4), Parallel(data=2), 2, "ring")
    assert (inside.node_across, inside.seconds(1e9, 1)) == (0.0, 0.0)
    assert inside.seconds(1e9, 1, inside_link=1e9) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("parallel", "times"),
    [
        (Parallel(data=2, shard=8, microbatches=4), {"all_reduce": 4, "reduce_scatter": 4, "all_gather": 8}),
        (Parallel(shard=8, zero=2, microbatches=4), {"reduce_scatter": 4, "all_gather": 1}),
        (Parallel(shard=8, zero=1, microbatches=4), {"reduce_scatter": 1, "all_gather": 1}),
        (Parallel(data=8, microbatches=4), {"all_reduce": 1}),
    ],
)
def test_what_is_reduced_in_each_microbatch(parallel: Parallel, times: dict[str, int]) -> None:
    found: dict[str, float] = {}
    for one in calls(Model(parameters=1e9, batches=1), parallel):
        found[one.op] = found.get(one.op, 0.0) + one.times
    assert found == times


def test_parameters_of_experts_that_are_not_distributed_are_as_all_others() -> None:
    shape = Parallel(data=2, shard=8)
    with_experts = Model(parameters=8e9, batches=1, expert_parameters=6e9)
    assert [*calls(with_experts, shape)] == [*calls(Model(parameters=8e9, batches=1), shape)]


@pytest.mark.parametrize(
    ("model", "parallel", "said"),
    [
        (Model(parameters=0, batches=1), Parallel(), "parameters"),
        (Model(parameters=1, batches=0), Parallel(), "at least one step"),
        (Model(parameters=1, batches=1), Parallel(tensor=2), "--tokens"),
        (Model(parameters=1, batches=1), Parallel(data=1 << 20, shard=2), "2,097,152 ranks"),
        (Model(parameters=1, batches=1, tokens=1, hidden=1), Parallel(tensor=2), "--layers"),
        (Model(parameters=1, batches=1, tokens=1, hidden=1, layers=1), Parallel(data=2, expert=2), "--expert-param"),
        (
            Model(parameters=2, batches=1, tokens=1, hidden=1, layers=1, expert_parameters=1),
            Parallel(data=3, expert=2),
            "cannot be divided",
        ),
    ],
)
def test_rejects_an_incomplete_shape(model: Model, parallel: Parallel, said: str) -> None:
    with pytest.raises(ShapeError, match=said):
        predict(model, parallel, 8, "ring")


# -- what the ledgers contain


def run_of_four(node_of: dict[int, str], steps: int = 10) -> list[Spec]:
    """TP 2 × DP 2: ranks 0 and 1 are a tensor group, ranks 0 and 2 a data group."""
    return [
        Spec(
            rank=rank,
            run="meshed",
            world_size=4,
            node=node_of[rank],
            steps=steps,
            step={"compute": 0.5},
            handed=[
                ("tp", 101 + 2 * (rank // 2), 2, {"all_reduce": 4000}),
                ("dp", 201 + 2 * (rank % 2), 2, {"all_reduce": 1000}),
            ],
        )
        for rank in range(4)
    ]


TWO_NODES = {0: "a", 1: "a", 2: "b", 3: "b"}


def test_recorded_bytes_are_placed_on_the_nodes_of_the_ranks(tmp_path: Path) -> None:
    ended(tmp_path, *run_of_four(TWO_NODES))
    moved = measure(read_directory(str(tmp_path), steps=True)[0], (), "ring")
    assert {group.label: (group.inside, group.across) for group in moved.groups} == {
        "tp": (4 * 400, 0.0),
        "dp": (0.0, 4 * 100),
    }
    assert moved.node_across == {"a": 200.0, "b": 200.0}
    assert moved.seconds == pytest.approx(0.5)
    shape, labels = shape_of(moved.groups, moved.world_size)
    assert shape == Parallel(tensor=2, data=2)
    assert labels == {"tp": "tensor", "dp": "data"}


def test_a_rank_without_a_ledger_is_on_another_node(tmp_path: Path) -> None:
    ended(tmp_path, *run_of_four(dict.fromkeys(range(4), "a"))[:3])
    moved = measure(read_directory(str(tmp_path), steps=True)[0], (), "ring")
    # One rank of rank 2's tensor group and of rank 1's data group is on another node.
    assert {group.label: (group.inside, group.across) for group in moved.groups} == {
        "tp": (2 * 400, 400),
        "dp": (2 * 100, 100),
    }


def test_counts_only_the_bytes_between_two_readings(tmp_path: Path) -> None:
    ended(tmp_path, *run_of_four(TWO_NODES))
    after = read_directory(str(tmp_path), steps=True)[0]
    counters = ("slot_op_bytes", "collective_bytes", "step_ns")
    # The first four of the ten steps, which moved less than the others.
    words = [{name: tuple(value // 4 for value in one.words[name]) for name in counters} for one in after]
    before = [
        replace(one, words={**one.words, **earlier, "steps": (4,)}) for one, earlier in zip(after, words, strict=True)
    ]
    moved = measure(after, before, "ring")
    assert (moved.steps, moved.since_start) == (6, False)
    assert {group.label: group.handed["all_reduce"] for group in moved.groups} == {"tp": 500, "dp": 125}
    assert moved.elsewhere == 0
    restarted = [replace(one, words={**one.words, "pid": (1,)}) for one in before]
    with pytest.raises(NotMeasured, match="restarted during"):
        measure(after, restarted, "ring")


@pytest.mark.parametrize(
    ("nodes", "inside", "across", "unknown"),
    [("aaa", 300, 0, 0), ("abc", 0, 300, 0), ("aab", 0, 0, 300)],
)
def test_messages_between_stages_are_counted_where_they_are_sent(
    nodes: str, inside: float, across: float, unknown: float, tmp_path: Path
) -> None:
    handed = [("world p2p", 77, 3, {"send": 1000, "recv": 2000})]
    specs = [
        Spec(rank=rank, world_size=3, node=node, steps=10, step={"compute": 0.5}, handed=handed)
        for rank, node in enumerate(nodes)
    ]
    ended(tmp_path, *specs)
    moved = measure(read_directory(str(tmp_path), steps=True)[0], (), "ring")
    (group,) = moved.groups
    assert (group.inside, group.across, group.unknown) == (inside, across, unknown)
    shape, _ = shape_of(moved.groups, moved.world_size)
    assert shape == Parallel(pipeline=3)


def test_says_that_steps_or_shape_are_missing(tmp_path: Path) -> None:
    ended(tmp_path, *run_of_four(TWO_NODES, steps=0))
    ledgers = read_directory(str(tmp_path), steps=True)[0]
    with pytest.raises(NotMeasured, match="rank 0, 1, 2, 3 has not finished a step yet"):
        measure(ledgers, (), "ring")
    with pytest.raises(NotMeasured, match="no rank"):
        measure([], (), "ring")
    with pytest.raises(NotRecognised, match="groups do not show the shape of this run's 8 ranks: none"):
        shape_of([], 8)


def test_counts_only_adapters_on_the_wire() -> None:
    exposition = """# TYPE whyidle_nic_bytes_total counter
whyidle_nic_bytes_total{device="eth0",direction="receive"} 5
whyidle_nic_bytes_total{device="eth0",direction="transmit"} 7
whyidle_nic_bytes_total{device="lo",direction="transmit"} 9
# TYPE whyidle_rdma_transmit_bytes_total counter
whyidle_rdma_transmit_bytes_total{device="mlx5_0",port="1",traffic=""} 11
# TYPE whyidle_process_storage_read_bytes_total counter
whyidle_process_storage_read_bytes_total{owner="lab",run="r1",rank="0"} 10
whyidle_process_storage_read_bytes_total{owner="lab",run="r1",rank="1"} 20
whyidle_process_storage_read_bytes_total{owner="lab",run="other",rank="0"} 40
"""
    names = ("whyidle_nic_bytes_total", "whyidle_rdma_transmit_bytes_total", "whyidle_process_storage_read_bytes_total")
    found = counted(samples(exposition, *names), ("lab", "r1"))
    assert found.sent == {"eth0": 7.0, "mlx5_0": 11.0}
    assert found.read == 30.0


@pytest.mark.parametrize(("kind", "devices"), [("physical", {"eth0", "eth1"}), ("veth", {"eth0", "eth1", "bond0"})])
def test_what_a_bond_sends_counts_once(kind: str, devices: set[str]) -> None:
    """Where no interface is hardware, as in a container, all of them count."""
    exposition = f"""# TYPE whyidle_nic_bytes_total counter
whyidle_nic_bytes_total{{device="eth0",direction="transmit"}} 50
whyidle_nic_bytes_total{{device="eth1",direction="transmit"}} 50
whyidle_nic_bytes_total{{device="bond0",direction="transmit"}} 100
# TYPE whyidle_nic_info gauge
whyidle_nic_info{{device="eth0",kind="{kind}",master="bond0"}} 1
whyidle_nic_info{{device="eth1",kind="{kind}",master="bond0"}} 1
whyidle_nic_info{{device="bond0",kind="bond",master=""}} 1
"""
    found = counted(samples(exposition, "whyidle_nic_bytes_total", "whyidle_nic_info"), ("lab", "r1"))
    assert found.sent.keys() == devices


# -- the command


def traffic(*words: str) -> list[str]:
    model = ["--parameters", "70B", "--layers", "80", "--hidden", "8192", "--tokens", "156B", "--batches", "178000"]
    return ["traffic", *model, *words]


def test_the_command_prints_bytes_links_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    words = traffic("--dp", "16", "--tp", "8", "--pp", "8", "--link", "400Gbit/s", "--step-time", "2s")
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "1,024 ranks on 128 nodes" in printed
    assert "118 ms a step at 400 Gbit/s" in printed
    assert "a step of 2.00 s needs 23.6 Gbit/s" in printed
    assert "arXiv 1909.08053" in printed
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["across_bytes"] + told["inside_bytes"] == pytest.approx(told["bytes"])


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["traffic"], 2, "give --parameters and --batches, or the name of a run with --run"),
        (["traffic", "--parameters", "1B", "--batches", "1", "--tp", "2"], 2, "give --tokens and --hidden"),
        (["traffic", "--run", "nobody", "--dir", "/nonexistent"], 1, "no ledger of run nobody in /nonexistent"),
    ],
)
def test_rejects_bad_input_with_a_sentence_and_a_status(
    words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--dp", "0"], ["--link", "400"], ["--batches", "0"], ["--parameters", "many"]])
def test_rejects_invalid_arguments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["traffic", *words])
    assert ended.value.code == 2
    assert "must be" in capsys.readouterr().err


def test_a_run_that_has_ended_is_compared_with_the_formulas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended(tmp_path, *run_of_four(TWO_NODES))
    words = ["traffic", "--run", "meshed", "--dir", str(tmp_path), "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["measured"]["way"] == "gloo"
    assert (told["compared"], told["adapters"]) == ([], None)
    assert any("give --parameters" in note for note in told["notes"])
    assert (
        main([*words, "--parameters", "50", "--element-bytes", "4", "--tokens", "5", "--hidden", "10", "--layers", "1"])
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    compared = {one["label"]: (one["predicted"], one["measured"]) for one in told["compared"]}
    assert compared == {"dp": (100.0, 100.0), "tp": (400.0, 400.0)}
    assert main([*words, "--dp", "3"]) == 2
    assert "the given shape has 3 ranks, but the run has 4" in capsys.readouterr().err

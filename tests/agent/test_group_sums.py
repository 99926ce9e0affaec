"""What the ranks of a run on a node did in each process group: their sums, and which groups need the node's links."""

from __future__ import annotations

import os
from pathlib import Path

from support_ledgers import Spec, children, ended

from whyidle.agent.collectors.ranks import RankCollector
from whyidle.agent.group_sums import MOST_GROUPS, OTHER_GROUPS
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.metrics.metric import Metric
from whyidle.agent.metrics.runs import GROUP_SUMS, GROUPS_ACROSS
from whyidle.agent.reading import Reading

TRANSFERS, BUS_BYTES = GROUP_SUMS
RETENTION = 900.0
TP, DP, WORLD = "tp", "dp", "world"


def found(store: LedgerStore, metric: Metric) -> dict[tuple[str, ...], object]:
    """Labels after the owner -> value."""
    reading = Reading()
    RankCollector(store).collect(reading)
    return {labels[1:]: value for labels, value in reading.series(metric).items()}


def of(rank: int, tp: int = 1, **more: object) -> Spec:
    """One of four ranks: two tensor-parallel groups, and two data-parallel groups across them."""
    groups = [(WORLD, {}, 1), (TP, {"network": 0.5}, 8), (DP, {"network": 2.0, "straggler": 1.0}, 4)]
    handed = [
        (TP, 10 + tp, 2, {"all_gather": 4000, "reduce_scatter": 2000}),
        (DP, 20 + rank % 2, 2, {"all_reduce": 100}),
    ]
    return Spec(rank=rank, world_size=4, groups=groups, handed=handed, **more)  # pyright: ignore[reportArgumentType]


def test_waits_in_transfers_and_bus_bytes_are_summed_over_the_ranks_of_a_node(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), RETENTION)
    with children(tmp_path, of(0), of(1), of(2, tp=2, node="n2")):
        assert found(store, TRANSFERS) == {
            **{("r1", "n1", group): seconds for group, seconds in ((WORLD, 0.0), (TP, 1.0), (DP, 4.0))},
            **{("r1", "n2", group): seconds for group, seconds in ((WORLD, 0.0), (TP, 0.5), (DP, 2.0))},
        }
        assert found(store, BUS_BYTES) == {
            ("r1", "n1", TP): 2 * (4000 + 2000) / 2,
            ("r1", "n1", DP): 2 * 100,
            ("r1", "n2", TP): 3000,
            ("r1", "n2", DP): 100,
        }


def test_counts_the_groups_that_need_the_links_of_a_node(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), RETENTION)
    with children(tmp_path, of(0), of(1), of(2, tp=2, node="n2"), of(3, tp=2, node="n2")):
        assert found(store, GROUPS_ACROSS) == {
            ("r1", "n1", TP): 0,
            ("r1", "n1", DP): 2,
            ("r1", "n2", TP): 0,
            ("r1", "n2", DP): 2,
        }


def test_members_that_are_not_known_are_not_elsewhere(tmp_path: Path) -> None:
    ranks = Spec(groups=[("unknown", {"network": 1.0}, 1)]), Spec(rank=1, groups=[("alone", {}, 0)], slots=[{"key": 7}])
    with children(tmp_path, *ranks):
        assert found(LedgerStore(str(tmp_path), RETENTION), GROUPS_ACROSS) == {}


def test_a_group_does_not_count_twice_after_a_restart(tmp_path: Path) -> None:
    ended(tmp_path, of(0, idle=5.0), of(1, idle=5.0))
    with children(tmp_path, of(0, attempt=1), of(1, attempt=1)):
        store = LedgerStore(str(tmp_path), RETENTION)
        assert found(store, GROUPS_ACROSS) == {("r1", "n1", TP): 0, ("r1", "n1", DP): 2}
        assert found(store, BUS_BYTES)["r1", "n1", DP] == 400


def test_the_sums_of_a_group_do_not_fall_when_a_ledger_is_removed(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), RETENTION)
    [old] = ended(tmp_path, of(0))
    with children(tmp_path, of(1)):
        before = found(store, TRANSFERS), found(store, BUS_BYTES)
        os.unlink(old)
        assert (found(store, TRANSFERS), found(store, BUS_BYTES)) == before
        assert before[1]["r1", "n1", DP] == 200


def test_the_number_of_groups_of_a_run_is_bounded(tmp_path: Path) -> None:
    ranks = [
        Spec(
            rank=rank,
            groups=[(f"g{rank}-{slot}", {"network": 1.0}, 1) for slot in range(8)],
            slots=[{"key": 1 + slot, "size": 64} for slot in range(8)],
        )
        for rank in range(10)
    ]
    with children(tmp_path, *ranks):
        store = LedgerStore(str(tmp_path), RETENTION)
        waits = found(store, TRANSFERS)
        assert len(waits) == MOST_GROUPS + 1
        assert waits["r1", "n1", OTHER_GROUPS] == 80 - MOST_GROUPS
        assert len(found(store, GROUPS_ACROSS)) == MOST_GROUPS


def test_absurd_sizes_and_bytes_of_a_group_break_nothing(tmp_path: Path) -> None:
    most = 1 << 61
    words = {"slot_key": most, "slot_size": most, "slot_op_bytes": most}
    with children(tmp_path, Spec(groups=[(WORLD, {}, 1)], words=words)):
        store = LedgerStore(str(tmp_path), RETENTION)
        assert found(store, GROUPS_ACROSS) == {("r1", "n1", WORLD): 1}
        assert found(store, BUS_BYTES) == {("r1", "n1", WORLD): 2 * most - 2}

"""What the agent exports of the mounts and links in ledgers: sums by run and node, and what is possible there."""

from __future__ import annotations

import os
from pathlib import Path

from support_ledgers import SECOND, Spec, children, ended

from whyidle.agent.collectors.ranks import RankCollector
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.metrics import METRIC, links, mounts
from whyidle.agent.mounts_links import MOST_LINKS, MOST_MOUNTS
from whyidle.agent.reading import Reading
from whyidle.ledger.links import LINKS, SHAPERS, link_text
from whyidle.ledger.mounts import LIMITS, MOUNTS, mount_text

RETENTION = 900.0
DATA = mount_text("/mnt/training data", "imagenet", "nfs4", "server:/export")
SLOW = mount_text("/mnt/slow", "", "ext4", "/dev/loop0")
READS = {"data_ns": 3 * SECOND, "bytes": 60_000_000, "measured_ns": 2 * SECOND, "counted": 1}
ETH0, ETH1 = link_text("tcp", "eth0", "10.0.0.1/24"), link_text("tcp", "eth1", "10.1.0.1/24")
SENDS = {"sent": 700, "received": 900, "wait_bytes": 800, "wait_ns": SECOND // 2, "segments": 50, "resent": 5}


def found(store: LedgerStore, metric: str) -> dict[tuple[str, ...], object]:
    """Labels after the owner and the run -> value."""
    reading = Reading()
    RankCollector(store).collect(reading)
    return {labels[2:]: value for labels, value in reading.series(METRIC[metric]).items()}


def store(folder: Path) -> LedgerStore:
    return LedgerStore(str(folder), RETENTION)


def test_what_ranks_did_at_a_mount_is_summed_by_node(tmp_path: Path) -> None:
    saves = {"save_ns": SECOND, "own_ns": SECOND // 2, "bytes": 8_000_000, "measured_ns": SECOND}
    ranks = (
        Spec(rank=0, mounts=[{"text": SLOW, **saves}, {"text": DATA, **READS}]),
        Spec(rank=1, mounts=[{"text": DATA, **READS}]),
        Spec(rank=2, mounts=[{"text": DATA, **READS}], node="n2"),
    )
    data, slow = ("/mnt/training data", "nfs4"), ("/mnt/slow", "ext4")
    with children(tmp_path, *ranks):
        assert found(store(tmp_path), "whyidle_run_mount_blocked_seconds_total") == {
            ("n1", *data, "data"): 6.0,
            ("n1", *slow, "checkpoint"): 1.0,
            ("n1", *slow, "own_code"): 0.5,
            ("n2", *data, "data"): 3.0,
        }
        assert found(store(tmp_path), "whyidle_run_mount_bytes_total") == {
            ("n1", *data, "mount"): 120_000_000,
            ("n1", *slow, "processes"): 8_000_000,
            ("n2", *data, "mount"): 60_000_000,
        }
        assert found(store(tmp_path), "whyidle_run_mount_measured_seconds_total") == {
            ("n1", *data, "mount"): 4.0,
            ("n1", *slow, "processes"): 1.0,
            ("n2", *data, "mount"): 2.0,
        }


def test_what_the_connections_of_ranks_did_is_summed_by_link_and_node(tmp_path: Path) -> None:
    ranks = Spec(rank=0, links=[{"link": ETH0, **SENDS}]), Spec(rank=1, links=[{"link": ETH1}, {"link": ETH0, **SENDS}])
    eth0 = ("n1", "tcp", "eth0")
    with children(tmp_path, *ranks):
        assert found(store(tmp_path), "whyidle_run_link_bytes_total") == {
            (*eth0, "transmit"): 1400,
            (*eth0, "receive"): 1800,
        }
        assert found(store(tmp_path), "whyidle_run_link_wait_bytes_total") == {eth0: 1600}
        assert found(store(tmp_path), "whyidle_run_link_wait_seconds_total") == {eth0: 1.0}
        assert found(store(tmp_path), "whyidle_run_link_segments_total") == {eth0: 100}
        assert found(store(tmp_path), "whyidle_run_link_resent_segments_total") == {eth0: 10}
        assert found(store(tmp_path), "whyidle_run_link_ranks") == {eth0: 2}


def test_of_an_rdma_port_ranks_and_speed_are_known_but_no_bytes_of_its_queue_pairs(tmp_path: Path) -> None:
    port = {"up": 1, "all": 1 << 40, "connections": 4, "best": 10**11, "speed": 400_000_000_000}
    idle = {"link": link_text("rdma", "mlx5_1/1", ""), "up": 1, "speed": 400_000_000_000}
    links = [{"link": link_text("rdma", "mlx5_0/1", ""), **port}, idle]
    with children(tmp_path, Spec(rank=0, links=links), Spec(rank=1, links=links)):
        agent = store(tmp_path)
        assert found(agent, "whyidle_run_link_ranks") == {("n1", "rdma", "mlx5_0/1"): 2}
        assert found(agent, "whyidle_run_link_speed_bytes_per_second") == {
            ("n1", "rdma", "mlx5_0/1"): 50_000_000_000,
            ("n1", "rdma", "mlx5_1/1"): 50_000_000_000,
        }
        assert not found(agent, "whyidle_run_link_bytes_total")


def test_a_sum_does_not_fall_when_a_ledger_is_removed(tmp_path: Path) -> None:
    agent = store(tmp_path)
    [old] = ended(tmp_path, Spec(rank=0, mounts=[{"text": DATA, **READS}], links=[{"link": ETH0, **SENDS}]))
    with children(tmp_path, Spec(rank=1, mounts=[{"text": DATA, **READS}], links=[{"link": ETH0, **SENDS}])):
        names = [metric.name for metric in (*mounts.MOUNT_SUMS, *links.LINK_SUMS)]
        before = [found(agent, name) for name in names]
        assert all(before)
        os.unlink(old)
        assert [found(agent, name) for name in names] == before


def test_the_lowest_rate_that_a_live_rank_knows_is_what_is_possible(tmp_path: Path) -> None:
    def of(rank: int, limit: int, shaped: int) -> Spec:
        at = {"limit": limit, "limit_by": LIMITS.index("io.max")}
        shaper = {"up": 1, "speed": 10_000_000_000, "limit": shaped, "limit_by": SHAPERS.index("tbf")}
        idle = {"up": 1, "speed": 25_000_000_000}
        return Spec(rank=rank, mounts=[{"text": SLOW, **at}], links=[{"link": ETH0, **shaper}, {"link": ETH1, **idle}])

    ended(tmp_path, of(2, limit=1, shaped=8))
    with children(tmp_path, of(0, limit=8_000_000, shaped=400), of(1, limit=9_000_000, shaped=200)):
        assert found(store(tmp_path), "whyidle_run_mount_limit_bytes_per_second") == {
            ("n1", "/mnt/slow", "ext4", "io.max"): 8_000_000
        }
        assert found(store(tmp_path), "whyidle_run_link_limit_bytes_per_second") == {("n1", "tcp", "eth0", "tbf"): 25}
        assert found(store(tmp_path), "whyidle_run_link_speed_bytes_per_second") == {
            ("n1", "tcp", "eth0"): 1_250_000_000,
            ("n1", "tcp", "eth1"): 3_125_000_000,
        }


def test_what_is_not_known_has_no_series(tmp_path: Path) -> None:
    down = {"up": 0, "speed": 10_000_000_000}
    with children(
        tmp_path, Spec(mounts=[{"text": DATA, "looks": 7}], links=[{"link": ETH1, **down}, {"link": ETH0, "up": 1}])
    ):
        agent = store(tmp_path)
        assert {metric.name: found(agent, metric.name) for metric in (*mounts.METRICS, *links.METRICS)} == {
            metric.name: {} for metric in (*mounts.METRICS, *links.METRICS)
        }


def test_the_number_of_mounts_and_links_of_a_run_is_bounded(tmp_path: Path) -> None:
    busy = {"up": 1, "speed": 8, **SENDS}
    ranks = [
        Spec(
            rank=rank,
            mounts=[
                {"text": mount_text(f"/m{rank}-{each}", "", "ext4", ""), "data_ns": SECOND, "limit": 1}
                for each in range(MOUNTS)
            ],
            links=[{"link": link_text("tcp", f"e{rank}-{each}", ""), **busy} for each in range(LINKS)],
        )
        for rank in range(8)
    ]
    with children(tmp_path, *ranks):
        agent = store(tmp_path)
        blocked = found(agent, "whyidle_run_mount_blocked_seconds_total")
        assert len(blocked) == MOST_MOUNTS + 1
        assert blocked["n1", "other", "", "data"] == 8 * MOUNTS - MOST_MOUNTS
        waits = found(agent, "whyidle_run_link_wait_bytes_total")
        assert len(waits) == MOST_LINKS + 1
        assert waits["n1", "", "other"] == (8 * LINKS - MOST_LINKS) * SENDS["wait_bytes"]
        assert len(found(agent, "whyidle_run_mount_limit_bytes_per_second")) == MOST_MOUNTS
        assert len(found(agent, "whyidle_run_link_speed_bytes_per_second")) == MOST_LINKS


def test_absurd_names_and_numbers_break_nothing(tmp_path: Path) -> None:
    most = 1 << 61
    mount = {"data_ns": most, "bytes": most, "measured_ns": most, "limit": most, "limit_by": most, "counted": most}
    link = dict.fromkeys((*SENDS, "up", "speed", "limit", "limit_by"), most)
    texts = ("x", "\x00", "a b c d e f", "\x1b[2J\\040`$", "/" * 500)
    spec = Spec(
        mounts=[{"text": text, **mount} for text in texts[:MOUNTS]], links=[{"link": text, **link} for text in texts]
    )
    with children(tmp_path, spec):
        agent = store(tmp_path)
        for metric in (*mounts.METRICS, *links.METRICS):
            for labels in found(agent, metric.name):
                assert all(label.isprintable() and len(label) <= 112 for label in labels), labels
        assert ("n1", "x", "", "") in found(agent, "whyidle_run_mount_limit_bytes_per_second")

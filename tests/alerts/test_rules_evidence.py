"""Evidence over many nodes: signals on few nodes by accident confirm nothing, signals on all nodes do."""

from __future__ import annotations

import shutil
from math import comb
from pathlib import Path
from typing import Any

import pytest
from support_rules import assert_promtool

from whyidle.alerts.config import DEFAULT

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")

FALSE = 0.01
"""How often a signal appears on a node although nothing is wrong."""


def case(name: str, nodes: int, speak: int) -> dict[str, Any]:
    """A run that loses all of its time to the network, with ten congestion notifications a second on some nodes."""
    degree = speak / nodes
    word = "confirmed" if degree >= DEFAULT.confirmed_share else "unconfirmed"
    cnp, port = "whyidle_rdma_cnp_handled_total", 'device="mlx5_0", port="1"'
    return {
        "name": name,
        "every": 60,
        "spent": {f"r/{node}@n{node}": {"network": 1.0} for node in range(nodes)},
        "series": {f"{cnp}{{@n{node}, {port}}}": 16 if node < speak else 0 for node in range(nodes)},
        "windows": {"5m": "7m"},
        "expect": {
            'run_family:whyidle_confirmed:ratio5m{family="network"}': {'{family="network", run="r"}': degree},
            "run_family:whyidle_verdict:ratio5m": {f'{{corroboration="{word}", family="network", run="r"}}': 1},
        },
    }


@needs_promtool
@pytest.mark.parametrize(
    ("name", "nodes", "speak"),
    [
        ("one node of 64 with congestion notifications does not confirm a run", 64, 1),
        ("all of them do", 64, 64),
        pytest.param(
            "one false signal in a hundred does not confirm a run of 512 nodes", 512, 5, marks=pytest.mark.long
        ),
    ],
    ids=["one of 64", "64 of 64", "5 of 512"],
)
def test_a_run_is_confirmed_by_the_share_of_its_nodes(name: str, nodes: int, speak: int, tmp_path: Path) -> None:
    assert_promtool([case(name, nodes, speak)], tmp_path)


def falsely_confirmed(nodes: int, share: float) -> float:
    """The probability that accidents alone confirm a run, if each signal counts as far as it is unusual on its node."""
    few = [speak for speak in range(nodes + 1) if speak / nodes * (1 - FALSE) >= share]
    return sum(comb(nodes, speak) * FALSE**speak * (1 - FALSE) ** (nodes - speak) for speak in few)


def test_coincidences_confirm_a_large_run_less_often_than_a_small_one() -> None:
    """If one node was enough, accidents would confirm nearly all of the largest runs."""
    assert 1 - (1 - FALSE) ** 512 > 0.99
    assert falsely_confirmed(1, DEFAULT.confirmed_share) == pytest.approx(FALSE)
    assert falsely_confirmed(2, DEFAULT.confirmed_share) == pytest.approx(FALSE**2)
    assert falsely_confirmed(8, DEFAULT.confirmed_share) < 1e-7
    assert falsely_confirmed(512, DEFAULT.confirmed_share) < 1e-100

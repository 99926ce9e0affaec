"""The dashboard Node: how one node affects its ranks. The dashboard Node hardware shows its devices one by one."""

from __future__ import annotations

from .. import variables as v
from ..selection import instance, node
from ..vocabulary import Dashboard, dashboard
from . import cpu, faults, gpus, network, ranks, storage


def build() -> Dashboard:
    return dashboard(
        "whyidle-node",
        "whyidle / Node",
        """What one node does to its ranks: whether its GPUs, CPUs, network or storage are the limit that its ranks
        report, or whether the ranks wait for ranks on other nodes.""",
        variables=[v.data_source(), v.cluster(), node(), instance(), v.window()],
        sections=[
            ranks.section(),
            gpus.section(),
            cpu.section(),
            network.section(),
            storage.section(),
            faults.section(),
        ],
    )

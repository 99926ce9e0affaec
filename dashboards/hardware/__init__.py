"""The dashboard Node hardware: every counter of one node's devices. The dashboard Node links to it."""

from __future__ import annotations

from .. import variables as v
from ..selection import instance, node
from ..vocabulary import Dashboard, dashboard
from . import disks, file_systems, gpus, interfaces, inventory, processes, rdma


def build() -> Dashboard:
    return dashboard(
        "whyidle-node-hardware",
        "whyidle / Node hardware",
        """The devices of one node, one by one: GPUs, RDMA ports, interfaces, disks, file systems, CPUs and memory. Open
        the row that the page Node points to; the first table says which of them the node has.""",
        variables=[v.data_source(), v.cluster(), node(), instance()],
        sections=[
            inventory.section(),
            gpus.section(),
            rdma.section(),
            interfaces.section(),
            disks.section(),
            file_systems.section(),
            processes.section(),
        ],
    )

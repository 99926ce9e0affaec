"""Node: every counter that can prove or refute a verdict, beside the ranks that the node hosts."""

from __future__ import annotations

from .. import variables as v
from ..vocabulary import Dashboard, dashboard
from . import agent, cpu, gpus, interfaces, ranks, rdma, remote_storage, storage
from .selection import instance, node


def build() -> Dashboard:
    return dashboard(
        "whyidle-node",
        "whyidle / Node",
        """What one node's own counters say: whether its network, storage, CPU or GPUs are the limit that its ranks
        report, or whether the ranks wait for somebody else.""",
        variables=[v.data_source(), v.cluster(), node(), instance(), v.window()],
        sections=[
            *ranks.sections(),
            *gpus.sections(),
            *rdma.sections(),
            *interfaces.sections(),
            *storage.sections(),
            *remote_storage.sections(),
            *cpu.sections(),
            *agent.sections(),
        ],
    )

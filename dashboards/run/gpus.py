"""What the GPUs' own counters say about compute: gaps between kernels, and how busy the tensor cores are."""

from __future__ import annotations

from .. import variables as v
from ..colours import CAUSE_SHADES, GREEN, ORANGE
from ..vocabulary import Panel, query, trend

MINE = f"{v.CLUSTER}, {v.any_of('uuid')}"
"""The GPUs of the run, from a hidden variable. A join with its ranks would take longer than to read the counters."""


def activity() -> Panel:
    idle = f"sum(rate(whyidle_compute_idle_seconds_total{{{v.RUN}}}[$__rate_interval]))"
    ranks = f"sum(run:whyidle_ranks:count{{{v.RUN}}})"
    compute = f'sum(run_cause:whyidle_share:ratio${{window}}{{{v.RUN}, cause="compute"}})'
    return trend(
        "Compute, its launch gaps, and the tensor cores",
        """Compute as a share of all ranks' time. In its launch gaps no kernel ran: the CPU does not launch them fast
        enough, and the verdict counts them as host. Tensor cores: the share of their cycles that did work, which is
        the counter that comes closest to useful work (Hopper and later, from GPM). Much compute with idle tensor
        cores means small kernels, or that memory is the limit.""",
        query(compute, "compute"),
        query(f"{idle} / {ranks}", "launch gaps"),
        query(f"{_active()} / ({_active('observed', GPM)} > 0) and {ranks}", "tensor cores active"),
        unit="percentunit",
        most=1,
        colours={"compute": GREEN, "launch gaps": CAUSE_SHADES["host"], "tensor cores active": ORANGE},
        nothing="No GPU, and no rank that computes",
    )


GPM = ', source="gpm"'


def _active(what: str = "tensor_active", more: str = "") -> str:
    """Seconds per second in which the GPUs of the run's ranks were active, from a GPU counter."""
    return f"sum(rate(whyidle_gpu_{what}_seconds_total{{{MINE}{more}}}[$__rate_interval]))"

"""The alert on ranks that run at another socket than their GPU or their adapter."""

from __future__ import annotations

from ...agent.metrics.ranks import RANK, RUN
from ..config import Config
from ..rule import Alert, Group
from .expressions import COUNT, NODE, RUN_NAME, TARGET, named
from .pace import patient

DEVICES = '{{ if eq $labels.device "gpu" }}GPUs{{ else }}adapters{{ end }}'
WHERE = (
    f"on NUMA node {{{{ $labels.cpu_node }}}} of {NODE}, and their {DEVICES} are on node {{{{ $labels.device_node }}}}"
)


def groups(config: Config) -> tuple[Group, ...]:
    return (patient(config, "placement", (_far(config),)),)


def _far(config: Config) -> Alert:
    rank = (*TARGET, *RANK, "device")
    alike = (*TARGET, *RUN, "device", "cpu_node", "device_node")
    samples = "whyidle_rank_numa_samples_total"
    far = config.rate(samples, config.for_slow, 'place="far"')
    both = f"sum {config.by(*rank)} ({config.rate(samples, config.for_slow)})"
    share = f"{far}\n  / {config.on(*rank)} group_left {both}\n  >= {config.alerts.far_share}"
    return Alert(
        "WhyidleRankFarFromDevice",
        named(config, f"count {config.by(*alike)} (\n  {share}\n)"),
        config.for_slow,
        "info",
        f"{COUNT} ranks of run {RUN_NAME} run at another socket than their {DEVICES}.",
        f"{COUNT} ranks of run {RUN_NAME} run {WHERE}. Copies between the CPU and the device cross the link between "
        "the sockets. `whyidle doctor` on the node lists the ranks.",
    )

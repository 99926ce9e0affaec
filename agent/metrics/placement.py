"""The metrics of the collector `placement`."""

from __future__ import annotations

from .metric import Metric
from .ranks import RANK

SAMPLES = Metric(
    "whyidle_rank_numa_samples_total",
    "counter",
    "samples",
    (*RANK, "device", "device_node", "cpu_node", "place"),
    "How often a rank's main thread was found on a CPU of a NUMA node, once per scrape, beside the node of its GPU and "
    "of the adapter that carries most of its transfers. Place far: the device is at another socket. Absent on nodes "
    "with one NUMA node, and where the node of a device is not known.",
    "<pid>/stat, field 39; numa_node",
)
METRICS = (SAMPLES,)

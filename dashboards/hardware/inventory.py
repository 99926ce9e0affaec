"""What a node is, which devices it has, and to which pods Kubernetes allocated them."""

from __future__ import annotations

from ..selection import level, listed, series
from ..vocabulary import Column, Panel, Section, line, table, trend
from ..vocabulary import section as _section

KINDS = {
    "GPUs": ("whyidle_gpu_info", "gpu"),
    "RDMA ports": ("whyidle_rdma_port_info", "device, port"),
    "Network interfaces": ("whyidle_nic_info", "device"),
    "Disks": ("whyidle_disk_info", "device"),
    "NFS mounts": ("whyidle_nfs_info", "mount"),
    "Lustre file systems": ("whyidle_lustre_info", "filesystem"),
}
"""Kind of device -> the series with one sample per device, and the labels that identify a device."""


def section() -> Section:
    return _section("What this node has", line(8, _devices(), _node(), _kubernetes()), line(6, _pods()))


def _devices() -> Panel:
    counts = (
        f'label_replace(count(group by ({labels}) ({series(info)})) or vector(0), "kind", "{kind}", "", "")'
        for kind, (info, labels) in KINDS.items()
    )
    return table(
        "Devices",
        "How many devices of each kind the agent sees. For a kind that the node does not have, the row below is empty.",
        listed(f"({' or '.join(counts)})"),
        columns=[Column("kind", "Kind"), Column("Value", "Number", "short", width=90)],
        sort="Number",
        width=6,
    )


def _node() -> Panel:
    node, version = series("whyidle_node_info"), series("whyidle_build_info")
    return table(
        "Node",
        "The kernel, the processor, the kernel's clock source, and the version and address of the agent. With "
        "hpet or acpi_pm, reading the clock takes a thousand times as long as with tsc.",
        listed(f"max by (instance, node, kernel, arch) ({node})"),
        listed(f"max by (instance, source) ({series('whyidle_clock_info')})"),
        listed(f"max by (instance, version) ({version})"),
        columns=[
            Column("node", "Node"),
            Column("kernel", "Kernel"),
            Column("arch", "Processor", width=90),
            Column("source", "Time by", width=80),
            Column("version", "Agent", width=80),
            Column("instance", "Address"),
        ],
        width=12,
    )


def _kubernetes() -> Panel:
    return trend(
        "Devices of Kubernetes",
        "Devices that the kubelet can assign to pods, and devices that it has assigned. If the first number "
        "falls, devices became unhealthy. Devices that are not assigned are idle, because no pod requests them.",
        level("whyidle_kubernetes_allocatable_devices", "resource", "{{resource}} in all", most=3),
        level("whyidle_kubernetes_allocated_devices", "resource", "{{resource}} given", most=3),
        unit="short",
        width=6,
        nothing="Not in Kubernetes",
    )


def _pods() -> Panel:
    gpus = f'label_replace({series("whyidle_gpu_pod_info")}, "device", "$1", "uuid", "(.*)")'
    by = "resource, device, namespace, pod, container"
    return table(
        "Pods that were given devices",
        "The container to which the kubelet assigned each GPU, MIG device, adapter or other device.",
        listed(f"group by ({by}) ({gpus} or {series('whyidle_device_pod_info')})"),
        columns=[Column(label, label.capitalize()) for label in by.split(", ")],
        nothing="Not in Kubernetes, or no device is given",
    )

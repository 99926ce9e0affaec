"""The metrics of the collector `identity`: which pod or Slurm job a rank, a GPU or another device belongs to."""

from __future__ import annotations

from .metric import Metric
from .ranks import RANK

_OWNER = ("namespace", "pod", "container")

NODE = Metric(
    "whyidle_node_info",
    "gauge",
    "info",
    ("node", "kernel", "arch"),
    "The node as its scheduler names it, with its kernel and processor architecture; always 1.",
    "/proc/sys/kernel/osrelease",
)
RANK_SLURM = Metric(
    "whyidle_rank_slurm_info",
    "gauge",
    "info",
    (
        *RANK,
        # Not `cluster`: Prometheus and the rules use that label for the monitored cluster.
        "slurm_cluster",
        "job_id",
        "job_name",
        "user",
        "account",
        "partition",
        "qos",
        "array_job_id",
        "array_task_id",
        "step",
        "slurm_node",
        "evidence",
    ),
    "The Slurm job of a live rank; always 1. Evidence is cgroup where the kernel confirms the job, environment where "
    "only the rank's own environment says so.",
    "/proc/<pid>/environ, /proc/<pid>/cgroup",
)
RANK_POD = Metric(
    "whyidle_rank_pod_info",
    "gauge",
    "info",
    (*RANK, *_OWNER, "pod_uid", "container_id", "workload", "evidence"),
    "The Kubernetes pod of a live rank; always 1. Evidence says where the name of the pod comes from: cgroup "
    "(its uid, and the "
    "kubelet's log directories), pod_resources (the kubelet gave it the rank's GPU), downward_api (the rank's "
    "environment) or hostname (the one pod of this node that fits it).",
    "/proc/<pid>/cgroup, /proc/<pid>/environ, /var/log/pods, pod-resources List",
)
GPU_POD = Metric(
    "whyidle_gpu_pod_info",
    "gauge",
    "info",
    ("uuid", *_OWNER, "resource"),
    "The container to which the kubelet assigned a GPU or MIG instance; always 1. A time-sliced GPU has several "
    "series. A GPU that no pod requests has no series.",
    "pod-resources List",
)
DEVICE_POD = Metric(
    "whyidle_device_pod_info",
    "gauge",
    "info",
    ("resource", "device", *_OWNER),
    "The container to which the kubelet assigned another device, such as an RDMA adapter; always 1. The name of the "
    "device is the one that its device plugin or resource driver uses.",
    "pod-resources List",
)
ALLOCATABLE = Metric(
    "whyidle_kubernetes_allocatable_devices",
    "gauge",
    "devices",
    ("resource",),
    "Devices that the kubelet can assign to pods; each replica of a shared device counts. If the number falls, "
    "devices became unhealthy.",
    "pod-resources GetAllocatableResources",
)
ALLOCATED = Metric(
    "whyidle_kubernetes_allocated_devices",
    "gauge",
    "devices",
    ("resource",),
    "Devices that the kubelet has assigned to pods. The other allocatable devices are idle, because no pod requests "
    "them.",
    "pod-resources List",
)

METRICS: tuple[Metric, ...] = (NODE, RANK_SLURM, RANK_POD, GPU_POD, DEVICE_POD, ALLOCATABLE, ALLOCATED)

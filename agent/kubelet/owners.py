"""Finds the pods that hold a node's devices, and the pods of its ranks, from an answer of the kubelet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeVar

from ..parsers.kubernetes import Claim, gpu_uuid
from ..parsers.pod_resources import Allocation
from ..reading import Labels
from .pod_resources import Listing

MOST_DEVICES = 1000
"""The maximum number of series, for GPUs and others each. A plugin may invent thousands of ids for one adapter."""

Pod = tuple[str, str]  # namespace, name
T = TypeVar("T")

# The suffix that a Job or a JobSet appends to a pod's host name to make the pod's name.
_RANDOM_SUFFIX = re.compile(r"-[a-z0-9]{5}")


class Owners:
    """One answer of the kubelet, indexed for look-ups."""

    def __init__(self, listing: Listing, minors: Mapping[int, str]):
        self._pods = listing.pods.pods
        self._by_uuid: dict[str, list[Allocation]] = {}
        self._containers: dict[Pod, set[str]] = {}
        gpus: dict[Labels, int] = {}
        others: dict[Labels, int] = {}
        for held in listing.pods.allocations:
            self._containers.setdefault((held.namespace, held.pod), set()).add(held.container)
            owner = (held.namespace, held.pod, held.container)
            if uuid := gpu_uuid(held.device, minors):
                self._by_uuid.setdefault(_bare(uuid), []).append(held)
                gpus[(uuid, *owner, held.resource)] = 1
            else:
                others[(held.resource, held.device, *owner)] = 1
        self.gpus = _bounded(gpus)
        self.others = _bounded(others)
        self.left_out = len(gpus) + len(others) - len(self.gpus) - len(self.others)
        """The number of devices that are not exported, because there are more than MOST_DEVICES."""
        self.allocated = allocated(listing)

    def container_of(self, pod: Pod) -> str:
        """The container of a pod that holds devices. Empty unless there is exactly one."""
        return _only(self._containers.get(pod, ())) or ""

    def of_gpu(self, uuid: str, claim: Claim) -> Pod | None:
        """The pod that holds the GPU. If several share it, the one that the process claims to be in, otherwise None."""
        holders = {(held.namespace, held.pod) for held in self._by_uuid.get(_bare(uuid), ())}
        if claim.pod:
            holders = {pod for pod in holders if pod[1] == claim.pod and claim.namespace in ("", pod[0])}
        elif len(holders) > 1:
            holders = {pod for pod in holders if fits(claim.hostname, pod[1])}
        return _only(holders)

    def of_hostname(self, hostname: str) -> Pod | None:
        """The pod of this node that can have this host name. None unless there is exactly one."""
        exact = {pod for pod in self._pods if pod[1] == hostname}
        return _only(exact or {pod for pod in self._pods if fits(hostname, pod[1])})


def allocated(listing: Listing) -> dict[str, int]:
    """Number of devices that containers hold, by resource. It is 0 for resources that no container holds."""
    held = {(one.resource, one.device) for one in listing.pods.allocations}
    return dict.fromkeys(listing.allocatable or (), 0) | Counter(resource for resource, _ in held)


def fits(hostname: str, pod: str) -> bool:
    """Whether a pod of this name can have this host name: the name cut to 63 characters, or that of an indexed Job."""
    if not hostname:
        return False
    if hostname == pod or hostname == pod[:63].rstrip("-."):
        return True
    return pod.startswith(hostname) and _RANDOM_SUFFIX.fullmatch(pod, len(hostname)) is not None


def _only(found: Collection[T]) -> T | None:
    """The only element, or None if there is not exactly one."""
    return next(iter(found)) if len(found) == 1 else None


def _bare(uuid: str) -> str:
    """A UUID without NVML's prefix, which PyTorch leaves out."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


def _bounded(series: dict[Labels, int]) -> dict[Labels, int]:
    return series if len(series) <= MOST_DEVICES else dict(sorted(series.items())[:MOST_DEVICES])

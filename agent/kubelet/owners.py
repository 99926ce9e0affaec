"""Whose the devices and the ranks of a node are, as far as the kubelet says."""

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
"""Series of devices, of GPUs and of others each. A plugin may offer thousands of make-believe ids of one adapter."""

Pod = tuple[str, str]  # namespace, name
T = TypeVar("T")

# What a Job or a JobSet puts behind the host name that it gives its pod.
_RANDOM_SUFFIX = re.compile(r"-[a-z0-9]{5}")


class Owners:
    """One answer of the kubelet, turned to what is asked of it."""

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
        """How many devices there are beyond what is shown."""
        self.allocated = allocated(listing)

    def container_of(self, pod: Pod) -> str:
        """The container of a pod that holds devices, if there is just one."""
        return _only(self._containers.get(pod, ())) or ""

    def of_gpu(self, uuid: str, claim: Claim) -> Pod | None:
        """The pod that holds the GPU; of several that share it, the one that the process claims to be in."""
        holders = {(held.namespace, held.pod) for held in self._by_uuid.get(_bare(uuid), ())}
        if claim.pod:
            holders = {pod for pod in holders if pod[1] == claim.pod and claim.namespace in ("", pod[0])}
        elif len(holders) > 1:
            holders = {pod for pod in holders if fits(claim.hostname, pod[1])}
        return _only(holders)

    def of_hostname(self, hostname: str) -> Pod | None:
        """The one pod of this node that can have this host name."""
        exact = {pod for pod in self._pods if pod[1] == hostname}
        return _only(exact or {pod for pod in self._pods if fits(hostname, pod[1])})


def allocated(listing: Listing) -> dict[str, int]:
    """Devices that containers hold, by resource; 0 for a resource that nobody holds a device of."""
    held = {(one.resource, one.device) for one in listing.pods.allocations}
    return dict.fromkeys(listing.allocatable or (), 0) | Counter(resource for resource, _ in held)


def fits(hostname: str, pod: str) -> bool:
    """Whether a pod of this name can have this host name: its own, cut to 63 characters, or that of an indexed Job."""
    if not hostname:
        return False
    if hostname == pod or hostname == pod[:63].rstrip("-."):
        return True
    return pod.startswith(hostname) and _RANDOM_SUFFIX.fullmatch(pod, len(hostname)) is not None


def _only(found: Collection[T]) -> T | None:
    """The one that there is, if there is just one."""
    return next(iter(found)) if len(found) == 1 else None


def _bare(uuid: str) -> str:
    """PyTorch leaves out what NVML puts before a UUID."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


def _bounded(series: dict[Labels, int]) -> dict[Labels, int]:
    return series if len(series) <= MOST_DEVICES else dict(sorted(series.items())[:MOST_DEVICES])

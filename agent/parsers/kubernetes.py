"""Finds the pod of a process in its environment and cgroup, and parses the ids of device plugins. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .environ import label

# Variables in which manifests pass the fields of the downward API. There is no standard; these names are common.
_POD = ("POD_NAME", "MY_POD_NAME", "K8S_POD_NAME")
_NAMESPACE = ("POD_NAMESPACE", "MY_POD_NAMESPACE", "K8S_POD_NAMESPACE")
_UID = ("POD_UID", "MY_POD_UID", "K8S_POD_UID")
_WORKLOAD = ("JOBSET_NAME", "PYTORCHJOB_NAME")
_IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"  # the kubelet sets it in every container
_HOSTNAME = "HOSTNAME"

VARIABLES: tuple[str, ...] = (*_POD, *_NAMESPACE, *_UID, *_WORKLOAD, _IN_KUBERNETES, _HOSTNAME)

_HEX = "[0-9a-f]"
# Static pods have a hash as their uid. In systemd's slices, a uid has underscores.
_POD_UID = rf"{_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}}|{_HEX}{{32}}"
# cgroupfs: /kubepods/burstable/pod<uid>/<id>; systemd: /kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope;
# .../kubepods-pod<uid>.slice:cri-containerd:<id> if the kubelet uses systemd's form of paths but containerd's runc uses
# cgroupfs. In a cgroup namespace, the path begins with /.. and may lack kubepods.
_CGROUP = re.compile(
    rf"(?:^|[/-])pod({_POD_UID})(?:\.slice)?(?:[/:](?:[a-z-]{{1,32}}[-:])?({_HEX}{{64}})(?:\.scope)?)?(?=[/:\n]|$)".encode(),
    re.MULTILINE,
)

_UUID = rf"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
# Replicas of a time-sliced GPU end in ::3, those of HAMi in -3. Drivers before 470 write MIG-GPU-<uuid>/<gi>/<ci>.
_GPU = re.compile(rf"(MIG-GPU-{_UUID}/\d+/\d+|(?:GPU|MIG)-{_UUID})(?:(?:::|-)\d+)?")
_GPU_MINOR = re.compile(r"nvidia(\d{1,4})(?:/vgpu\d+)?")  # GKE's device plugin, time-shared or not
_PROC_UUID = re.compile(rf"^GPU UUID:\s*(GPU-{_UUID})\s*$".encode(), re.MULTILINE)
_PROC_MINOR = re.compile(rb"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE)

POD_NAME_CHARACTERS = 253


class Claim(NamedTuple):
    """What the environment of a process says about its pod. Unknown fields are empty."""

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    hostname: str = ""  # the pod's name, unless its template sets another or it uses the node's network
    workload: str = ""
    in_kubernetes: bool = False


def claim(environment: Mapping[str, str]) -> Claim:
    """The claim in an environment, which needs only the variables :data:`VARIABLES`."""
    return Claim(
        _first(environment, _NAMESPACE),
        _first(environment, _POD),
        _first(environment, _UID),
        environment.get(_HOSTNAME, ""),
        _first(environment, _WORKLOAD),
        _IN_KUBERNETES in environment,
    )


def _first(environment: Mapping[str, str], names: Iterable[str]) -> str:
    return next((environment[name] for name in names if name in environment), "")


def pod_cgroup(cgroup: bytes) -> tuple[str, str]:
    """The pod's uid and the container's id in ``/proc/<pid>/cgroup``. Each is empty if there is none."""
    found = _CGROUP.search(cgroup)
    if not found:
        return "", ""
    return found[1].decode().replace("_", "-"), (found[2] or b"").decode()


def pod_of_log_directory(name: str) -> tuple[str, tuple[str, str]] | None:
    """The pod's uid, and its namespace and name, from the name of a directory in ``/var/log/pods``. None if invalid."""
    namespace, _, rest = name.partition("_")
    pod, _, uid = rest.rpartition("_")
    if not (namespace and pod and uid) or "_" in pod:
        return None
    return uid, (clean(namespace), clean(pod))


def clean(text: str) -> str:
    """A name as the value of a label."""
    return label(text.encode("utf-8", "replace"), POD_NAME_CHARACTERS)


def gpu_uuid(device: str, minors: Mapping[int, str]) -> str | None:
    """The UUID of the GPU or MIG instance that a device plugin's id means. None if it is not an NVIDIA GPU's id.

    ``minors`` has the UUIDs by the number of the device file, for plugins whose ids contain that number.
    """
    if found := _GPU.fullmatch(device):
        return found[1]
    if found := _GPU_MINOR.fullmatch(device):
        return minors.get(int(found[1]))
    return None


def names_a_minor(device: str) -> bool:
    return _GPU_MINOR.fullmatch(device) is not None


def minor_and_uuid(information: bytes) -> tuple[int, str] | None:
    """The number of the device file and the UUID, from ``/proc/driver/nvidia/gpus/<bus id>/information``.

    None if the driver does not know them: it writes question marks until the GPU is first used.
    """
    minor, uuid = _PROC_MINOR.search(information), _PROC_UUID.search(information)
    return (int(minor[1]), uuid[1].decode()) if minor and uuid else None

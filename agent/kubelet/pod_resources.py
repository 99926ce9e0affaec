"""Asks the kubelet over its pod-resources socket, as rarely as possible."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..files import Roots, Unreadable, reason_of
from ..parsers import pod_resources
from ..parsers.pod_resources import Pods

SOCKETS: tuple[str, ...] = (
    "var/lib/kubelet/pod-resources/kubelet.sock",
    "var/lib/k0s/kubelet/pod-resources/kubelet.sock",
    "var/snap/microk8s/common/var/lib/kubelet/pod-resources/kubelet.sock",
)
"""The paths of the socket: the usual one, that of k0s and that of MicroK8s."""

KEEP_SECONDS = 10.0
"""How long an answer or a failure is kept: the kubelet has a rate limit, and asking a kubelet that hangs takes 1 s."""
DEADLINE_SECONDS = 1.0

_LIST = "/v1.PodResourcesLister/List"
_ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
_NOT_OFFERED = ("unimplemented", "unknown")
"""How kubelets before 1.28 answer GetAllocatableResources, if they lack it or if its feature gate is off."""

T = TypeVar("T")
Reply = bytes | Unreadable
_Mark = tuple[str, int, int, int]  # path, device, inode, ctime of the socket; differs after a restart of the kubelet


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """One decoded answer of the kubelet."""

    pods: Pods
    allocatable: dict[str, int] | None  # number of devices by resource; None if not offered by the kubelet, or failed
    failure: str = ""  # why the call for allocatable failed


class PodResources:
    """The kubelet of this node. Not thread-safe."""

    def __init__(self, roots: Roots):
        self._paths = [os.path.join(roots.rootfs, path) for path in SOCKETS]
        self._mark: _Mark | None = None
        self._asked = 0.0
        self._answer: Listing | Unreadable | None = None
        self._last: tuple[dict[str, Reply], Listing] | None = None  # the last answers, raw and decoded

    def look(self) -> Listing | None:
        """The kubelet's answer, at most KEEP_SECONDS old. Returns the same object until the answer changes.

        Returns None if there is no kubelet and never was one. Raises Unreadable, with one of files.REASONS or gRPC's
        status in lower case. After a failure, earlier answers are not used any more.
        """
        mark = self._find()
        if mark is None:
            self._answer = None
            if self._mark is None:
                return None
            raise Unreadable("missing", self._mark[0])
        now = time.monotonic()
        if self._answer is None or mark != self._mark or now - self._asked >= KEEP_SECONDS:
            self._mark, self._asked = mark, now
            self._answer = self._ask(mark[0])
        if isinstance(self._answer, Unreadable):
            raise self._answer.with_traceback(None)
        return self._answer

    def _ask(self, path: str) -> Listing | Unreadable:
        from .grpc_unary import ask  # h2 takes 5 MB, so it is imported only on nodes with a kubelet

        try:
            answers = ask(path, (_LIST, _ALLOCATABLE), DEADLINE_SECONDS)
            if self._last is None or answers != self._last[0]:
                self._last = answers, _listing(answers)
        except Unreadable as failure:
            self._last = None
            return failure
        return self._last[1]

    def _find(self) -> _Mark | None:
        for path in self._paths:
            try:
                status = os.stat(path)
            except OSError as error:
                if (reason := reason_of(error)) == "missing":
                    continue
                self._answer = None
                raise Unreadable(reason, path) from error
            return path, status.st_dev, status.st_ino, status.st_ctime_ns
        return None


def _listing(answers: dict[str, Reply]) -> Listing:
    """Decodes the answers. Raises Unreadable if the pods are missing."""
    pods = _decoded(answers[_LIST], pod_resources.pods)
    try:
        return Listing(pods, _decoded(answers[_ALLOCATABLE], pod_resources.allocatable))
    except Unreadable as failure:
        return Listing(pods, None, "" if failure.reason in _NOT_OFFERED else failure.reason)


def _decoded(answer: Reply, decode: Callable[[bytes], T]) -> T:
    if isinstance(answer, Unreadable):
        raise answer
    return decode(answer)

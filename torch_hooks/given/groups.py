"""The directories of this process's control groups, as far as the process sees them.

In a container, the visible root may be the container's own group (cgroup_namespaces(7)), or /proc/self/cgroup may name
a path of the node that is not visible. So the search ends at the visible root, and includes it.
"""

from __future__ import annotations

import os
import re

from ...linux.cgroups import UNIFIED, paths
from ...linux.unreadable import Unreadable, reason_of

ROOT = "/sys/fs/cgroup"
_MOST_BYTES = 1 << 16
_CONTAINER = re.compile(r".*[0-9a-f]{64}.*")
"""The group of a container has the container's id in its name."""


def read(path: str) -> bytes:
    """Raises Unreadable. Lets other threads run: the kernel may have to add up the counters of many CPUs."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise Unreadable(reason_of(error), path) from error


def folders(controller: str, root: str = ROOT, cgroup: str = "/proc/self/cgroup") -> list[str]:
    """The rank's own group first, then those above it, with the visible root. Empty if none is known."""
    try:
        found = paths(read(cgroup))
    except Unreadable:
        return []
    if controller in found:
        top, path = f"{root}/{controller}", found[controller]
    else:
        tops = [top for top in (root, f"{root}/unified") if os.path.exists(f"{top}/cgroup.procs")]
        top, path = tops[0] if tops else "", found.get(UNIFIED, "/")
    parts = [part for part in path.split("/") if part and part != ".."]
    upwards = (f"{top}/{'/'.join(parts[:count])}".rstrip("/") for count in range(len(parts), -1, -1))
    return [folder for folder in upwards if top and os.path.isdir(folder)]


def container_of(found: list[str]) -> str:
    """The group of the container in which the rank is, of its ``folders``. Where none has the name of one, the
    outermost: a container mostly sees only its own."""
    for folder in found:
        if _CONTAINER.fullmatch(os.path.basename(folder)):
            return folder
    return found[-1] if found else ""

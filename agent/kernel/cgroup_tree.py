"""Finds the directories of a rank's control groups from the paths in /proc/<pid>/cgroup.

The paths in that file are relative to the cgroup namespace of the reader. An agent in another container reads
`/../../<pod>/<container>`: up to a common ancestor, and down again. The agent does not know which directory that
ancestor is. But the part after the dots consists of ids, so it exists at most once in the node's tree, and is searched
there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...linux.cgroups import UNIFIED
from ..files import Unreadable, read

CONTROLLERS = ("cpu", "cpuacct", "memory")
"""The controllers of cgroup v1 that are read."""
PATH_LENGTH = 512
SEEK_AGAIN_SECONDS = 600.0
_DIRECTORIES = 4096
_REMEMBERED = 1024
_LEVELS = 8


@dataclass(slots=True)
class Cgroup:
    """One control group. In cgroup v1, controllers with the same path are one group."""

    path: str
    directories: dict[str, str] = field(default_factory=dict)  # by controller; UNIFIED for version 2


class CgroupTree:
    """The cgroup hierarchies below one sysfs."""

    def __init__(self, sysfs: str):
        self._top = f"{sysfs}/fs/cgroup"
        self._sought: dict[str, str] = {}
        self._not_found: dict[str, float] = {}

    def locate(self, paths: dict[str, str], pid: int) -> list[Cgroup]:
        """The groups of a process, without the root of a hierarchy, which is the whole node.

        Raises Unreadable("missing") if one of them is not visible.
        """
        found: dict[str, Cgroup] = {}
        for controller in (UNIFIED, *CONTROLLERS):
            path = paths.get(controller)
            root = self._root(controller)
            if path is None or root is None or (path == "/" and not self._is_namespace_root(controller, root)):
                continue
            directory = self._directory(root, path, pid)
            if directory is None or len(path) > PATH_LENGTH or not path.isprintable():
                raise Unreadable("missing", path)
            name = directory[len(root) :] or "/"
            found.setdefault(name, Cgroup(name)).directories[controller] = directory
        return list(found.values())

    def above(self, group: Cgroup) -> Iterator[Cgroup]:
        """The ancestors of a group, nearest first, without the root."""
        path = group.path
        roots = {name: directory.removesuffix(group.path) for name, directory in group.directories.items()}
        while (path := os.path.dirname(path)) not in ("/", ""):
            yield Cgroup(path, {name: root + path for name, root in roots.items()})

    def _root(self, controller: str) -> str | None:
        if controller != UNIFIED:
            root = f"{self._top}/{controller}"
            return root if os.path.isdir(root) else None
        for root in (self._top, f"{self._top}/unified"):
            if os.path.exists(f"{root}/cgroup.controllers"):
                return root
        return None

    def _is_namespace_root(self, controller: str, root: str) -> bool:
        """Whether the visible root is not the node's root. Only then does v2 have cgroup.type. Unknown in v1."""
        return controller == UNIFIED and os.path.exists(f"{root}/cgroup.type")

    def _directory(self, root: str, path: str, pid: int) -> str | None:
        parts = path.split("/")
        if ".." not in parts:
            directory = root if path == "/" else root + path
            return directory if os.path.isdir(directory) else None
        below = "/".join(part for part in parts if part not in ("", ".."))
        if not below:
            return None
        known = self._sought.get(below)
        if known and os.path.isdir(known):
            return known
        now = time.monotonic()
        if now < self._not_found.get(below, 0.0):
            return None
        for memory in (self._sought, self._not_found):
            if len(memory) >= _REMEMBERED:
                memory.clear()
        found = self._seek(root, below, pid)
        if found:
            self._sought[below] = found
        else:
            self._not_found[below] = now + SEEK_AGAIN_SECONDS
        return found

    def _seek(self, root: str, below: str, pid: int) -> str | None:
        found = [path for directory in walk(root) if os.path.isdir(path := f"{directory}/{below}")]
        if len(found) > 1:
            found = [path for path in found if _has_process(path, pid)]
        return found[0] if len(found) == 1 else None


def walk(root: str) -> Iterator[str]:
    """A directory and those below it, level by level, up to a limit."""
    level, given = [root], 0
    for _ in range(_LEVELS):
        following: list[str] = []
        for directory in level:
            yield directory
            given += 1
            if given >= _DIRECTORIES:
                return
            try:
                with os.scandir(directory) as entries:
                    following += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue
        level = sorted(following)


def _has_process(directory: str, pid: int) -> bool:
    try:
        return str(pid).encode() in read(f"{directory}/cgroup.procs").split()
    except Unreadable:
        return False

"""Whether the files of a run are at another mount than those of the first run. Pure functions over reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...verdict.by_mount import size_of
from ...verdict.mounts import NAMED
from ...verdict.places import CONCENTRATION
from ...verdict.saved import Report

_FILES = {"data": "the files of the dataset", "save": "the checkpoints"}
FEW = 3
"""The least number of looks that show where the files of the first run were: a healthy run is seldom blocked."""
Mounts = dict[tuple[str, str, str], Mapping[str, Any]]


def moved(name: str, report: Report, other: str, first: Report) -> Iterator[str]:
    """Sentences about the run ``name``, compared with the first run, which is called ``other``."""
    for kind, files in _FILES.items():
        before, after = _used(first, kind), _used(report, kind)
        source, target = _main(before, kind, FEW), _main(after, kind, NAMED)
        if source and target and not before.keys() & after.keys():
            yield f"{name}: {files} moved from {_at(source)} to {_at(target)} since {other}"


def _used(report: Report, kind: str) -> Mounts:
    return {
        (mount["point"], mount["type"], mount["source"]): mount
        for mount in report.get("mounts") or ()
        if mount["seconds"].get(kind, 0.0) > 0
    }


def _main(mounts: Mounts, kind: str, looks: int) -> Mapping[str, Any] | None:
    """The mount that has most of the time, if that was seen often enough."""
    most = max(mounts.values(), key=lambda one: one["seconds"][kind], default=None)
    if most is None or most["looks"] < looks:
        return None
    whole = sum(one["seconds"][kind] for one in mounts.values())
    return most if most["seconds"][kind] >= CONCENTRATION * whole else None


def _at(mount: Mapping[str, Any]) -> str:
    if not (rate := mount.get("bytes_per_second")):
        return mount["name"]
    return f"{mount['name']} at {'' if mount.get('counted') else 'most '}{size_of(rate)}/s"

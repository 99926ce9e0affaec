"""Reads and checks reports that `whyidle report --json` has written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ..ledger.causes import CAUSE_FAMILY, FAMILIES
from .recent import WAITED
from .report import FORMAT

MOST_BYTES = 256 << 20
LARGEST = 1e15
"""The upper bound of any number in a report. More seconds than any run can have."""
Report = dict[str, Any]

_NUMBERS: tuple[str, ...] = ("ranks", "world_size", "steps", "wall_seconds", "startup_seconds", "rank_seconds")
"""The fields that every report has, from format 0 on."""
_LATER: dict[str, type | tuple[type, ...]] = {
    "owner": str,
    "startup": dict,
    "saves": dict,
    "restores": dict,
    "samples": int,
    "recent": dict,
    "verdict": dict,
    "too_short": dict,
    "mounts": list,
    "explained": dict,
}
"""The fields that may be missing or null."""


class NoReport(ValueError):
    """A file is not a usable report. The message is a sentence without the full stop."""


def read_report(path: str) -> Report:
    """Reads a saved report. Fields that it does not have are absent or None. Raises NoReport."""
    try:
        if os.path.getsize(path) > MOST_BYTES:
            raise NoReport(f"{path} is larger than any report ({MOST_BYTES >> 20} MiB)")
        with open(path, encoding="utf-8") as file:
            text = file.read(MOST_BYTES)
    except OSError as error:
        raise NoReport(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NoReport(f"{path} is not JSON: it is not text") from error
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise NoReport(f"{path} is not JSON: {error}") from error
    try:
        check(found)
    except NoReport as error:
        raise NoReport(f"{path} {error}") from error
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def check(found: Any) -> None:
    """Checks a report. Raises NoReport with a message that has no subject: `is not a report of whyidle: …`."""
    if not isinstance(found, dict):
        raise NoReport("is not a report of whyidle: it must be an object")
    version = found.get("format", 0)
    if type(version) is not int or version < 0:
        raise NoReport(f"is not a report of whyidle: its format is {version!r}")
    if version > FORMAT:
        raise NoReport(
            f"is a report of format {version}, and this whyidle reads formats up to {FORMAT}: update whyidle"
        )
    if not isinstance(found.get("run"), str) or not found["run"]:
        raise NoReport("is not a report of whyidle: it has no run")
    for name in _NUMBERS:
        if not is_number(found.get(name)):
            raise NoReport(f"is not a report of whyidle: {name} must be a number from 0")
    for name, kind in _LATER.items():
        if found.get(name) is not None and not isinstance(found[name], kind):
            raise NoReport(f"is not a report of whyidle: {name} has the wrong type")
    if not isinstance(found.get("per_rank"), list) or not all(isinstance(one, dict) for one in found["per_rank"]):
        raise NoReport("is not a report of whyidle: per_rank must be a list of ranks")
    if not all(is_number(one.get("steps")) for one in found["per_rank"]):
        raise NoReport("is not a report of whyidle: a rank has no steps")
    if not all(_has_links(one.get("links")) for one in found["per_rank"]):
        raise NoReport("is not a report of whyidle: links must be a list of links with their bytes")
    first = found.get("first_batch_seconds")
    if not (first is None or is_number(first)):
        raise NoReport("is not a report of whyidle: first_batch_seconds must be a number")
    verdict = found.get("verdict")
    if verdict and not (isinstance(verdict.get("family"), str) and isinstance(verdict.get("summary"), str)):
        raise NoReport("is not a report of whyidle: its verdict must have a family and a summary")
    if verdict and not is_number(verdict.get("share")):
        raise NoReport("is not a report of whyidle: its verdict has no share")
    if not isinstance((found.get("too_short") or {"sentence": ""}).get("sentence"), str):
        raise NoReport("is not a report of whyidle: too_short must have a sentence")
    _check_causes(found.get("seconds"))
    explained = found.get("explained") or {}
    if not {*FAMILIES}.issuperset(explained) or not all(map(_is_seconds, explained.values())):
        raise NoReport("is not a report of whyidle: explained must have the seconds of families that it knows")
    for name in ("startup", "saves", "restores"):
        if not all(map(is_number, (found.get(name) or {}).values())):
            raise NoReport(f"is not a report of whyidle: the values of {name} must be numbers")
    if not all(map(_is_mount, found.get("mounts") or ())):
        raise NoReport("is not a report of whyidle: its mounts must have names, seconds and looks")
    if found.get("recent"):
        _check_recent(found["recent"])


def seconds_of_ranks(found: Report) -> list[Mapping[str, float]]:
    """The seconds of each rank since its first step, by cause. Raises NoReport."""
    try:
        for rank in found["per_rank"]:
            _check_causes(rank.get("seconds"))
    except NoReport as error:
        raise NoReport(f"the report {error}") from error
    return [rank["seconds"] for rank in found["per_rank"]]


def _has_links(links: Any) -> bool:
    if links is None:
        return True
    return isinstance(links, list) and all(
        isinstance(one, dict)
        and isinstance(one.get("link"), str)
        and isinstance(one.get("kind"), str)
        and is_number(one.get("bytes"))
        and (one.get("bits_per_second") is None or is_number(one["bits_per_second"]))
        for one in links
    )


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _is_mount(mount: Any) -> bool:
    if not isinstance(mount, dict) or not isinstance(mount.get("seconds"), dict):
        return False
    texts = all(isinstance(mount.get(name), str) for name in ("point", "type", "source", "name"))
    rate = mount.get("bytes_per_second")
    known = is_number(mount.get("looks")) and (rate is None or is_number(rate))
    return texts and known and all(map(is_number, mount["seconds"].values()))


def _check_causes(seconds: Any) -> None:
    if not isinstance(seconds, dict):
        raise NoReport("is not a report of whyidle: seconds must be an object")
    for cause, spent in seconds.items():
        if cause not in CAUSE_FAMILY:
            raise NoReport(f"has a cause that this whyidle does not know: {cause}")
        if not _is_seconds(spent):
            raise NoReport(f"is not a report of whyidle: the seconds of {cause} must be a number")


def _is_seconds(value: Any) -> bool:
    """They may be slightly negative: a wait that was split from the rings may be a nanosecond longer than the total
    from which it is subtracted."""
    return is_number(value) or (isinstance(value, float) and -1e-3 < value < 0)


def _check_recent(recent: Mapping[str, Any]) -> None:
    families = recent.get("families")
    names = ("step_seconds", "data_wait_seconds", "longest_data_wait_seconds", "save_seconds")
    series = [recent.get(name) for name in names]
    known = {*FAMILIES, WAITED}
    if not isinstance(families, dict) or not known.issuperset(families):
        raise NoReport("is not a report of whyidle: recent has families that this whyidle does not know")
    if not all(isinstance(one, list) for one in (*series, *families.values())):
        raise NoReport("is not a report of whyidle: the values of recent must be lists")
    lists: list[list[Any]] = [one for one in (*series, *families.values()) if one is not None]
    if (
        len({len(one) for one in lists}) != 1
        or not lists[0]
        or not all(is_number(value) for one in lists for value in one)
    ):
        raise NoReport("is not a report of whyidle: the lists of recent must all have the same length")

"""The words of mounts for ledgers that tests write."""

from __future__ import annotations

from typing import Any

from whyidle.ledger.mounts import LIMITS, mount_text

SECOND = 1_000_000_000
MB = 1_000_000
SLOW = ("/mnt/slow", "", "ext4", "/dev/loop0")


def mount(place: tuple[str, str, str, str] = SLOW, **words: Any) -> dict[str, Any]:
    """One of `Spec.mounts`. ``rates``: for each number of readers, MB/s of all together, each measured for 5 s.
    ``limit_by``: the name. Times in seconds: data, save, own."""
    rates = words.pop("rates", [])
    spent = {f"{kind}_ns": round(SECOND * words.pop(kind, 0)) for kind in ("data", "save", "own")}
    found: dict[str, Any] = {"text": mount_text(*place), "looks": 40, "counted": 1, **spent}
    if rates:
        found |= {
            "beside_bytes": [round(5 * MB * rate) for rate in rates],
            "beside_ns": [5 * SECOND if rate else 0 for rate in rates],
            "bytes": round(5 * MB * sum(rates)),
            "measured_ns": 5 * SECOND * sum(map(bool, rates)),
            "readers": round(40 * sum(number for number, rate in enumerate(rates, 1) if rate) / sum(map(bool, rates))),
        }
    if "limit_by" in words:
        words["limit_by"] = LIMITS.index(words["limit_by"])
    return found | words

"""Processes that compute on the GPUs of a run, and are not its own. The node's agent knows them from the driver."""

from __future__ import annotations

import pwd
from collections.abc import Sequence
from typing import Any

from ..agent.metrics.gpu import OTHER_BUSY
from ..ledger.reader import Ledger
from .exposition import Reading

NAMES: tuple[str, ...] = (OTHER_BUSY.name,)
"""The metrics to ask an agent for."""
_LEAST_SECONDS = 1.0


def of(reading: Reading, live: Sequence[Ledger]) -> list[dict[str, Any]]:
    """The longest first, each with rank, pid, uid, a sentence, and the seconds since the agent saw it first.
    ``live``: the ledgers of the live ranks of the run on this node."""
    own = {one.visible_pid for one in live}
    ranks = {one.strings["uuid"]: one.rank for one in live if one.strings["uuid"]}
    found = [
        {"rank": ranks[uuid], "pid": int(sample.labels["pid"]), "uid": int(sample.labels["uid"]), "seconds": seconds}
        for sample in reading.samples
        if sample.name == OTHER_BUSY.name
        and (uuid := sample.labels.get("uuid")) in ranks
        and int(sample.labels["pid"]) not in own
        and (seconds := sample.value) >= _LEAST_SECONDS
    ]
    return [one | {"sentence": _sentence(one)} for one in sorted(found, key=lambda one: -one["seconds"])]


def _sentence(one: dict[str, Any]) -> str:
    return (
        f"process {one['pid']} of {_user(one['uid'])} has used the GPU of rank {one['rank']}, too: all of it for"
        f" {one['seconds']:.0f} s or a part of it for longer, perhaps before the run began"
    )


def _user(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"

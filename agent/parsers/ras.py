"""The status of NCCL's RAS service: which ranks of which communicator answer, and how far each is.

NCCL 2.28.7 and later answer in JSON. The format is that of the functions `jsonWrite...` in NCCL's
src/ras/client_support.cc. Older versions answer in text for people, of which only lines are kept. Any program may
listen at the port, so every field is checked and bounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..files import Unreadable

MOST_COMMUNICATORS, MOST_RANKS, MOST_LINES = 256, 1 << 14, 60
_MOST_NUMBER = 1 << 63
_MOST_TEXT = 128
_ERRORS: dict[int, str] = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote error",
    7: "in progress",
}
"""ncclResult_t, in NCCL's nccl.h."""
_FINE = (0, 7)


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank that has answered."""

    rank: int
    host: str
    pid: int
    cuda_dev: int
    nvml_dev: int
    init_state: int  # ncclResult_t
    async_error: int  # ncclResult_t
    finalize_called: bool
    destroyed: bool
    aborted: bool
    counts: Mapping[str, int]
    """Collective -> how many of them the rank has launched."""


@dataclass(frozen=True, slots=True)
class MissingRank:
    """A rank that has not answered."""

    rank: int
    host: str
    pid: int
    cuda_dev: int
    nvml_dev: int
    unresponsive: bool
    dead: bool


@dataclass(frozen=True, slots=True)
class Communicator:
    hash: str
    size: int
    ranks: tuple[Rank, ...]
    missing: tuple[MissingRank, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """One answer of the service. ``lines``: the answer of an older version, for people."""

    version: str = ""
    timestamp: str = ""
    communicators: tuple[Communicator, ...] = ()
    timeouts: int = 0
    """How many processes have not answered the service in time."""
    lines: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Behind:
    """A rank that NCCL finds missing, or behind the others of its communicator."""

    rank: int
    host: str
    pid: int
    why: str


def parse_json(data: bytes) -> Status:
    """Parses an answer in JSON. Raises Unreadable."""
    try:
        whole = json.loads(data)
        found = whole["communicators"][:MOST_COMMUNICATORS]
        status = Status(
            version=_text(whole.get("nccl_version", "")),
            timestamp=_text(whole.get("timestamp", "")),
            communicators=tuple(map(_communicator, found)),
            timeouts=_number(whole.get("ras", {}).get("timeouts_count", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unreadable("garbage" if data.strip() else "empty") from None
    return status


def parse_text(data: bytes) -> Status:
    """Keeps the lines of an answer in text, fit for a terminal."""
    lines = data.decode("utf-8", "replace").splitlines()[:MOST_LINES]
    return Status(lines=tuple(_clean(line).rstrip() for line in lines))


def behind(communicator: Communicator) -> list[Behind]:
    """The ranks that keep a communicator: missing ranks; if there are none, ranks with an error; otherwise
    those that launched fewer collectives than the others."""
    if communicator.missing:
        return [Behind(one.rank, one.host, one.pid, _why_missing(one)) for one in communicator.missing]
    if failed := [one for one in communicator.ranks if _failure(one)]:
        return [Behind(one.rank, one.host, one.pid, _failure(one)) for one in failed]
    names = sorted({name for one in communicator.ranks for name in one.counts})
    late: dict[int, Behind] = {}
    for name in names:
        most = max(one.counts.get(name, 0) for one in communicator.ranks)
        for one in communicator.ranks:
            if (count := one.counts.get(name, 0)) < most:
                late.setdefault(one.rank, Behind(one.rank, one.host, one.pid, f"launched {count} of {most} {name}"))
    # If all but a few are behind, these few are ahead: they called what the others have not.
    return [late[rank] for rank in sorted(late)] if len(late) < len(communicator.ranks) else []


def largest(status: Status) -> Communicator | None:
    """The communicator with most ranks of those that somebody keeps, usually the world."""
    kept = [one for one in status.communicators if behind(one)]
    return max(kept or status.communicators, key=lambda one: one.size, default=None)


def sentences(status: Status) -> list[str]:
    """The status for people."""
    told = [f"NCCL {status.version}: {_counted(len(status.communicators), 'communicator')}"] if status.version else []
    for one in status.communicators:
        found = behind(one)
        told += [
            f"communicator {one.hash} of {one.size} ranks: rank {who.rank} {who.why}{_where(who)}" for who in found
        ]
    if status.timeouts:
        told.append(f"{_counted(status.timeouts, 'process')} did not answer NCCL in time")
    return [*told[:MOST_LINES], *status.lines]


def _where(who: Behind) -> str:
    return f" (process {who.pid} on {who.host})" if who.pid > 0 else ""


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 'es' if what.endswith('s') else 's'}"


def _why_missing(one: MissingRank) -> str:
    if one.dead:
        return "is considered dead by NCCL"
    return "does not answer NCCL" if one.unresponsive else "is missing: its process answers NCCL without it"


def _failure(one: Rank) -> str:
    for what, code in (("initialisation", one.init_state), ("an operation", one.async_error)):
        if code not in _FINE:
            return f"reports an error of {what}: {_ERRORS.get(code, f'error {code}')}"
    return "has aborted the communicator" if one.aborted else ""


def _communicator(raw: Any) -> Communicator:
    return Communicator(
        hash=_text(raw["hash"]),
        size=_number(raw["size"]),
        ranks=tuple(map(_rank, raw["ranks"][:MOST_RANKS])),
        missing=tuple(map(_missing, raw["missing_ranks"][:MOST_RANKS])),
    )


def _rank(raw: Any) -> Rank:
    status, counts = raw["status"], raw["collective_counts"]
    return Rank(
        **_place(raw),
        init_state=_number(status["init_state"]),
        async_error=_number(status["async_error"]),
        finalize_called=status["finalize_called"] is True,
        destroyed=status["destroy_flag"] is True,
        aborted=status["abort_flag"] is True,
        counts={_text(name): _number(count) for name, count in list(counts.items())[:64]},
    )


def _missing(raw: Any) -> MissingRank:
    status = raw["status"]
    return MissingRank(
        **_place(raw), unresponsive=status["unresponsive"] is True, dead=status["considered_dead"] is True
    )


def _place(raw: Any) -> dict[str, Any]:
    numbers = {name: _number(raw[name], least=-1) for name in ("rank", "pid", "cuda_dev", "nvml_dev")}
    return {**numbers, "host": _text(raw["host"])}


def _number(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < _MOST_NUMBER:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError
    return _clean(value[:_MOST_TEXT])


def _clean(line: str) -> str:
    """Removes control characters, because any program may listen at the port and answer."""
    return "".join(sign if sign.isprintable() else " " for sign in line)

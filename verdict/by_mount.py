"""The words for the mounts that a run waits for: in headlines, evidence and the report's JSON. Pure functions.

They have mount points and the first directories below them. Names of files only if WHYIDLE_FILES allows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..ledger.mounts import STORE
from .accounts import RankAccount, RunAccount
from .ends import listed, named
from .mounts import BANDWIDTH, KINDS, LATENCY, LEAST_LOOKS, QUEUEING, MountAccount, at_fault, most_of, of_ranks
from .words import digits, time_of

MOSTLY = 0.5
"""The words for what most looks found are used from this share on."""
MENTIONED = 0.1
"""A kind of call is mentioned if this share of the looks found it."""
ALONE = 0.9
"""The rate of a mount is that of saves if saves have this share of its seconds."""
LIMITED: dict[str, str] = {
    BANDWIDTH: "bandwidth, not latency",
    LATENCY: "latency, not bandwidth",
    QUEUEING: "operations queue in this node's client",
}
_MORE: dict[str, str] = {
    BANDWIDTH: "more readers get no more",
    LATENCY: "each reader is as fast as alone",
    QUEUEING: "operations queue in this node's client",
}
UNTOLD = "it is not known whether more readers at once would get more"
_SPENT = {"data": "waits for batches", "save": "saves and restores", "own": "the loop's own code"}


def size_of(number: float) -> str:
    """Such as `7.9 MB` or `16 MB`."""
    unit = "bytes"
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if round(number, 1) < 1000 or unit == "TB":
            break
        number /= 1000
    return f"{digits(number)} {unit}"


def path_of(point: str, first: str) -> str:
    """The directory in which the files are; the file, if there is one and its name is allowed."""
    return f"{point.rstrip('/')}/{first}" if first else point


def name_of(point: str, first: str, fstype: str, source: str) -> str:
    """Such as `/mnt/slow (ext4, loop0)` or `10.0.0.7:9000 (TCP)`. In the root file system, the first directory."""
    if fstype == STORE:
        return f"{point} (TCP)"
    source = source.removeprefix("/dev/")
    known = [part for part in (fstype, "" if source in ("none", fstype, fstype.partition(".")[2]) else source) if part]
    where = path_of(point, first) if point == "/" else point
    return f"{where} ({', '.join(known)})" if known else where


def name(mount: MountAccount) -> str:
    return name_of(mount.point, mount.first, mount.fstype, mount.source)


def rate_of(mount: MountAccount) -> str:
    """Such as `7.9 MB/s`; empty if it was not measured."""
    if mount.rate is None:
        return ""
    said = f"{size_of(mount.rate)}/s"
    if not mount.counted:
        return f"at most {said}{' for each rank' if len(mount.spent) > 1 else ''}"
    return f"{said} on each node" if len(mount.nodes) > 1 else said


def _does(mount: MountAccount, kind: str) -> str:
    if mount.part("metadata_looks") >= MOSTLY:
        return "open and stat on"
    if mount.part("fault_looks") >= MOSTLY:
        return "page faults of mapped files on"
    if kind == "save" and mount.fstype == STORE:
        return "uploads to"  # the answer comes when all of it has arrived
    writes = mount.part("write_looks") + mount.part("sync_looks")
    return "writes to" if kind != "data" and writes >= MOSTLY else "reads from"


def _how(mount: MountAccount, verb: str) -> str:
    """The rate, the size and time of a call, and what limits them; empty if nothing is known."""
    metadata = mount.part("metadata_looks") >= MOSTLY
    rate = _opened(mount) if metadata else rate_of(mount)
    if rate and mount.call_bytes and not metadata:
        rate += f" in {verb} of {size_of(mount.call_bytes)}"
        if mount.call_seconds:
            rate += f", {'' if mount.counted else 'at least '}{time_of(mount.call_seconds)} each"
    return ": ".join(filter(None, (rate, _limited(mount, _MORE if metadata else LIMITED))))


def _opened(mount: MountAccount) -> str:
    """Such as `120 files opened a second`; empty if that is not known."""
    return f"{digits(mount.opened)} files opened a second" if mount.opened else ""


def _limited(mount: MountAccount, words: dict[str, str]) -> str:
    kind = mount.limited_by
    said = words.get(kind, "")
    if kind == BANDWIDTH and mount.limit and words is LIMITED:
        return f"bandwidth ({mount.limit_by or 'a limit'} allows {size_of(mount.limit)}/s), not latency"
    return said


def blocked_on(ranks: Sequence[RankAccount], kind: str) -> str:
    """What the loop is blocked on, for headlines; empty if no mount has most of it."""
    return "; and on ".join(_said(mount, kind) for mount in most_of(ranks, kind))


def _said(mount: MountAccount, kind: str) -> str:
    does = _does(mount, kind)
    guessed = ", by open files" if mount.part("guesses") >= MOSTLY else ""
    how = _how(mount, "writes" if does == "writes to" else "reads")
    return f"{does} {name(mount)}{guessed}{f': {how}' if how else ''}"


def saves(ranks: Sequence[RankAccount]) -> str:
    """What saves write, for headlines, such as `4 × 16 MB to /ckpt (nfs4, s:/export) at 8 MB/s, 70 % of it in fsync`;
    empty if no mount has most of it."""
    found = most_of(ranks, "save")
    count, size = max((rank.saves for rank in ranks), default=0), sum(rank.save_bytes for rank in ranks)
    what = f"{count} × {size_of(size / count)}" if count and size else "writes"
    blocked = sum(rank.seconds["checkpoint_write"] for rank in ranks)
    rate = f"{size_of(size / blocked)}/s" if len(found) == 1 and not found[0].counted and size and blocked else ""
    return f"{what} to {'; and to '.join(_saved(one, rate) for one in found)}" if found else ""


def _saved(mount: MountAccount, rate: str) -> str:
    """``rate``: that of the saves, if the mount itself does not count what it moves."""
    alone = mount.seconds("save") >= ALONE * sum(map(mount.seconds, KINDS))
    rate, limited = (rate or rate_of(mount), _limited(mount, LIMITED)) if alone else ("", "")
    writes, syncs = mount.sums["write_looks"], mount.sums["sync_looks"]
    said = f"{name(mount)} at {rate}" if rate else name(mount)
    if syncs >= max(1.0, MENTIONED * (writes + syncs)):
        said += f", {100 * syncs / (writes + syncs):.0f} % of it in fsync"
    return f"{said}: {limited}" if limited else said


def more_readers(ranks: Sequence[RankAccount]) -> tuple[str, ...]:
    """For each mount that data workers wait for, whether more of them would get more."""
    return tuple(f"{name(mount)}: {_MORE.get(mount.limited_by, UNTOLD)}" for mount in most_of(ranks, "data"))


def restores(ranks: Sequence[RankAccount]) -> str:
    return "; and ".join(_said(mount, "data") for mount in most_of(ranks, "save"))


def sentences(account: RunAccount) -> Iterator[str]:
    """The evidence: what is known of the mounts at which the run lost much of its time."""
    for kind, spent in _SPENT.items():
        for mount in at_fault(account.ranks, kind):
            below = f", in {path_of(mount.point, mount.first)}" if mount.first and mount.point != "/" else ""
            yield (
                f"{mount.seconds(kind):.1f} s of {spent} were at {name(mount)}{below}: {'; '.join(_measured(mount))}"
            )
            if (other := _elsewhere(account, kind, mount)) is not None:
                yield other


def _measured(mount: MountAccount) -> Iterator[str]:
    found = [
        f"{100 * mount.part(looks):.0f} % {text}" for looks, text in LOOKED.items() if mount.part(looks) >= MENTIONED
    ]
    readers = f"{mount.readers:.1f}".removesuffix(".0")
    readers = "1 reader" if readers == "1" else f"{readers} readers at once"
    yield ", ".join([f"{mount.looks} looks found {readers} there on average", *found])
    if rates := mount.by_readers:
        each = [f"{size_of(rate)}/s with {_number(number)}" for number, rate in rates]
        yield f"{'' if mount.counted else 'at most '}{listed(each)}"
    elif mount.rate:
        yield rate_of(mount)
    if mount.limit and mount.limit_by:
        yield f"{mount.limit_by} allows {size_of(mount.limit)}/s"
    # The time of operations is that of the device, below a limit.
    if (count := mount.sums["operations"]) >= LEAST_LOOKS and not mount.limit:
        queue, trip = (mount.sums[word] / 1e9 / count for word in ("queue_ns", "trip_ns"))
        queued = f" after {time_of(queue)} in the queue" if queue else ""
        again = f", and {mount.sums['resent']} were sent again" if mount.sums["resent"] else ""
        yield f"{count} operations took {time_of(trip)} each{queued}{again}"
    if opened := _opened(mount):
        yield opened
    yield _MORE.get(mount.limited_by, UNTOLD)


def _number(readers: float) -> str:
    return "1 reader" if readers == 1 else f"{digits(readers)} readers"


def _elsewhere(account: RunAccount, kind: str, mount: MountAccount) -> str | None:
    """Says that few ranks use a mount while the others use another one for the same."""
    few = sorted(rank for rank, spent in mount.spent.items() if spent[kind] > 0)
    others = [rank for rank in account.ranks if rank.rank not in few]
    known = [one for one in of_ranks(others) if one.looks >= LEAST_LOOKS]
    theirs = [one for one in known if any(spent[kind] > 0 for spent in one.spent.values())]
    if not few or not theirs or len(few) >= len(others) or mount.key in [one.key for one in known]:
        return None
    verb = "uses" if len(few) == 1 else "use"
    their = sorted(rank for rank, spent in theirs[0].spent.items() if spent[kind] > 0)
    return (
        f"{named(few)} {verb} {name(mount)}, while {named(their)} {'uses' if len(their) == 1 else 'use'}"
        f" {name(theirs[0])}"
    )


def entries(account: RunAccount) -> list[dict[str, Any]]:
    """The mounts as JSON, that with the most seconds first. None: not known."""
    ranks = account.ranks
    guilty = {mount.key for kind in KINDS for mount in at_fault(ranks, kind)}
    return [entry(mount) | {"named": mount.key in guilty} for mount in of_ranks(ranks)]


def entry(mount: MountAccount) -> dict[str, Any]:
    sums, known = mount.sums, mount.looks >= LEAST_LOOKS
    return {
        "point": mount.point,
        "first": mount.first,
        "type": mount.fstype,
        "source": mount.source,
        "name": name(mount),
        "ranks": sorted(mount.spent),
        "seconds": {kind: mount.seconds(kind) for kind in KINDS},
        "looks": mount.looks,
        "guesses": sums["guesses"],
        "metadata_share": mount.part("metadata_looks") if known else None,
        "fault_share": mount.part("fault_looks") if known else None,
        "write_share": mount.part("write_looks") if known else None,
        "sync_share": mount.part("sync_looks") if known else None,
        "readers": mount.readers if known else None,
        "bytes_per_second": mount.rate,
        "counted": mount.counted if mount.rate is not None else None,
        "by_readers": [{"readers": number, "bytes_per_second": rate} for number, rate in mount.by_readers],
        "call_bytes": mount.call_bytes,
        "call_seconds": mount.call_seconds,
        "limit_bytes_per_second": mount.limit or None,
        "limit_by": mount.limit_by or None,
        "limited_by": mount.limited_by or None,
        "files_opened_per_second": mount.opened,
        "operations": {word: sums[word] for word in ("operations", "queue_ns", "trip_ns", "resent")}
        if sums["operations"]
        else None,
    }


LOOKED: dict[str, str] = {
    "metadata_looks": "in open and stat",
    "fault_looks": "in page faults of mapped files",
    "write_looks": "in write",
    "sync_looks": "in fsync",
    "guesses": "by open files alone",
}

"""Files that the loop's own code writes and reads, outside of what the hooks see. Pure functions over accounts.

No cause has the time that this takes, because the kernel counts bytes and page faults and not how long they took. So it
is evidence: it says what the blocked time of a loop may be.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ledger.below import BELOW
from .accounts import RankAccount, RunAccount
from .ends import named
from .sampled import blocked_on, moved_from, moved_to

SHARE = 0.01
"""Evidence mentions files if the time in which they were written, or may have been read, is at least this share."""
BYTES_PER_SECOND = 256 << 10
FAULTS_PER_SECOND = 20
"""With fewer of both in a second of idle time, something other than reads takes the time."""
LEAST_LOOKS, AT_MOUNTS = 10, 0.05
"""Nor if LEAST_LOOKS looks were made, and the loop was blocked at a mount for less than AT_MOUNTS of that time."""
FEW_LOOKS = 5
"""Nor if FEW_LOOKS looks were made, and none found it at a mount."""
SLEEPS = 3
"""Nor if it is blocked in one function, and this many looks found that the function sleeps."""
OUR_BYTES_PER_SECOND = 50_000
"""whyidle's meters read from /proc all the time. 7 to 36 kB/s were measured (2026-11-25, two shared cores)."""
STEPS_PER_BATCH = 10
"""A loop makes its own batches if it takes at least this many steps for each batch that the hooks have seen, or that it
has marked. These batches may be those of evaluations."""


def sentences(account: RunAccount) -> Iterator[str]:
    yield from _writes(account)
    yield from _reads(account)


def reads_by_hand(rank: RankAccount) -> bool:
    """Whether the training thread read a lot while the loop's own code was idle, or may have been idle."""
    seen = rank.newest.batches + rank.newest.marked_data
    if STEPS_PER_BATCH * seen > rank.newest.steps or _idle(rank) < SHARE * rank.wall:
        return False
    if 2 * moved_to(rank, "data_read") > _idle(rank):
        return False  # looks have found that these are batches
    at_mounts = sum(mount.own_ns for _, mount in rank.mounts) / 1e9
    looks = rank.newest.words["mount_looks_all"][0]
    if (looks >= LEAST_LOOKS and at_mounts < AT_MOUNTS * _idle(rank)) or (looks >= FEW_LOOKS and not at_mounts):
        return False  # looks have found it blocked elsewhere
    if _sleeps(rank):
        return False
    return _many_bytes(rank) or _many_faults(rank)


def what_was_read(ranks: list[RankAccount]) -> str:
    """The bytes and page faults of ranks for which `reads_by_hand` is true."""
    size, faults = sum(rank.thread_read_bytes for rank in ranks), sum(rank.thread_major_faults for rank in ranks)
    found = [f"read {size / 1e6:.1f} MB from files"] if any(map(_many_bytes, ranks)) else []
    if any(map(_many_faults, ranks)):
        found.append(f"had {faults} page faults that had to wait for a read (memory-mapped files, or swapped memory)")
    return " and ".join(found)


def _sleeps(rank: RankAccount) -> bool:
    """Whether the function that has most of the blocked time sleeps. Looks say so of functions of known kinds."""
    if "blocked" not in rank.places:
        return False
    place, at, looks = rank.places["blocked"]
    for kind in BELOW if 2 * at >= looks else ():
        where, _, function = rank.newest.strings[f"{kind}_below"].rpartition(" ")
        if (where.rpartition(":")[0], function) == (place.file, place.function):
            enough = sum(rank.newest.words[f"{kind}_blocked_on"]) >= SLEEPS
            return enough and blocked_on(rank.newest, kind) == "a sleep"
    return False


def _many_bytes(rank: RankAccount) -> bool:
    theirs = rank.thread_read_bytes - OUR_BYTES_PER_SECOND * rank.wall
    return theirs >= BYTES_PER_SECOND * _idle(rank) > 0


def _many_faults(rank: RankAccount) -> bool:
    return rank.thread_major_faults >= FAULTS_PER_SECOND * _idle(rank) > 0


def _idle(rank: RankAccount) -> float:
    """Seconds in which the loop's own code was blocked; on an accelerator, in which it may have been."""
    if rank.newest.device == "cpu":
        return rank.seconds["host_blocked"] + moved_from(rank, "host_blocked")
    return rank.gaps if rank.gaps is not None else rank.seconds["compute"] + rank.seconds["host"]


def _writes(account: RunAccount) -> Iterator[str]:
    """Files that the loop's own code writes in time that counts as host."""
    wrote = [rank for rank in account.ranks if rank.host_write >= SHARE * rank.wall > 0]
    if wrote:
        spent, size = sum(rank.host_write for rank in wrote), sum(rank.host_write_bytes for rank in wrote)
        yield (
            f"{named([rank.rank for rank in wrote])}: in {spent:.1f} s of host time the loop itself wrote "
            f'{size / 1e9:.1f} GB to files. If these are checkpoints, put them in `with whyidle.phase("checkpoint")`'
        )


def _reads(account: RunAccount) -> Iterator[str]:
    """Files that the training thread reads in a loop that makes its batches itself."""
    if readers := [rank for rank in account.ranks if reads_by_hand(rank)]:
        yield (
            f"{named([rank.rank for rank in readers])}: the loop's own code {what_was_read(readers)}. If these "
            'are batches, make them in `with whyidle.phase("data")`. Then waits for reads count as storage'
        )

"""How busy the devices of ranks are that use several devices in one process. Pure functions."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING

from ..ledger.gpus import DEVICES, UNUSED
from ..ledger.reader import Ledger

if TYPE_CHECKING:
    from .accounts import RankAccount

LEAST_LOOKS = 10
"""With fewer looks at the utilisation, nothing is said. Each is the mean of a fifth of a second or longer."""
WORKS = 0.05
"""A process works on a device that is busy for at least this share of the time. Others may only hold tensors."""
SOME = 0.05
"""If the devices are idle for less than this share of their time, nothing is moved to `pipeline`."""
TOGETHER = 0.15
"""Devices take turns if their busy shares add up to at most one whole and this."""


def used(ledger: Ledger) -> list[int]:
    """The indices of the devices that the process uses; empty on a CPU rank."""
    bits = ledger.devices_used | (1 << ledger.device_index if ledger.device_index >= 0 else 0)
    return [index for index in range(DEVICES) if bits >> index & 1]


def reason(ledger: Ledger) -> str:
    """One of UNUSED; empty for a rank that uses a GPU, or that was given none."""
    return UNUSED[ledger.gpu_unused]


def busy_shares(ledger: Ledger, of_others: Container[int] = ()) -> dict[int, float]:
    """Device -> the share of time with a kernel on it; empty if the process works on one, or if it is not known.

    ``of_others``: devices on which other ranks of the node work. Their kernels say nothing about this rank.
    """
    looks, devices = ledger.device_looks, used(ledger)
    if looks < LEAST_LOOKS or len(devices) < 2:
        return {}
    shares = {index: min(1.0, ledger.words["device_busy"][index] / looks / 1000) for index in devices}
    found = {index: share for index, share in shares.items() if share >= WORKS and index not in of_others}
    return found if len(found) > 1 else {}


def idle_share(busy: Mapping[int, float]) -> float:
    """The part of their device-seconds in which these devices ran nothing."""
    return 1.0 - sum(busy.values()) / len(busy)


def idle_together(busy: Mapping[int, float]) -> float:
    """The share of time in which none of these devices ran anything: at most this."""
    return max(0.0, 1.0 - (sum(busy.values()) if take_turns(busy) else max(busy.values())))


def take_turns(busy: Mapping[int, float]) -> bool:
    return len(busy) > 1 and sum(busy.values()) <= 1.0 + TOGETHER


def sentence(ranks: Iterable[RankAccount]) -> str:
    """Such as `cuda:0 and cuda:1 take turns, 48 and 51 % busy: the layers of one model are spread over them`.

    About the rank whose devices are least busy; empty if no rank uses several devices.
    """
    found = [(idle_share(busy), rank.rank, busy) for rank in ranks if (busy := rank.busy)]
    if not found:
        return ""
    _, _, busy = max(found, key=lambda one: one[:2])
    names, shares = _and(f"cuda:{index}" for index in busy), _and(f"{100 * share:.0f}" for share in busy.values())
    if take_turns(busy):
        return f"{names} take turns, {shares} % busy: the layers of one model are spread over them"
    return f"{names} are {shares} % busy: one process drives them"


def next_step(ranks: Iterable[RankAccount]) -> str:
    """What would use all devices of the rank at once."""
    most = max((len(rank.busy) for rank in ranks), default=0)
    return (
        f"to use all of them at once: one process for each (`torchrun --nproc-per-node={most}`), with "
        "DistributedDataParallel, or with fully_shard if the model does not fit on one"
    )


def _and(texts: Iterable[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last

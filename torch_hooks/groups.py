"""Which group of ranks a wait belongs to.

A *slot* of the ledger is a set of ranks: 0 the world, 1 to 6 the first others in which this rank waits, and 7 all waits
whose ranks are not known. Sends and receives have a slot of their own: there, ranks meet in pairs. Two process groups
of the same ranks share a slot, since every rank makes its calls in the same order.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..ledger.layout import SLOTS, UNKNOWN_SLOT

if TYPE_CHECKING:
    from .wait_codes import Issues, WaitCode

ALONE = -1
"""The slot of a group of one rank: nobody waits there."""

_KEPT = 512
"""Works, futures and tensors of collectives that were issued and not waited for yet: beyond this, dead ones go."""


class Group(NamedTuple):
    """What a slot stands for."""

    slot: int
    ranks: tuple[int, ...]
    """Global ranks, in ascending order."""
    pairwise: bool
    label: str
    key: int


class Groups:
    """The slots of this process. Not thread-safe: the training thread alone asks.

    ``found`` is called with each group that gets a slot, before anything is waited for in it.
    """

    def __init__(
        self, rank: int, world: tuple[int, ...], found: Callable[[Group], None], taken: dict[int, Group] | None = None
    ):
        """``taken``: slots of an earlier world of this process, which keep their meaning."""
        self._rank = rank
        self._world = world
        self._found = found
        self.taken = taken or {}
        self.slots: dict[int, Group] = {}
        """Those in which this rank waits."""
        self._by_ranks: dict[tuple[tuple[int, ...], bool], int] = {}
        self._of_group: dict[tuple[int, bool], tuple[weakref.ref[Any], int]] = {}
        self._members: dict[int, list[int]] = {}
        self._waited: dict[int, tuple[weakref.ref[Any], WaitCode, Issues]] = {}
        self.coalesced: list[tuple[WaitCode, Issues]] | None = None
        """Calls that are being gathered to be issued as one."""
        self._of_storage: dict[int, int] = {}
        self.resolved = UNKNOWN_SLOT
        """The slot of the group that a functional collective has just resolved."""

    # -- the slot of a group

    def known(self, group: Any, pairwise: bool = False) -> int | None:
        """The slot of a process group, or ALONE; None where the group is new."""
        known = self._of_group.get((id(group), pairwise))
        return known[1] if known is not None and known[0]() is group else None

    def slot_of(self, group: Any, pairwise: bool = False) -> int:
        """The same of a group that may be new."""
        known = self.known(group, pairwise)
        if known is not None:
            return known
        self._members.pop(id(group), None)  # of a group that is gone, whose id this one has
        slot = self._look_up(group, pairwise)
        self._of_group[id(group), pairwise] = (weakref.ref(group), slot)
        return slot

    def _look_up(self, group: Any, pairwise: bool) -> int:
        distributed = sys.modules["torch.distributed"]
        if group.size() == 1:
            return ALONE
        try:
            ranks = tuple(sorted(distributed.get_process_group_ranks(group)))
        except (KeyError, ValueError, RuntimeError):  # a group that was made beside torch.distributed's bookkeeping
            return UNKNOWN_SLOT
        if self._rank not in ranks:
            return UNKNOWN_SLOT
        slot = self._by_ranks.get((ranks, pairwise))
        return self._new_slot(group, ranks, pairwise) if slot is None else slot

    def _new_slot(self, group: Any, ranks: tuple[int, ...], pairwise: bool) -> int:
        slot = 0 if ranks == self._world and not pairwise else self._free_slot(ranks, pairwise)
        if slot != UNKNOWN_SLOT:
            found = Group(slot, ranks, pairwise, self._label(group, slot, ranks, pairwise), key_of(ranks, pairwise))
            self.slots[slot] = found
            self._found(found)
        self._by_ranks[ranks, pairwise] = slot
        return slot

    def _free_slot(self, ranks: tuple[int, ...], pairwise: bool) -> int:
        for slot, group in self.taken.items():
            if slot and (group.ranks, group.pairwise) == (ranks, pairwise):
                return slot
        free = (slot for slot in range(1, UNKNOWN_SLOT) if slot not in self.slots and slot not in self.taken)
        return next(free, UNKNOWN_SLOT)

    def peer_of(self, group: Any, rank: int) -> int:
        """The global rank of a rank of ``group``."""
        members = self._members.get(id(group))
        if members is None or len(members) <= rank:
            members = sys.modules["torch.distributed"].get_process_group_ranks(group)
            self._members[id(group)] = members
        return members[rank]

    def _label(self, group: Any, slot: int, ranks: tuple[int, ...], pairwise: bool) -> str:
        """The name of the mesh dimension where there is one (torch >= 2.5 keeps it), else kind and size.

        What a slot has counted in an earlier world stays under its first name.
        """
        if (before := self.taken.get(slot)) is not None and (before.ranks, before.pairwise) == (ranks, pairwise):
            return before.label
        described = str(getattr(group, "group_desc", ""))
        name = described.removeprefix("mesh_") if described.startswith("mesh_") else ""
        label = "world" if ranks == self._world else name or f"{len(ranks)} ranks"
        if pairwise:
            label = f"{name or label} p2p"
        taken = {group.label for group in (*self.slots.values(), *self.taken.values()) if group.slot != slot}
        return label if label not in taken else next(
            other for number in range(2, SLOTS + 2) if (other := f"{label} ({number})") not in taken
        )  # fmt: skip

    def outside(self, slot: int) -> tuple[int, ...]:
        """The slots in which a rank may be held up on its way to ``slot``: not those whose waits hold all of it up.

        The collectives of a group that contains this one hold all of its members up at once. Sends and receives never
        do, and whoever is late for a message may have waited anywhere.
        """
        mine = self.slots[slot]
        return tuple(
            other
            for other, group in self.slots.items()
            if other != slot and (group.pairwise or mine.pairwise or not set(mine.ranks) <= set(group.ranks))
        )

    def containing(self, inner: Group) -> tuple[int, ...]:
        """The slots of collectives that all ranks of a group take part in."""
        return tuple(
            slot for slot, group in self.slots.items() if not group.pairwise and set(inner.ranks) <= set(group.ranks)
        )

    # -- from a call to its wait

    def issued(self, handle: Any, code: WaitCode, issues: Issues = ()) -> None:
        """A work or a future that will be waited for. ``issues``: the sends and receives that it stands for."""
        waited = self._waited
        waited[id(handle)] = (weakref.ref(handle), code, issues)
        if len(waited) > _KEPT:
            for key in [key for key, (alive, _, _) in waited.items() if alive() is None]:
                del waited[key]
            if len(waited) > _KEPT:
                waited.clear()

    def issue_of(self, handle: Any) -> tuple[WaitCode, Issues] | None:
        """What the wait for a work or a future is, and for which messages; None where its call was not seen."""
        entry = self._waited.get(id(handle))
        return entry[1:] if entry is not None and entry[0]() is handle else None

    def waits_for(self, handle: Any) -> tuple[WaitCode, Issues] | None:
        """The same, once: a rank that waits again for what it has waited for makes no call that others make too."""
        issue = self.issue_of(handle)
        if issue is not None:
            del self._waited[id(handle)]
        return issue

    def wrapped(self, tensor: Any) -> None:
        """A functional collective returns ``tensor``, whose group has just been resolved."""
        if len(self._of_storage) > _KEPT:
            self._of_storage.clear()
        self._of_storage[tensor.data_ptr()] = self.resolved

    def slot_of_tensor(self, tensor: Any) -> int:
        """Where the wait for the tensor of a functional collective belongs."""
        return self._of_storage.pop(tensor.data_ptr(), UNKNOWN_SLOT)


def key_of(ranks: tuple[int, ...], pairwise: bool) -> int:
    """A number that names a set of ranks on all of them."""
    text = f"{'p2p' if pairwise else 'all'}:{','.join(map(str, ranks))}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big") | 1

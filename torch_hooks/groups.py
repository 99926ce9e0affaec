"""Finds which group of ranks a wait belongs to.

A *slot* of the ledger stands for a set of ranks. Slot 0 is the world, slots 1 to 6 are the first other groups in which
this rank waits, and slot 7 has all waits whose ranks are not known. Sends and receives of a group have a separate slot,
because ranks meet in pairs there. Two process groups with the same ranks share a slot, because every rank makes its
calls in the same order.

The members of a group compare by slot how long they waited elsewhere. So a kind of group should have the same slot on
all ranks, although the stages of a pipeline meet their groups in different orders. Groups that a mesh names as usual
have theirs, sends and receives have the last ones, and others the first free one.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from ..ledger.dimensions import DIMENSIONS
from ..ledger.layout import SLOTS, UNKNOWN_SLOT
from .wait_codes import NOT_ENTERED, UNKNOWN_WAIT, WITHOUT_PEER, WaitCode, numbered

if TYPE_CHECKING:
    from .wait_codes import Issues

_USUAL = ("", "data", "shard", "tensor", "sequence", "expert")
"""The dimension that has each slot, if the slot is free."""
MOST_GROUPS = 1 << 19
_KEPT = 512
"""How many works, futures and tensors to remember whose collectives were issued and not waited for yet. When there are
more, dead ones are removed."""


class Group(NamedTuple):
    """The group that a slot stands for."""

    slot: int
    ranks: tuple[int, ...]
    """Global ranks, in ascending order."""
    pairwise: bool
    label: str
    key: int


class Groups:
    """The slots of this process. Not thread-safe: only the training thread may use it.

    ``found`` is called with each group that gets a slot, before the first wait in it.
    """

    def __init__(
        self, rank: int, world: tuple[int, ...], found: Callable[[Group], None], taken: dict[int, Group] | None = None
    ):
        """``taken``: slots of an earlier world of this process. They keep their meaning."""
        self._rank = rank
        self._world = world
        self._found = found
        self.taken = taken or {}
        self.slots: dict[int, Group] = {}
        """The slots in which this rank waits."""
        self._by_ranks: dict[tuple[tuple[int, ...], bool], int] = {}
        self.seen: dict[tuple[int, bool], tuple[weakref.ref[Any], WaitCode]] = {}
        """What ``code_of`` has returned, by the id of the process group, which must still be the same."""
        self._members: dict[int, list[int]] = {}
        self.waited: dict[int, tuple[weakref.ref[Any], WaitCode, Issues, bool, bool]] = {}
        """The works and futures that will be waited for, by id: the arguments of ``issued``."""
        self.coalesced: list[tuple[WaitCode, Issues]] | None = None
        """Calls that are being collected, to be issued as one."""
        self._of_storage: dict[int, WaitCode] = {}
        self.resolved: WaitCode = UNKNOWN_WAIT
        """The code of a wait in the group that a functional collective has resolved last."""

    # -- the slot of a group

    def code_of(self, group: Any, pairwise: bool = False) -> WaitCode:
        """The code of a wait in a process group, without a peer. A new group gets a slot.

        NOT_ENTERED if this rank is its only member: nobody waits there.
        """
        seen = self.seen.get((id(group), pairwise))
        if seen is not None and seen[0]() is group:
            return seen[1]
        self._members.pop(id(group), None)  # a deleted group may have had the same id
        code = NOT_ENTERED
        if group.size() > 1:
            slot = self._slot_of(group, pairwise)
            code = WITHOUT_PEER[slot] if pairwise or slot == UNKNOWN_SLOT else numbered(slot, number_of(group))
        self.seen[id(group), pairwise] = weakref.ref(group), code
        return code

    def _slot_of(self, group: Any, pairwise: bool) -> int:
        distributed = sys.modules["torch.distributed"]
        try:
            ranks = tuple(sorted(distributed.get_process_group_ranks(group)))
        except (KeyError, ValueError, RuntimeError):  # torch.distributed has no record of this group
            return UNKNOWN_SLOT
        if self._rank not in ranks:
            return UNKNOWN_SLOT
        slot = self._by_ranks.get((ranks, pairwise))
        return self._new_slot(group, ranks, pairwise) if slot is None else slot

    def _new_slot(self, group: Any, ranks: tuple[int, ...], pairwise: bool) -> int:
        slot = 0 if ranks == self._world and not pairwise else self._free_slot(ranks, pairwise, _mesh_name(group))
        if slot != UNKNOWN_SLOT:
            found = Group(slot, ranks, pairwise, self._label(group, slot, ranks, pairwise), key_of(ranks, pairwise))
            self.slots[slot] = found
            self._found(found)
        self._by_ranks[ranks, pairwise] = slot
        return slot

    def _free_slot(self, ranks: tuple[int, ...], pairwise: bool, name: str) -> int:
        for slot, group in self.taken.items():
            if slot and (group.ranks, group.pairwise) == (ranks, pairwise):
                return slot
        free = [slot for slot in range(1, UNKNOWN_SLOT) if slot not in self.slots and slot not in self.taken]
        if not free:
            return UNKNOWN_SLOT
        if pairwise:
            return free[-1]
        dimension = DIMENSIONS.get(name, "")
        usual = _USUAL.index(dimension) if dimension in _USUAL else 0
        return usual if usual in free else free[0]

    def peer_of(self, group: Any, rank: int) -> int:
        """Converts a rank of ``group`` to its global rank."""
        members = self._members.get(id(group))
        if members is None or len(members) <= rank:
            members = sys.modules["torch.distributed"].get_process_group_ranks(group)
            self._members[id(group)] = members
        return members[rank]

    def _label(self, group: Any, slot: int, ranks: tuple[int, ...], pairwise: bool) -> str:
        """The name of the mesh dimension if there is one (torch >= 2.5 keeps it); otherwise kind and size.

        A slot of an earlier world keeps its first name, because it has counted under that name.
        """
        if (before := self.taken.get(slot)) is not None and (before.ranks, before.pairwise) == (ranks, pairwise):
            return before.label
        name = _mesh_name(group)
        label = "world" if ranks == self._world else name or f"{len(ranks)} ranks"
        if pairwise:
            label = f"{name or label} p2p"
        taken = {group.label for group in (*self.slots.values(), *self.taken.values()) if group.slot != slot}
        return label if label not in taken else next(
            other for number in range(2, SLOTS + 2) if (other := f"{label} ({number})") not in taken
        )  # fmt: skip

    def outside(self, slot: int) -> tuple[int, ...]:
        """The slots in which waits may make a rank late for ``slot``.

        Leaves out groups that contain this one: their collectives delay all members of this group by the same time.
        This does not hold for sends and receives: they delay members differently, and a rank that is late for a message
        may have waited anywhere.
        """
        mine = self.slots[slot]
        return tuple(
            other
            for other, group in self.slots.items()
            if other != slot and (group.pairwise or mine.pairwise or not set(mine.ranks) <= set(group.ranks))
        )

    def containing(self, inner: Group) -> tuple[int, ...]:
        """The slots of collectives in which all ranks of a group take part."""
        return tuple(
            slot for slot, group in self.slots.items() if not group.pairwise and set(inner.ranks) <= set(group.ranks)
        )

    # -- from a call to its wait

    def issued(
        self, handle: Any, code: WaitCode, issues: Issues = (), beside: bool = True, blocks: bool = False
    ) -> None:
        """Remembers a work or a future that will be waited for. ``issues``: the sends and receives of it.

        ``beside``: its wait counts, too, if another stream than the home stream waits. That of a synchronous call does
        not: FSDP makes such calls on streams for which the home stream waits later. ``blocks``: see
        `PhaseMachine.enter_wait`.
        """
        waited = self.waited
        waited[id(handle)] = (weakref.ref(handle), code, issues, beside, blocks)
        if len(waited) > _KEPT:
            for key in [key for key, (alive, *_) in waited.items() if alive() is None]:
                del waited[key]
            if len(waited) > _KEPT:
                waited.clear()

    def issue_of(self, handle: Any) -> tuple[WaitCode, Issues, bool, bool] | None:
        """The arguments of ``issued`` for a work or a future; None if its call was not seen."""
        entry = self.waited.get(id(handle))
        return entry[1:] if entry is not None and entry[0]() is handle else None

    def wrapped(self, tensor: Any) -> None:
        """A functional collective returns ``tensor``. Its group is the one that was resolved last."""
        if len(self._of_storage) > _KEPT:
            self._of_storage.clear()
        self._of_storage[tensor.data_ptr()] = self.resolved

    def code_of_tensor(self, tensor: Any) -> WaitCode:
        """The code of the wait for the tensor of a functional collective."""
        return self._of_storage.pop(tensor.data_ptr(), UNKNOWN_WAIT)


def number_of(group: Any) -> int:
    """A number that tells groups of the same ranks apart, from 1, the same on all of these ranks; 0: the world, or not
    known. It comes from the name that torch gives a group: its number, or a hash."""
    try:
        name = str(group.group_name)
    except (AttributeError, RuntimeError):  # an older torch; a group without a name
        return 0
    number = int(name) if name.isdecimal() else crc32(name.encode())
    return (number - 1) % MOST_GROUPS + 1 if number else 0


def _mesh_name(group: Any) -> str:
    """The name of the mesh dimension; empty if there is none, or before torch 2.5."""
    described = str(getattr(group, "group_desc", ""))
    return described.removeprefix("mesh_") if described.startswith("mesh_") else ""


def key_of(ranks: tuple[int, ...], pairwise: bool) -> int:
    """A hash that identifies a set of ranks, the same on all of them."""
    text = f"{'p2p' if pairwise else 'all'}:{','.join(map(str, ranks))}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big") | 1

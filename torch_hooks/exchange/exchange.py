"""The exchanges of this rank, one per group, from the first wait in a group to its last block."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...ledger.layout import WORD_AT
from ...ledger.messages import MOST_STAGES, clock_word
from ...ledger.waits import NOTHING
from .. import background
from ..groups import Group, Groups
from ..notices import debug, say
from ..steps import NEVER
from . import restored
from .formation import Formation
from .mixes import Mixes
from .node_groups import NodeGroups
from .side_group import build, connect, server_of_store
from .slot import CollectiveExchange, Lost, MessageExchange, SlotExchange

if TYPE_CHECKING:
    from ..machine import PhaseMachine

OFFER_AFTER_STEPS = 2
"""A group is formed after this rank has waited there in this many steps, so that groups that are used only once have no
exchange."""
CONNECT_SECONDS = 60.0
LAST_BLOCK_SECONDS = 0.2
"""How long a process waits at exit for the last blocks. If all ranks exit within this time, these are split, too."""
_SHORTEST_PAUSE, _LONGEST_PAUSE, _LONGEST_PAUSE_LARGE = 0.01, 1.0, 5.0
_LARGE = 256
_KEY_AT, _SIZE_AT, _PAIRWISE_AT = (WORD_AT[f"slot_{name}"][0] for name in ("key", "size", "pairwise"))
_CALLS_AT = WORD_AT["slot_calls"][0]


class _Offer:
    """A group that is being formed. The training thread and the thread that forms groups share this state."""

    def __init__(self, exchange: SlotExchange, held_from: int | None):
        self.exchange = exchange
        self.held_from = held_from
        self.wants_hold = False
        self.steps = self.calls = 0
        self.given = False  # whether the thread that forms groups has it
        self.formation: Formation | None = None
        self.answered = False  # whether the rank has told the others the first step whose waits it keeps pending
        self.formed: tuple[Any, int, int] | None = None
        """The arguments of `SlotExchange.begin`."""
        self.failure = ""


class Exchange:
    """Keeps the waits of steps pending until they can be split. Only the training thread may call it."""

    def __init__(
        self,
        machine: PhaseMachine,
        rank: int,
        world: tuple[int, ...],
        finished: Callable[[Any], None],
        state: Callable[[str], None],
        taken: dict[int, Group] | None = None,
    ):
        """``finished`` raises the error of a work that has failed. ``state`` gets the state of the hook `exchange`.

        ``taken``: slots of an earlier world of this process.
        """
        self.groups = Groups(rank, world, self._found, taken)
        self._machine = machine
        self._rank = rank
        self._finished = finished
        self._state = state
        self._mixes = Mixes(rank, self.groups.slots)
        self.server = server_of_store(sys.modules["torch.distributed"])
        """Host and port of the store."""
        self._offers: list[_Offer] = []
        self._exchanges: list[SlotExchange] = []
        self._queue: list[_Offer] = []
        self.idle_steps = 0
        """At how many of the next step boundaries ``poll`` does not have to be called. The caller counts them down."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _found(self, group: Group) -> None:
        """The rank is about to wait in a group for the first time."""
        machine = self._machine
        words, slot = machine.words, group.slot
        words[_KEY_AT + slot], words[_SIZE_AT + slot] = group.key, len(group.ranks)
        words[_PAIRWISE_AT + slot] = group.pairwise
        machine.label(slot, group.label)
        if self.server is None:
            return
        if group.pairwise and len(group.ranks) > MOST_STAGES:
            return
        kind = MessageExchange if group.pairwise else CollectiveExchange
        exchange = kind(machine, group, self._rank, self._finished, self._mixes)
        self._offers.append(_Offer(exchange, self._hold(group, whole=True)))
        self.idle_steps = 0
        for held in machine.books.held:
            if held is not None:
                held.outside = self.groups.outside(held.slot)
        for one in (*self._exchanges, *(offer.exchange for offer in self._offers)):
            if isinstance(one, MessageExchange):
                one.together = self.groups.containing(one.group)

    def _hold(self, group: Group, *, whole: bool) -> int | None:
        """Makes the waits of a group pending. Returns the first step whose waits are; None during an update."""
        first: list[int] = []
        books = self._machine.books
        outside = self.groups.outside(group.slot)

        def hold() -> None:
            first.append(books.hold(group.slot, outside, whole=whole, pairwise=group.pairwise))

        self._machine.update(hold)
        return first[0] if first else None

    # -- at each step boundary

    def poll(self) -> None:
        """Polls all groups. Never waits and never raises: a group that fails does not affect the others."""
        if self._offers:
            self._poll_offers()
        for exchange in self._exchanges:
            try:
                exchange.poll()
            except Exception as error:  # the fence around the training
                self._lose(exchange, error)
                return  # the list has changed
        self.idle_steps = 1 if self._offers else min([one.due_in() for one in self._exchanges], default=NEVER)

    def _poll_offers(self) -> None:
        for offer in list(self._offers):
            exchange = offer.exchange
            try:
                if offer.failure:
                    raise Lost(offer.failure)
                if offer.formed is not None:
                    exchange.begin(*offer.formed)
                    self._offers.remove(offer)
                    self._exchanges.append(exchange)
                    self._state("active")
                    continue
                if offer.wants_hold and offer.held_from is None:
                    offer.held_from = self._hold(exchange.group, whole=False)
                if not offer.given:
                    self._give(offer)
                if offer.answered:  # the others rely on its pending waits
                    self._check(offer)
                else:
                    exchange.poll()
            except Lost as lost:
                self._let_go(offer, lost)
            except Exception as error:  # the fence around the training
                self._let_go(offer, error)

    def _check(self, offer: _Offer) -> None:
        try:
            offer.exchange.check()
        except Lost as lost:
            offer.failure = str(lost)
            raise

    def _give(self, offer: _Offer) -> None:
        """Gives a group to the thread that forms groups, after the rank has waited there in OFFER_AFTER_STEPS steps."""
        calls = self._machine.words[_CALLS_AT + offer.exchange.group.slot]
        offer.steps += calls > offer.calls
        offer.calls = calls
        if offer.steps < OFFER_AFTER_STEPS:
            return
        offer.given = True
        with self._lock:
            self._queue.append(offer)
            if self._thread is None or not self._thread.is_alive():
                self._thread = background.start(self._form, "whyidle-groups")

    def _let_go(self, offer: _Offer, why: Exception) -> None:
        """The waits of the group become `collective`. If members are missing, the background thread still waits."""
        slot = offer.exchange.group.slot
        self._machine.update(self._machine.books.release, slot)
        offer.held_from = None
        offer.wants_hold = False
        if offer.failure or not isinstance(why, Lost):
            self._offers.remove(offer)
            self._tell(offer.exchange, why)

    def _lose(self, exchange: SlotExchange, why: Exception) -> None:
        self._exchanges.remove(exchange)
        self._machine.update(self._machine.books.release, exchange.group.slot)
        self._tell(exchange, why)

    def _tell(self, exchange: SlotExchange, why: Exception) -> None:
        if not self._exchanges and not self._offers:
            self._state("failed")
        if debug():
            say(f"waits in the group {exchange.group.label} are not split into network and straggler: {why}")

    # -- forming groups: in a separate thread, with its own connection to the store

    def _form(self) -> None:
        offers: list[_Offer] = []
        try:
            assert self.server is not None
            store = connect(self.server, CONNECT_SECONDS)
            restored.tell(store, self._machine.words)
            pause = _SHORTEST_PAUSE
            while True:
                with self._lock:
                    fresh, self._queue = self._queue, []
                    if not fresh and not offers:
                        self._thread = None
                        return
                offers += fresh
                if fresh:
                    pause = _SHORTEST_PAUSE
                offers = [offer for offer in offers if not self._poll_formation(offer, store)]
                # Polls instead of waiting in the store: a thread inside the store would crash the interpreter's exit.
                if offers and self._stop.wait(pause):
                    return
                large = any(len(offer.exchange.group.ranks) > _LARGE for offer in offers)
                pause = min(_LONGEST_PAUSE_LARGE if large else _LONGEST_PAUSE, pause * 1.5)
        except Exception as error:
            with self._lock:
                offers += self._queue
                self._queue = []
                self._thread = None
            for offer in offers:
                offer.failure = str(error) or type(error).__name__

    def _poll_formation(self, offer: _Offer, store: Any) -> bool:
        """Returns whether this group is formed, or cannot be formed."""
        if offer.failure:
            return True
        group = offer.exchange.group
        try:
            formation = offer.formation
            if formation is None:
                machine = f"{clock_word():x}" if clock_word() != NOTHING else ""
                formation = offer.formation = Formation(store, group.key, group.ranks, self._rank, machine)
            first = formation.poll(offer.held_from)
            if formation.called and offer.held_from is None:
                offer.wants_hold = True
            offer.answered = bool(formation.token)
            if first is None:
                return False
            restored.learn(store, self._machine.words)
            distributed = sys.modules["torch.distributed"]
            place = distributed.PrefixStore(f"{group.key:x}/{formation.token}", store)
            if (node := formation.place) is not None:
                offer.formed = NodeGroups(place, node, self._finished), first, node.nodes + node.widest
            else:
                size = len(group.ranks)
                offer.formed = build(place, group.ranks.index(self._rank), size), first, size
        except Exception as error:
            offer.failure = str(error) or type(error).__name__
        return True

    # -- the end

    def abandon(self) -> dict[int, Group]:
        """The process has a new world: pending waits stay unsplit. Returns the slots in use."""
        self._stop.set()
        books = self._machine.books
        for held in list(books.held):
            if held is not None:
                self._machine.update(books.release, held.slot)
        return {**self.groups.taken, **self.groups.slots}

    def close(self) -> None:
        """Settles the blocks that come back within LAST_BLOCK_SECONDS. Later ones stay unsplit."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2.0)
        until = time.monotonic() + LAST_BLOCK_SECONDS
        left = list(self._exchanges)
        while left:
            for exchange in list(left):
                try:
                    if exchange.finish():
                        left.remove(exchange)
                except Exception:  # the fence around the training
                    left.remove(exchange)
            if time.monotonic() > until:
                break
            if left:
                time.sleep(0.002)
        for exchange in self._exchanges:
            exchange.charge_open()

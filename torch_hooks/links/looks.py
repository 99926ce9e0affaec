"""The probe `links`: which link carries the transfers of this rank, at what rate, and what else the node has.

- Every 2 s or more: what the rank's own TCP connections have moved.
- Once a second, if the rank is in a wait for a collective: three readings 50 ms apart, all in the wait. They tell at
  what rate the transfer moves, and over which link those of a group go.
- Every 5 s, later every 15 s: which connections there are.
- Every 30 s, later every four minutes: interfaces, RDMA ports, what limits them, and what the other nodes have told.

On an accelerator, the host does not wait with its device. There the rate is what was moved while a connection was busy.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ...ledger.layout import WORD_AT
from ...linux import rdma_resources
from ...linux.tcp_info import TcpInfo
from ...linux.unreadable import Unreadable
from . import rdma, sockets
from .inventory import NODE, Inventory, Key
from .sockets import Connection, Sockets
from .table import LINKS, Table
from .told import Told

if TYPE_CHECKING:
    from ..exchange.exchange import Exchange
    from ..machine import PhaseMachine

_SECOND = 1_000_000_000
_WRITE_NS, _SCAN_NS, _INVENTORY_NS, _SELDOM_NS = 2 * _SECOND, 5 * _SECOND, 30 * _SECOND, 240 * _SECOND
_LEAST_NS = _WRITE_NS * 9 // 10
"""A shorter stretch, such as the last one, says nothing of what a link reaches."""
_OFTEN_AT_FIRST = 6
_SOON_NS = 10 * _SECOND
"""After the first inventory, which may be before the backend has all its connections and queue pairs."""
STOP_SECONDS = 0.1
_PAIR_SECONDS, _SHORTEST_PAIR_SECONDS = 0.05, 0.003
_IN_A_ROW = 2
_IN_WAIT = 0.9
"""Two readings count if the rank was in the wait for at least this part of the time between them."""
_ROUGH_NS = 4_000_000
"""The kernel measures how long a connection is busy in ticks of up to this length."""
_LEAST_PART = 64
"""Connections that move less than this part of what the busiest one moves are not the training's, but ours."""
_LEAST_HANDED = 8
"""Connections between ranks of one node are ours if they move less than this part of what collectives were given."""
_ALONE = ("node", "local")
"""Ranks of one node that move nothing over connections: shared memory, NVLink or PCIe."""

_HANDED_AT, _OPS = WORD_AT["collective_bytes"]
_WINDOW_AT, _OPEN_SLOT_AT, _SINCE_AT, _WAITED_AT, _LOCAL_AT, _LOCALS_AT, _WORLD_AT, _MISSING_AT = (
    WORD_AT[name][0]
    for name in (
        *("window_ns", "open_slot", "phase_since_ns", "slot_waited_ns"),
        *("local_rank", "local_world_size", "world_size", "rdma_missing"),
    )
)


def enabled() -> bool:
    return os.environ.get("WHYIDLE_WHERE") != "0" and sockets.AVAILABLE


class _Reading(NamedTuple):
    """The first of two readings in a wait."""

    ns: int
    slot: int
    since: int
    waited: int
    values: list[tuple[Connection, TcpInfo]]


class LinkLooks:
    """Only the watcher's thread calls it, but for ``close``."""

    def __init__(self, machine: PhaseMachine, exchange: Callable[[], Exchange | None]):
        self._looking = threading.Lock()
        self._machine = machine
        self._words = machine.words
        self._exchange = exchange
        self._table = Table(machine)
        self._inventory = Inventory()
        self._sockets = Sockets(self._closed)
        self._told: Told | None = None
        self._refused = False  # whether the kernel does not tell what the node has
        self._world: Callable[[], Exchange | None] = lambda: None
        self._server: tuple[str, int] | None = None
        self._pairs: dict[str, int] = {}  # queue pairs of this process, by port
        self._first: _Reading | None = None
        self._pair_seconds = _PAIR_SECONDS
        self._readings = self._misses = self._scans = 0
        self._rest_ns = _SOON_NS
        self._inventory_ns = self._scan_ns = self._write_ns = self._pair_ns = self._written_ns = self._counted_ns = 0

    def soon(self) -> float:
        """Seconds until the second one of two readings; 0: none is due."""
        return self._pair_seconds if self._first is not None else 0.0

    def look(self) -> None:
        with self._looking:
            self._look()

    def _look(self) -> None:
        exchange = self._exchange()
        if exchange is None or not self._words[_WINDOW_AT] or self._refused:
            return
        now = time.monotonic_ns()
        if self._world() is not exchange:
            self._meet(exchange)
        if self._first is not None:
            self._sockets.read()
            self._end_pair(self._first)
            self._first = None
        if now >= self._inventory_ns:
            self._look_around(now)
        if now >= self._scan_ns:
            self._scan(now)
        if now >= self._write_ns:
            self._write_ns = now + _WRITE_NS
            self._sockets.read()
            self._write()
            if self._told is not None and self._told.due(self._strangers(self._told)):
                self._ask_others(self._told)
        if now >= self._pair_ns and self._words[_OPEN_SLOT_AT] >= 0 and self._machine.device is None:
            self._first = self._begin_pair()

    def close(self) -> None:
        """Writes the last values. The watcher has been stopped, but may still be in a look. Never raises."""
        if not self._looking.acquire(timeout=STOP_SECONDS):
            return
        try:
            if self._told is not None:
                self._told.close()
            if self._written_ns:
                self._sockets.read()
                self._write()
                self._count_all(time.monotonic_ns())
        except Exception:  # the fence around the training
            pass
        finally:
            self._looking.release()

    def _meet(self, exchange: Exchange) -> None:
        """The process has a world, or a new one with another store."""
        if self._told is not None:
            self._told.close()
        self._world, self._server = weakref.ref(exchange), exchange.server
        self._told = Told(self._server, self._words[_LOCAL_AT] == 0) if self._server else None

    # -- what the node has

    def _look_around(self, now: int) -> None:
        self._inventory_ns = now + self._rest_ns
        self._rest_ns = min(max(_INVENTORY_NS, 2 * self._rest_ns), _SELDOM_NS)
        try:
            self._inventory.look()
        except Unreadable as error:
            if error.reason in ("denied", "unsupported"):
                self._refused = True  # for example by a seccomp profile
            return
        self._look_at_rdma()
        for link in self._inventory.links.values():
            if link.moved_bytes is not None:
                self._table.everybody(link.key, link.moved_bytes)
        self._assign()

    def _look_at_rdma(self) -> None:
        ports = self._inventory.ports
        if not ports:
            return
        try:
            found = rdma_resources.queue_pairs(os.getpid())
        except Unreadable:  # not known
            return
        self._pairs = {}
        for (device, number), count in found.items():
            for port in ports:
                # Dynamically connected ones belong to no port: they take the first.
                if port.device == device and port.active and number in (0, port.number):
                    self._pairs[port.name] = self._pairs.get(port.name, 0) + count
                    break
        cuda = _on_cuda()
        if self._pairs:
            self._words[_MISSING_AT] = rdma.gpudirect_missing() if cuda else 0
        else:
            self._words[_MISSING_AT] = rdma.missing(ports, not cuda and _gloo(), cuda)

    def _scan(self, now: int) -> None:
        self._scans += 1
        self._scan_ns = now + (_SCAN_NS if self._scans < _OFTEN_AT_FIRST else 3 * _SCAN_NS)
        self._sockets.scan()
        self._count_all(now)

    def _ask_others(self, told: Told) -> None:
        links = self._inventory.links.values()
        peers = {one.remote for one in self._sockets if not self._is_store(one)}
        networks = [link.network for link in links if link.network]
        told.ask(
            networks, sorted(self._inventory.own), sorted(peers, key=lambda one: (told.is_node(one) is not None, one))
        )

    def _strangers(self, told: Told) -> bool:
        """Whether nobody has said of the other end of a connection if it is a node of the run."""
        return any(one.moved and told.is_node(one.remote) is None and not self._is_store(one) for one in self._sockets)

    def _count_all(self, now: int) -> None:
        """Counts what anybody has moved over the links."""
        for key in self._table.keys:
            if key is not None and (moved := self._inventory.refresh(key)) is not None:
                grown = self._table.everybody(key, moved)
                passed = now - self._counted_ns
                if key[0] == "rdma" and key[1] in self._pairs and self._counted_ns and passed >= _LEAST_NS:
                    self._table.at_least(key, "best", grown * 8 * _SECOND // passed // 2)
        self._counted_ns = now

    def _assign(self) -> None:
        carrying = dict.fromkeys(key for one in self._sockets if one.counts and (key := self._key_of(one)))
        carrying |= dict.fromkeys(("rdma", name) for name in self._pairs)
        if self._alone() and self._machine.device is not None and not carrying:
            carrying[_ALONE] = None
        self._table.assign(self._inventory.best(carrying, LINKS))
        for key in (NODE, _ALONE):
            self._table.put(key, "up", 1)
        for link in self._inventory.links.values():
            self._table.describe(link)
        for name, count in self._pairs.items():
            self._table.put(("rdma", name), "connections", count)

    def _alone(self) -> bool:
        """Whether all ranks are on this node."""
        return self._words[_LOCALS_AT] == self._words[_WORLD_AT]

    # -- the connections of the rank's communication

    def _key_of(self, one: Connection) -> Key | None:
        return self._inventory.key_of(one.local, one.remote)

    def _is_store(self, one: Connection) -> bool:
        return self._server is not None and self._server[1] in one.ports

    def _closed(self, one: Connection) -> None:
        if one.counts and (key := self._key_of(one)):
            self._table.connections(key, [one])

    def _choose(self) -> set[Connection]:
        """Finds out which connections are those of the rank's communication. Returns the new ones."""
        told = self._told
        candidates: list[Connection] = []
        nodes = {one.remote: told.is_node(one.remote) if told is not None else None for one in self._sockets}
        trusted = told is not None and (not told.settled or True in nodes.values())
        alone, device = self._alone(), self._machine.device is not None
        unknown = (device and told is None) or (told is not None and not told.settled)
        for one in self._sockets:
            node = nodes[one.remote]
            inside = self._key_of(one) == NODE  # at 127.0.0.1, for example, which no node tells of
            if (
                self._is_store(one)
                or not one.moved
                or (alone and not inside)
                or (node is False and trusted and not inside)
            ):
                continue
            if node or one.waited or (alone if inside else device and unknown):
                candidates.append(one)
        if alone and device and _LEAST_HANDED * sum(one.moved for one in candidates) < self._handed():
            for one in candidates:
                one.counts = False
            return set()
        most = max((one.moved for one in candidates), default=0)
        new = {one for one in candidates if not one.counts and one.moved * _LEAST_PART >= most}
        for one in new:
            one.counts = True
        return new

    def _handed(self) -> int:
        """The bytes that this rank has passed to collectives."""
        return sum(self._words[_HANDED_AT : _HANDED_AT + _OPS])

    def _write(self) -> None:
        new = self._choose()
        now = time.monotonic_ns()
        passed, self._written_ns = now - self._written_ns, now
        by_key: dict[Key, list[Connection]] = {}
        for one in self._sockets:
            if one.counts and (key := self._key_of(one)):
                by_key.setdefault(key, []).append(one)
        if any(key not in self._table.keys for key in by_key):
            self._assign()
        if self._told is not None:
            for link in self._inventory.links.values():
                self._table.put(link.key, "nodes", self._told.nodes(link.network))
        for key, moving in by_key.items():
            moved, busy = self._table.connections(key, moving)
            self._table.put(key, "connections", len(moving))
            if _LEAST_NS <= passed < 2 * _WRITE_NS and new.isdisjoint(moving):
                self._table.at_least(key, "best", moved * 8 * _SECOND // passed)
            if self._machine.device is not None:
                self._table.add(key, "wait_bytes", moved)
                self._table.add(key, "wait_ns", busy)

    def moved(self) -> dict[str, int]:
        """Interface -> bytes that the rank's communication has moved over it until now, both directions.

        Those of connections that have been closed are missing. Empty if another thread looks just now.
        """
        found: dict[str, int] = {}
        if not self._looking.acquire(timeout=STOP_SECONDS):
            return found
        try:
            self._sockets.read()
            for one in self._sockets:
                if one.counts and (key := self._key_of(one)) and key[0] == "tcp":
                    found[key[1]] = found.get(key[1], 0) + one.last.sent + one.last.received
        finally:
            self._looking.release()
        return found

    # -- two readings in a wait

    def _waited(self, slot: int, now: int) -> tuple[int, int] | None:
        """When the open phase began, and how long (ns) the rank has waited in a group; None during an update."""
        words = self._words
        since, waited, open_slot = words[_SINCE_AT], words[_WAITED_AT + slot], words[_OPEN_SLOT_AT]
        if words[_SINCE_AT] != since:
            return None
        return since, waited + (now - since if open_slot == slot else 0)

    def _begin_pair(self) -> _Reading | None:
        slot = self._words[_OPEN_SLOT_AT]
        before = self._waited(slot, 0) if slot >= 0 else None
        self._sockets.read()
        now = time.monotonic_ns()
        state = self._waited(slot, now)
        # All of it in one wait: while sockets are read, the wait may end, and one in another group may begin.
        if before is None or state is None or state[0] != before[0] or self._words[_OPEN_SLOT_AT] != slot:
            return None
        return _Reading(now, slot, *state, [(one, one.last) for one in self._sockets])

    def _end_pair(self, first: _Reading) -> None:
        now = time.monotonic_ns()
        state = self._waited(first.slot, now)
        passed = now - first.ns
        if state is None or (state[0] != first.since and state[1] - first.waited < _IN_WAIT * passed):
            # Waits that are too short for this are looked at seldom.
            self._pair_seconds = max(_SHORTEST_PAIR_SECONDS, self._pair_seconds / 2)
            self._misses += 1
            self._pair_ns = now + min(self._misses, 16) * _SECOND // 4
            return
        self._misses = 0
        self._pair_seconds = min(_PAIR_SECONDS, self._pair_seconds * 1.5)
        self._readings += 1
        if self._readings % _IN_A_ROW == 0:
            self._pair_ns = now + _SECOND
        by_key: dict[Key, list[tuple[int, int, int]]] = {}
        for one, before in first.values:
            sent, received = one.last.sent - before.sent, one.last.received - before.received
            one.waited |= sent + received > 0
            if one.counts and (key := self._key_of(one)):
                by_key.setdefault(key, []).append((sent, received, (one.last.busy_us - before.busy_us) * 1000))
        for key, grown in by_key.items():
            sent, received = sum(each[0] for each in grown), sum(each[1] for each in grown)
            busy = max(each[2] for each in grown)
            moved = max(sent, received)
            self._table.add_to_slot(first.slot, key, moved)
            stands = busy + _ROUGH_NS >= passed > 2 * _ROUGH_NS  # it sends, or waits until it sends again what was lost
            if sent < received or passed <= 2 * _ROUGH_NS or stands:
                busy = passed if moved or stands else 0
            if busy >= _ROUGH_NS or busy == passed:  # the rank had nothing to send for the rest of the time
                self._table.add(key, "wait_bytes", moved)
                self._table.add(key, "wait_ns", busy)


def _gloo() -> bool:
    distributed = sys.modules.get("torch.distributed")
    try:
        return distributed is not None and distributed.get_backend() == "gloo"
    except (ValueError, RuntimeError):  # the group was destroyed
        return False


def _on_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.version.hip is None and torch.cuda.is_initialized()

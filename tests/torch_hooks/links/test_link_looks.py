"""The probe on this machine, with adapters and accelerators that are made up."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from whyidle.ledger.layout import WORD_AT
from whyidle.ledger.links import LINKS, RDMA_MISSING
from whyidle.ledger.reader import Ledger, read_ledger
from whyidle.ledger.writer import LedgerWriter
from whyidle.linux import interfaces, rdma_resources
from whyidle.linux.unreadable import Unreadable
from whyidle.torch_hooks.links import looks, rdma
from whyidle.torch_hooks.links.inventory import NODE
from whyidle.torch_hooks.links.looks import LinkLooks
from whyidle.torch_hooks.links.rdma import Port
from whyidle.torch_hooks.links.sockets import Connection
from whyidle.torch_hooks.machine import PhaseMachine

BYTES = 400_000


class World:
    """Stands for an exchange without a store."""

    server = None


class Rank:
    """A rank whose first step has begun. All ranks of the run are on its node."""

    def __init__(self, folder: Path):
        numbers = {"world_size": 2, "local_world_size": 2, "start_ns": time.monotonic_ns(), "pid": os.getpid()}
        self.writer = LedgerWriter(str(folder), {"run": "links"}, numbers)
        self.machine = PhaseMachine(self.writer.words, time.monotonic_ns())
        self.writer.set("window_ns", time.monotonic_ns())
        self.world: World | None = World()
        self.looks = LinkLooks(self.machine, lambda: cast(Any, self.world))

    def accelerate(self) -> None:
        self.machine.device = cast(Any, SimpleNamespace())

    def look(self) -> None:
        """As if a second had passed."""
        for name in ("_scan_ns", "_write_ns", "_inventory_ns"):
            setattr(self.looks, name, 0)
        self.looks.look()

    def ledger(self) -> Ledger:
        self.looks.close()
        self.writer.file.write()
        return read_ledger(self.writer.path)

    def link(self, name: str) -> Any:
        return next(link for link in self.ledger().links if link.name == name)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    made.writer.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with one, other:
        yield one, other


def move(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(b"x" * BYTES)
    assert len(pair[1].recv(BYTES, socket.MSG_WAITALL)) == BYTES


def ends(rank: Rank, pair: tuple[socket.socket, socket.socket]) -> list[Connection]:
    """Both ends of this pair. Other tests of this process may have left connections open."""
    fds = [each.fileno() for each in pair]
    return [one for one in rank.looks._sockets if one.fd in fds]


def test_connections_inside_the_node(rank: Rank, pair: tuple[socket.socket, socket.socket]) -> None:
    rank.look()
    move(pair)
    rank.look()
    found = rank.link("lo")
    assert (found.kind, found.up, found.connections) == ("node", 1, 2)  # both ends are of this process
    assert (found.sent, found.received) == (BYTES, BYTES)
    assert found.wait_bytes == 0


def test_transfers_of_an_accelerator_count_while_they_are_busy(
    rank: Rank, pair: tuple[socket.socket, socket.socket]
) -> None:
    rank.accelerate()
    rank.look()
    for _ in range(20):
        move(pair)
    rank.look()
    found = rank.link("lo")
    assert found.wait_bytes == found.sent == 20 * BYTES
    assert found.wait_ns == found.busy_ns


def test_the_values_of_closed_connections_remain(rank: Rank, pair: tuple[socket.socket, socket.socket]) -> None:
    rank.look()
    move(pair)
    rank.look()
    for each in pair:
        each.close()
    rank.look()
    assert rank.link("lo").sent == BYTES


def test_readings_in_a_wait(rank: Rank, pair: tuple[socket.socket, socket.socket]) -> None:
    rank.look()
    move(pair)
    rank.look()
    words = rank.writer.words
    words[WORD_AT["open_slot"][0]] = 3
    words[WORD_AT["phase_since_ns"][0]] = time.monotonic_ns()
    rank.looks.look()
    assert rank.looks.soon() == looks._PAIR_SECONDS
    pair[0].setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += pair[0].send(b"x" * BYTES)
    time.sleep(0.03)  # the transfer takes this long, because nobody reads
    while sent:
        sent -= len(pair[1].recv(BYTES))
    rank.looks.look()
    ledger = rank.ledger()
    (found,) = (link for link in ledger.links if link.name == "lo")
    assert found.wait_bytes == ledger.words["slot_link_bytes"][3 * LINKS + found.index] > BYTES
    assert found.wait_ns >= 25_000_000  # the kernel may count in steps of 4 ms


def test_a_short_wait_between_two_readings_does_not_count(
    rank: Rank, pair: tuple[socket.socket, socket.socket]
) -> None:
    rank.look()
    move(pair)
    rank.look()
    words = rank.writer.words
    words[WORD_AT["open_slot"][0]] = 3
    words[WORD_AT["phase_since_ns"][0]] = time.monotonic_ns()
    rank.looks.look()
    move(pair)
    words[WORD_AT["open_slot"][0]] = -1
    words[WORD_AT["phase_since_ns"][0]] = time.monotonic_ns()
    time.sleep(0.02)
    rank.looks.look()
    assert rank.looks.soon() != looks._PAIR_SECONDS
    assert rank.link("lo").wait_bytes == 0


def test_a_wait_that_ends_while_connections_are_read_is_not_looked_at(
    rank: Rank, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.look()
    words = rank.writer.words
    words[WORD_AT["open_slot"][0]] = 3
    words[WORD_AT["phase_since_ns"][0]] = time.monotonic_ns()
    monkeypatch.setattr(looks.Sockets, "read", lambda sockets: words.__setitem__(WORD_AT["phase_since_ns"][0], 1))
    rank.looks.look()
    assert rank.looks.soon() != looks._PAIR_SECONDS


def test_an_accelerator_whose_ranks_move_nothing_over_connections(rank: Rank) -> None:
    rank.accelerate()
    rank.look()
    assert rank.link("local").kind == "node"


PORTS = [Port("mlx5_0", 1, True, 400_000_000_000, "", "fe80:0000:0000:0000"), Port("mlx5_1", 1, False, 0, "", "")]


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the counters of the ports say."""
    value = [1_000]
    monkeypatch.setattr(rdma, "ports", lambda root="": PORTS)
    monkeypatch.setattr(rdma, "moved_bytes", lambda port, root="": value[0])
    return value


def test_queue_pairs_show_that_a_port_carries(rank: Rank, moved: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        rdma_resources, "queue_pairs", lambda pid: asked.append(pid) or Counter({("mlx5_0", 1): 3, ("mlx5_0", 0): 1})
    )
    rank.look()
    moved[0] += 8_000_000
    rank.look()
    found = rank.link("mlx5_0/1")
    assert set(asked) == {os.getpid()}
    assert (found.kind, found.address, found.up, found.speed) == ("rdma", "", 1, 400_000_000_000)
    assert (found.connections, found.all, found.sent) == (4, 8_000_000, 0)
    assert rank.ledger().words["rdma_missing"] == (0,)
    assert "mlx5_1/1" not in {link.name for link in rank.ledger().links}


def test_why_ports_are_not_used(rank: Rank, moved: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_resources, "queue_pairs", lambda pid: Counter())
    monkeypatch.setattr(looks, "_gloo", lambda: True)
    rank.look()
    assert rank.link("mlx5_0/1").connections == 0
    assert rank.ledger().words["rdma_missing"][0] >> RDMA_MISSING.index("backend") & 1


def test_what_a_kernel_does_not_tell_is_not_known(
    rank: Rank, moved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> None:
        raise Unreadable("denied", "RDMA_NLDEV_CMD_GET")

    monkeypatch.setattr(rdma_resources, "queue_pairs", refuse)
    rank.look()
    assert rank.ledger().words["rdma_missing"] == (0,)


def test_no_netlink_no_links(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise Unreadable("denied", "RTM_GETADDR")

    monkeypatch.setattr(interfaces, "addresses", refuse)
    rank.look()
    rank.look()
    assert rank.ledger().links == []


def test_waits_for_a_world(rank: Rank) -> None:
    rank.world = None
    rank.look()
    assert rank.ledger().links == []


class Nodes:
    """Stands for what the nodes have told."""

    def __init__(self, settled: bool, *addresses: str):
        self.settled = settled
        self._addresses = addresses

    def is_node(self, address: str) -> bool:
        return address in self._addresses

    def nodes(self, network: str) -> int:
        return 0

    def due(self, strangers: bool = False) -> bool:
        return False

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        (Nodes(True, "127.0.0.1"), True),
        (Nodes(True, "10.0.0.9"), False),
        (Nodes(False), False),  # nodes may still tell of themselves
        (Nodes(True), True),  # addresses are translated on the way, so nobody is known
    ],
    ids=["node", "other server", "not settled", "translated"],
)
def test_which_connections_are_those_of_the_communication(
    rank: Rank,
    pair: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    told: Nodes,
    counts: bool,
) -> None:
    """Both connections move something during waits. The second one is to 10.0.0.9, as far as the probe can see."""
    rank.writer.set("local_world_size", 1)
    rank.look()
    monkeypatch.setattr(rank.looks, "_told", told)
    monkeypatch.setattr(rank.looks._inventory, "key_of", lambda local, remote: ("tcp", f"to {remote}"))
    near, far = ends(rank, pair)
    far.remote = "10.0.0.9"
    near.waited = far.waited = True
    move(pair)
    rank.looks._sockets.read()
    rank.looks._choose()
    assert near.counts is counts


def test_the_address_of_the_store_is_not_a_stranger(
    rank: Rank, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is asked for it, so nobody would ever tell."""
    rank.look()
    told = Nodes(False)
    monkeypatch.setattr(told, "is_node", lambda address: None)
    move(pair)
    rank.looks._sockets.read()
    assert rank.looks._strangers(cast(Any, told))
    monkeypatch.setattr(rank.looks, "_is_store", lambda one: True)
    assert not rank.looks._strangers(cast(Any, told))


@pytest.mark.parametrize(("ranks_here", "told", "counts"), [(2, None, False), (1, None, True), (1, Nodes(True), False)])
def test_a_connection_of_an_accelerator_whose_other_end_nobody_knows(
    rank: Rank,
    pair: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    ranks_here: int,
    told: Nodes | None,
    counts: bool,
) -> None:
    """Such as one that streams data from an object store. Ranks of one node have none that leaves it."""
    rank.accelerate()
    rank.writer.set("local_world_size", ranks_here)
    rank.look()
    monkeypatch.setattr(rank.looks, "_told", told)
    monkeypatch.setattr(rank.looks._inventory, "key_of", lambda local, remote: ("tcp", f"to {remote}"))
    if told is not None:
        monkeypatch.setattr(told, "is_node", lambda address: None)
    move(pair)
    rank.looks._sockets.read()
    rank.looks._choose()
    assert [one.counts for one in ends(rank, pair)] == [counts, counts]


def test_connections_that_move_little_of_what_collectives_exchange_do_not_carry_it(
    rank: Rank, pair: tuple[socket.socket, socket.socket]
) -> None:
    """On accelerators of one node they are whyidle's own: the transfers go over NVLink, or through memory."""
    rank.accelerate()
    rank.look()
    move(pair)
    rank.look()
    assert [one.counts for one in ends(rank, pair)] == [True, True]
    rank.machine.words[WORD_AT["collective_bytes"][0]] = 100 * BYTES
    rank.look()
    assert [one.counts for one in ends(rank, pair)] == [False, False]


def test_segments_are_counted_with_32_bits(rank: Rank, pair: tuple[socket.socket, socket.socket]) -> None:
    rank.look()
    move(pair)
    rank.look()
    one, other = ends(rank, pair)
    table = rank.looks._table
    at = WORD_AT["link_segments"][0] + table.keys.index(NODE)
    before = rank.machine.words[at]
    one.seen, one.last = one.last._replace(segments=2**32 - 5), one.last._replace(segments=10)
    table.connections(NODE, [one])
    assert rank.machine.words[at] == before + 15
    other.seen = other.last._replace(sent=other.last.sent + 1, segments=0)  # of another connection
    table.connections(NODE, [other])
    assert rank.machine.words[at] == before + 15

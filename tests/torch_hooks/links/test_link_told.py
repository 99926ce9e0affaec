"""What nodes tell each other through a real store."""

from __future__ import annotations

import datetime
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist

from whyidle.torch_hooks.links import told
from whyidle.torch_hooks.links.told import Told

NETWORK, OTHER = "10.0.0.0/24", "10.1.0.0/24"
NODES = {"a": ["10.0.0.1"], "b": ["10.0.0.2", "10.1.0.2"]}


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=datetime.timedelta(seconds=20))
    yield "127.0.0.1", store.port
    del store


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "_PAUSES_SECONDS", (0.0,) * 5)


class Ranks:
    """Ranks of several nodes in this process."""

    def __init__(self, server: tuple[str, int], monkeypatch: pytest.MonkeyPatch):
        self._server = server
        self._patch = monkeypatch

    def rank(self, node: str, first: bool = True) -> Callable[..., Told]:
        rank = Told(self._server, first)

        def ask(networks: list[str], peers: list[str]) -> Told:
            self._patch.setattr(told, "_node", lambda: node)
            rank.ask(networks, NODES[node], peers)
            deadline = time.monotonic() + 20.0
            while rank._thread is not None and rank._thread.is_alive() and time.monotonic() < deadline:
                time.sleep(0.01)
            return rank

        return ask


@pytest.fixture
def ranks(server: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(server, monkeypatch)


def test_counts_nodes_by_network(ranks: Ranks) -> None:
    a, b, second = ranks.rank("a"), ranks.rank("b"), ranks.rank("b", first=False)
    assert a([NETWORK], []).nodes(NETWORK) == 1
    assert b([NETWORK, OTHER], []).nodes(NETWORK) == 2
    found = second([NETWORK, OTHER], [])
    assert (found.nodes(NETWORK), found.nodes(OTHER), found.nodes("")) == (2, 1, 0)
    assert a([NETWORK], []).nodes(NETWORK) == 2


def test_a_node_counts_once_in_an_attempt(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks.rank("a")([NETWORK], [])
    assert ranks.rank("a")([NETWORK], []).nodes(NETWORK) == 1
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert ranks.rank("b")([NETWORK], []).nodes(NETWORK) == 1


def test_knows_the_addresses_of_nodes(ranks: Ranks) -> None:
    a, b = ranks.rank("a"), ranks.rank("b")
    assert a([NETWORK], ["10.0.0.2"]).is_node("10.0.0.2") is False
    b([NETWORK, OTHER], [])
    found = a([NETWORK], ["10.0.0.2", "10.1.0.2", "192.0.2.9"])
    assert [found.is_node(one) for one in ("10.0.0.2", "10.1.0.2", "192.0.2.9", "192.0.2.8")] == [
        True,
        True,
        False,
        None,
    ]


def test_a_store_that_is_gone_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=datetime.timedelta(seconds=20))
    address = ("127.0.0.1", store.port)
    del store
    monkeypatch.setattr(told, "CONNECT_SECONDS", 0.2)
    rank = Told(address, True)
    rank.ask([NETWORK], [], [])
    rank.close()
    assert rank.nodes(NETWORK) == 0


def test_a_store_that_goes_with_its_launcher_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch would write a stack to the training's stderr."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=datetime.timedelta(seconds=20))
    ask = Ranks(("127.0.0.1", store.port), monkeypatch).rank("a")
    assert ask([NETWORK], []).nodes(NETWORK) == 1
    del store
    capfd.readouterr()
    assert ask([NETWORK, OTHER], ["10.0.0.2"])._failed
    assert capfd.readouterr().err == ""


def test_a_node_that_does_not_answer_now_is_asked_again(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(address: tuple[str, int], timeout: float) -> socket.socket:
        raise TimeoutError

    ask, connect = ranks.rank("a"), socket.create_connection
    assert ask([NETWORK], []).nodes(NETWORK) == 1
    monkeypatch.setattr(socket, "create_connection", late)
    assert not ask([NETWORK, OTHER], [])._failed
    monkeypatch.setattr(socket, "create_connection", connect)
    assert ask([NETWORK, OTHER], []).nodes(OTHER) == 1

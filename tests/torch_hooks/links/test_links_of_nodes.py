"""Ranks on nodes with two links each: what they find out about them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from network_nodes import NetworkNode, limited, lossy, missing, network_nodes, small_window
from support_training import LIMIT_SECONDS, Outcome, command, gather, kill_all, recorded, run, start

from whyidle.ledger.layout import SLOTS
from whyidle.ledger.links import LINKS, SHAPERS, Link
from whyidle.ledger.reader import Ledger

pytestmark = [pytest.mark.alone, pytest.mark.xdist_group("network")]
LIMIT = 200_000_000


@pytest.fixture(scope="module", autouse=True)
def _nodes_are_possible() -> None:
    if why := missing():
        pytest.skip(why)


@pytest.fixture
def nodes() -> Iterator[list[NetworkNode]]:
    with network_nodes(2) as made, limited(made, 0, LIMIT):
        yield made


def train(nodes: Sequence[NetworkNode], folder: Path, *arguments: str, plain: bool = False, **extra: str) -> Outcome:
    words = command("transfers.py", *arguments)
    words = words if plain else recorded(words)
    started = [start(node.inside(*words), folder, **node.environment(nodes[0], len(nodes)), **extra) for node in nodes]
    try:
        ended = [process.communicate(timeout=LIMIT_SECONDS) for process in started]
    finally:
        kill_all(folder)
    outcome = gather(folder, max(process.returncode for process in started), stderr="".join(text[1] for text in ended))
    assert outcome.returncode == 0, outcome.stderr
    return outcome


def of(ledger: Ledger, name: str) -> Link:
    return next(link for link in ledger.links if link.name == name)


def slot_bytes(ledger: Ledger) -> dict[tuple[int, str], int]:
    """(slot, name of the link) -> what looks in waits of that slot saw it carry."""
    words = ledger.words["slot_link_bytes"]
    names = {link.index: link.name for link in ledger.links}
    return {
        (slot, names[index]): words[slot * LINKS + index]
        for slot in range(SLOTS)
        for index in range(LINKS)
        if words[slot * LINKS + index]
    }


_LIMITS = """
from whyidle.torch_hooks.links.inventory import Inventory
inventory = Inventory()
inventory.look()
print(*sorted(f"{name} {link.limit}" for (_, name), link in inventory.links.items()), sep=chr(10))
"""


@pytest.mark.parametrize("members", [1, 2])
def test_a_bridge_has_the_limit_of_its_only_member(members: int, nodes: list[NetworkNode]) -> None:
    node = nodes[0]
    node.run("ip", "link", "add", "br0", "type", "bridge")
    node.run("ip", "addr", "add", "10.99.0.1/24", "dev", "br0")
    for link in range(members):
        node.run("ip", "link", "set", f"eth{link}", "master", "br0")
    found = node.run(sys.executable, "-c", _LIMITS).splitlines()
    assert found == [f"br0 {LIMIT if members == 1 else 0}", f"eth0 {LIMIT}", "eth1 0"]


def test_names_the_link_that_carries_and_the_idle_one(nodes: list[NetworkNode], tmp_path: Path) -> None:
    outcome = train(nodes, tmp_path / "recorded", "45", "4")
    steps_bytes = 45 * 4_000_000
    for node, ledger in zip(nodes, sorted(outcome.ledgers, key=lambda one: one.rank), strict=True):
        assert ledger.words["faults"] == (0,)
        assert {(link.kind, link.name) for link in ledger.links} == {("tcp", "eth0"), ("tcp", "eth1")}
        used, idle = of(ledger, "eth0"), of(ledger, "eth1")
        assert used.address == f"{node.address(0)}/24"
        assert (used.up, used.speed, used.mtu, used.nodes) == (1, 10_000_000_000, 1500, 2)
        assert (used.limit, SHAPERS[used.limit_by]) == (LIMIT, "tbf")
        assert 0.9 * steps_bytes <= min(used.sent, used.received) <= 1.1 * steps_bytes
        assert used.all >= used.sent + used.received
        assert used.connections >= 1
        assert used.busy_ns > used.window_ns
        assert used.segments > used.sent // 1500
        assert used.trip_ns >= used.least_trip_ns > 0
        assert slot_bytes(ledger) == {(0, "eth0"): used.wait_bytes}
        assert (idle.up, idle.speed, idle.limit, idle.nodes) == (1, 10_000_000_000, 0, 2)
        assert idle.sent == idle.received == idle.connections == idle.wait_bytes == 0
        assert idle.all < 100_000
    links = [of(ledger, "eth0") for ledger in outcome.ledgers]
    rate = sum(link.wait_bytes for link in links) * 8e9 / sum(link.wait_ns for link in links)
    assert rate == pytest.approx(LIMIT, rel=0.1)
    plain = train(nodes, tmp_path / "plain", "5", "4", plain=True)
    short = train(nodes, tmp_path / "short", "5", "4")
    assert [told.losses for told in short.told] == [told.losses for told in plain.told]


@pytest.mark.long
def test_lost_segments_are_counted(nodes: list[NetworkNode], tmp_path: Path) -> None:
    with lossy(nodes, 0, 0.02):
        outcome = train(nodes, tmp_path, "15", "4")
    for ledger in outcome.ledgers:
        used = of(ledger, "eth0")
        assert used.resent / used.segments > 0.005


@pytest.mark.long
def test_a_small_window_is_told(nodes: list[NetworkNode], tmp_path: Path) -> None:
    small_window(nodes, 8192)
    outcome = train(nodes, tmp_path, "15", "4")
    for ledger in outcome.ledgers:
        used = of(ledger, "eth0")
        assert used.window_ns > 0.4 * used.busy_ns


@pytest.mark.long
def test_groups_on_two_links_are_told_apart(tmp_path: Path) -> None:
    with network_nodes(3) as made, limited(made, 0, LIMIT), limited(made, 1, LIMIT):
        # One reading may have up to a tenth of its bytes in another wait. On busy cores there would be few of them.
        outcome = train(made, tmp_path, "25", "4", "second", WHYIDLE_WATCHER_SHARE="0.01")
    carried = {ledger.rank: slot_bytes(ledger) for ledger in outcome.ledgers}
    for rank in (0, 1):
        # What a call leaves behind when its wait ends, mostly acknowledgements, is seen in the next wait.
        for slot, link in ((0, "eth0"), (1, "eth1")):
            both = [carried[rank].get((slot, name), 0) for name in ("eth0", "eth1")]
            assert carried[rank].get((slot, link), 0) > 0.9 * sum(both), carried
    assert {link for _, link in carried[2]} == {"eth0"}


def test_without_other_ranks_there_are_no_links(tmp_path: Path) -> None:
    outcome = run(recorded(command("single.py", "plain")), tmp_path)
    assert [ledger.links for ledger in outcome.ledgers] == [[]]


@pytest.mark.long
def test_can_be_switched_off(nodes: list[NetworkNode], tmp_path: Path) -> None:
    outcome = train(nodes, tmp_path, "5", "1", WHYIDLE_WHERE="0")
    assert [ledger.links for ledger in outcome.ledgers] == [[], []]

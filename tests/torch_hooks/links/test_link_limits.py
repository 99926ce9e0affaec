"""The limit of an interface that stands on others."""

from __future__ import annotations

import pytest

from whyidle.linux import interfaces, shaping
from whyidle.linux.interfaces import Link
from whyidle.linux.unreadable import Unreadable
from whyidle.torch_hooks.links import inventory

LOW, HIGH = 100_000_000, 10**9


def made(index: int, kind: str, lower: int = 0, up: bool = True) -> Link:
    return Link(index, f"i{index}", kind, up, 1500, 0, 0, lower)


TOP = {
    "a bond of one": (made(1, "bond"), {1: [made(2, "")]}, LOW),
    "a bond of two": (made(1, "bond"), {1: [made(2, ""), made(3, "")]}, 0),
    "a bond of two, of which one is down": (made(1, "bond"), {1: [made(2, ""), made(3, "", up=False)]}, LOW),
    "a bridge of hardware and containers": (
        made(1, "bridge"),
        {1: [made(2, ""), made(3, "veth"), made(4, "veth")]},
        LOW,
    ),
    "a bridge of one container": (made(1, "bridge"), {1: [made(2, "veth")]}, 0),
    "a VLAN on a bridge on a bond": (made(5, "vlan", lower=6), {6: [made(7, "bond")], 7: [made(2, "")]}, LOW),
    "a VLAN of which nothing is known": (made(8, "vlan", lower=2), {}, LOW),
}


@pytest.mark.parametrize("name", TOP)
def test_an_interface_has_the_limit_of_what_sends_for_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    top, members, limit = TOP[name]

    def limit_of(index: int, _: object) -> shaping.Limit | None:
        if index == 8:
            raise Unreadable("8")
        return shaping.Limit(LOW, "tbf") if index == 2 else None

    monkeypatch.setattr(shaping, "limit_of", limit_of)
    monkeypatch.setattr(interfaces, "members", lambda index: members.get(index, []))
    monkeypatch.setattr(interfaces, "link", {6: made(6, "bridge"), 2: made(2, "")}.__getitem__)
    found = inventory._limit_of(top, [], hardware=True)
    assert (found.bits_per_second if found else 0) == limit


def test_without_hardware_a_bridge_sends_by_its_only_veth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shaping, "limit_of", lambda index, _: shaping.Limit(HIGH, "tbf") if index == 2 else None)
    monkeypatch.setattr(interfaces, "members", lambda _: [made(2, "veth")])
    found = inventory._limit_of(made(1, "bridge"), [], hardware=False)
    assert found is not None
    assert found.bits_per_second == HIGH

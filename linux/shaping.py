"""The rate to which the kernel's traffic control limits an interface.

Format: linux/pkt_sched.h and linux/pkt_cls.h. There, rates are bytes a second; a rate of 32 bits is all ones if a
second attribute has it with 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from . import netlink, qdisc
from .netlink import attributes, each_attribute
from .qdisc import Qdisc
from .unreadable import Unreadable

_CLASSES, _FILTERS = 42, 46  # RTM_GETTCLASS, RTM_GETTFILTER
_TCMSG = struct.Struct("=BxxxiIII")
_U32, _S32, _U64 = struct.Struct("=I"), struct.Struct("=i"), struct.Struct("=Q")
_MOST_32 = 0xFFFF_FFFF
_RATESPEC_RATE, _RATESPEC_BYTES = 8, 12
_NETEM_BYTES = 24  # struct tc_netem_qopt
_CLASSFUL = ("htb", "hfsc")
_ONE_CHILD = ("tbf", "netem")
"""Qdiscs that pass everything to one other qdisc."""
_CLSACT_INGRESS = 0xFFF2  # TC_H_MIN_INGRESS
_DEPTH = 8


class Limit(NamedTuple):
    bits_per_second: int
    by: str


class Class(NamedTuple):
    """A class of a qdisc of kind htb or hfsc."""

    handle: int
    parent: int
    sent_bytes: int
    bits_per_second: int  # the most that it may send; 0: it is not limited


def limit_of(interface: int, qdiscs: Iterable[Qdisc]) -> Limit | None:
    """The lowest limit for what an interface sends (and, by a police action, receives). None if there is none.

    Raises Unreadable.
    """
    own = [one for one in qdiscs if one.interface == interface]
    found = [Limit(rate, one.kind) for one in own if _has_all(one, own) and (rate := rate_of(one))]
    for one in own:
        if one.kind in _CLASSFUL and one.parent == qdisc.ROOT and (rate := _rate_of_classes(one)):
            found.append(Limit(rate, one.kind))
        if one.parent == qdisc.INGRESS and one.kind in ("ingress", "clsact") and (rate := _policed(one)):
            found.append(Limit(rate, "police"))
    return min(found, default=None)


def _has_all(one: Qdisc, own: list[Qdisc]) -> bool:
    """Whether everything that the interface sends passes this qdisc, or each connection one like it."""
    for _ in range(_DEPTH):
        if one.parent == qdisc.ROOT:
            return True
        above = [other for other in own if other.handle == one.parent & 0xFFFF_0000 and other is not one]
        if not above or not (above[0].kind in _ONE_CHILD or (above[0].kind == "mq" and one.kind == "fq")):
            return False
        one = above[0]
    return False


def rate_of(one: Qdisc) -> int:
    """The bits a second to which a qdisc without classes limits; 0 if it does not."""
    parse = _RATES.get(one.kind)
    options = one.options[_NETEM_BYTES:] if one.kind == "netem" else one.options
    try:
        return parse(attributes(options)) if parse else 0
    except (struct.error, Unreadable):
        return 0


def _tbf(found: dict[int, bytes]) -> int:
    return _spec(found.get(1, b""), 0, found.get(4))


def _netem(found: dict[int, bytes]) -> int:
    return _wide(_U32.unpack_from(found[6])[0], found.get(8)) if 6 in found else 0


def _cake(found: dict[int, bytes]) -> int:
    return 8 * _U64.unpack_from(found[2])[0] if 2 in found else 0


def _fq(found: dict[int, bytes]) -> int:
    rate = _U32.unpack_from(found[7])[0] if 7 in found else _MOST_32
    return 0 if rate == _MOST_32 else 8 * rate


def _cbs(found: dict[int, bytes]) -> int:
    return 1000 * max(0, _S32.unpack_from(found[1], 12)[0]) if 1 in found else 0  # idleslope, kbit/s


_RATES: dict[str, Callable[[dict[int, bytes]], int]] = {
    "tbf": _tbf,
    "netem": _netem,
    "cake": _cake,
    "fq": _fq,
    "cbs": _cbs,
}


def _spec(data: bytes, number: int, wide: bytes | None) -> int:
    """Bits a second of one of the `struct tc_ratespec` with which ``data`` begins."""
    if not data:
        return 0
    return _wide(_U32.unpack_from(data, _RATESPEC_BYTES * number + _RATESPEC_RATE)[0], wide)


def _wide(rate: int, wide: bytes | None) -> int:
    return 8 * (_U64.unpack_from(wide)[0] if wide and rate == _MOST_32 else rate)


# -- classes


def classes(one: Qdisc, bodies: Iterable[bytes]) -> list[Class]:
    """Parses an answer to RTM_GETTCLASS. Raises Unreadable."""
    found: list[Class] = []
    for body in bodies:
        try:
            _, _, handle, parent, _ = _TCMSG.unpack_from(body)
            told = attributes(body[_TCMSG.size :])
            basic = attributes(told.get(7, b"")).get(1, b"")  # TCA_STATS2, TCA_STATS_BASIC
            sent = _U64.unpack_from(basic)[0] if basic else 0
            options = attributes(told.get(2, b""))
            if one.kind == "htb":
                rate = _spec(options.get(1, b""), 1, options.get(7))
            else:  # m2 of the upper limit
                rate = 8 * _U32.unpack_from(options[3], 8)[0] if 3 in options else 0
        except struct.error:
            raise Unreadable("garbage", "RTM_GETTCLASS") from None
        if handle & 0xFFFF_0000 == one.handle and handle != one.handle:
            found.append(Class(handle, parent, sent, rate))
    return found


def limit_of_classes(one: Qdisc, found: list[Class]) -> int:
    """The bits a second of the class that sends most, or else of the default class; 0 if it is not limited."""
    by_handle = {each.handle: each for each in found}
    parents = {each.parent for each in found}
    leaves = [each for each in found if each.handle not in parents]
    used = max(leaves, key=lambda leaf: leaf.sent_bytes, default=None)
    if used is None or not used.sent_bytes:
        used = by_handle.get(one.handle | _default(one))
    limits: list[int] = []
    for _ in range(_DEPTH):
        if used is None:
            break
        limits += [used.bits_per_second] if used.bits_per_second else []
        used = by_handle.get(used.parent)
    return min(limits, default=0)


def _default(one: Qdisc) -> int:
    try:
        if one.kind == "htb":
            return _U32.unpack_from(attributes(one.options).get(2, b""), 8)[0] & 0xFFFF  # struct tc_htb_glob
        return struct.unpack_from("=H", one.options)[0]  # struct tc_hfsc_qopt
    except (struct.error, Unreadable):
        return 0


def _rate_of_classes(one: Qdisc) -> int:
    question = netlink.request(_CLASSES, _TCMSG.pack(0, one.interface, 0, 0, 0))
    return limit_of_classes(one, classes(one, netlink.ask(netlink.ROUTE, question, "RTM_GETTCLASS")))


# -- police


def policed(bodies: Iterable[bytes]) -> int:
    """The lowest rate of the police actions of filters, bits a second; 0 if there are none. Raises Unreadable."""
    rates: list[int] = []
    for body in bodies:
        for _, option in each_attribute(attributes(body[_TCMSG.size :]).get(2, b"")):
            rates += _police_actions(option)
    return min(rates, default=0)


def _police_actions(option: bytes) -> list[int]:
    """The attribute that has the actions has another number in each classifier, so it is found by its content."""
    rates: list[int] = []
    try:
        for _, action in each_attribute(option):
            told = attributes(action)
            if told.get(1, b"") == b"police\0":
                police = attributes(told.get(2, b""))
                # struct tc_police: five words, then the rate
                rates.append(_spec(police.get(1, b"")[20:], 0, police.get(8)))
    except (struct.error, Unreadable):
        pass  # not the actions
    return [rate for rate in rates if rate]


def _policed(one: Qdisc) -> int:
    parent = one.handle if one.kind == "ingress" else one.handle & 0xFFFF_0000 | _CLSACT_INGRESS
    question = netlink.request(_FILTERS, _TCMSG.pack(0, one.interface, 0, parent, 0))
    return policed(netlink.ask(netlink.ROUTE, question, "RTM_GETTFILTER"))

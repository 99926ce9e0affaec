"""The messages of the kubelet's pod-resources API, v1: which container holds which devices.

https://github.com/kubernetes/kubelet/blob/master/pkg/apis/podresources/v1/api.proto; only the fields that are needed
here are read, all others are skipped. https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..files import Unreadable
from .kubernetes import clean

MOST_FIELDS = 100_000
"""A node of 250 pods with a hundred devices each has half of it; more would cost a scrape a tenth of a second."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Allocation(NamedTuple):
    """A device that a container holds. Of a device of dynamic resource allocation the resource is its driver."""

    namespace: str
    pod: str
    container: str
    resource: str
    device: str


@dataclass(frozen=True, slots=True)
class Pods:
    """All pods of the node, and what they hold."""

    pods: frozenset[tuple[str, str]]  # namespace, name
    allocations: tuple[Allocation, ...]


def pods(message: bytes) -> Pods:
    """A ListPodResourcesResponse. Raises Unreadable."""
    decoder = _Decoder()
    names: set[tuple[str, str]] = set()
    found: list[Allocation] = []
    for pod in decoder.parts(message, 1):
        fields = decoder.by_number(pod)
        name, namespace = _text(fields, 1), _text(fields, 2)
        names.add((namespace, name))
        for container in fields.get(3, ()):
            parts = decoder.by_number(container)
            held = [*_plugin_devices(decoder, parts.get(2, ())), *_claimed_devices(decoder, parts.get(5, ()))]
            found.extend(Allocation(namespace, name, _text(parts, 1), *device) for device in held)
    return Pods(frozenset(names), tuple(found))


def allocatable(message: bytes) -> dict[str, int]:
    """An AllocatableResourcesResponse -> how many devices there are of each resource. Raises Unreadable."""
    decoder = _Decoder()
    devices = set(_plugin_devices(decoder, decoder.parts(message, 1)))
    counts: dict[str, int] = {}
    for resource, _ in devices:
        counts[resource] = counts.get(resource, 0) + 1
    return counts


def _plugin_devices(decoder: _Decoder, messages: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """ContainerDevices -> resource, device."""
    for message in messages:
        fields = decoder.by_number(message)
        resource = _text(fields, 1)
        for raw in fields.get(2, ()):
            yield resource, _decode(raw)


def _claimed_devices(decoder: _Decoder, messages: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """DynamicResource -> driver, and pool/device."""
    for message in messages:
        for claimed in decoder.parts(message, 4):
            fields = decoder.by_number(claimed)
            if driver := _text(fields, 2):
                yield driver, f"{_text(fields, 3)}/{_text(fields, 4)}"
                continue
            # Kubelets before 1.31 name devices by their CDI name alone: vendor/class=device.
            for device in fields.get(1, ()):
                kind, _, name = _text(decoder.by_number(device), 1).partition("=")
                yield kind, name


class _Decoder:
    """Takes messages apart, and counts their fields: what a message may cost is bounded by it."""

    def __init__(self) -> None:
        self._left = MOST_FIELDS

    def by_number(self, message: bytes) -> dict[int, list[bytes]]:
        fields: dict[int, list[bytes]] = {}
        for number, value in self._fields(message):
            fields.setdefault(number, []).append(value)
        return fields

    def parts(self, message: bytes, wanted: int) -> Iterator[bytes]:
        return (value for number, value in self._fields(message) if number == wanted)

    def _fields(self, message: bytes) -> Iterator[tuple[int, bytes]]:
        """The fields that have a length: strings and messages."""
        at, end = 0, len(message)
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise Unreadable("huge")
            key, at = _varint(message, at)
            kind, value_at = key & 7, at
            if kind == _BYTES:
                length, value_at = _varint(message, at)
                at = value_at + length
            elif kind == _VARINT:
                _, at = _varint(message, at)
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            else:  # groups, which this version of the language does not have
                raise Unreadable("garbage")
            if at > end or key < 8:
                raise Unreadable("garbage")
            if kind == _BYTES:
                yield key >> 3, message[value_at:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at ``at`` -> it, and where the next begins."""
    value = 0
    for shift, byte in zip(range(0, 70, 7), message[at : at + 10], strict=False):
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise Unreadable("garbage")


def _text(fields: dict[int, list[bytes]], number: int) -> str:
    """A string; empty where it is not set. Of several the last one stands, as the encoding has it."""
    values = fields.get(number)
    return _decode(values[-1]) if values else ""


def _decode(raw: bytes) -> str:
    try:
        return clean(raw.decode())
    except UnicodeDecodeError:
        raise Unreadable("garbage") from None

"""The messages of the kubelet's pod-resources API, v1: the devices that containers hold.

Only the fields that are needed here are decoded. Messages:
https://github.com/kubernetes/kubelet/blob/master/pkg/apis/podresources/v1/api.proto
Encoding: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..files import Unreadable
from .kubernetes import clean

MOST_FIELDS = 100_000
"""The maximum number of fields. 250 pods with 100 devices each have half of it. More would take 0.1 s of a scrape."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Allocation(NamedTuple):
    """A device that a container holds. For dynamic resource allocation, the resource is the name of the driver."""

    namespace: str
    pod: str
    container: str
    resource: str
    device: str


@dataclass(frozen=True, slots=True)
class Pods:
    """All pods of the node, and the devices that they hold."""

    pods: frozenset[tuple[str, str]]  # namespace, name
    allocations: tuple[Allocation, ...]


def pods(message: bytes) -> Pods:
    """Decodes a ListPodResourcesResponse. Raises Unreadable."""
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
    """Decodes an AllocatableResourcesResponse. Returns the number of devices by resource. Raises Unreadable."""
    decoder = _Decoder()
    devices = set(_plugin_devices(decoder, decoder.parts(message, 1)))
    counts: dict[str, int] = {}
    for resource, _ in devices:
        counts[resource] = counts.get(resource, 0) + 1
    return counts


def _plugin_devices(decoder: _Decoder, messages: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """(resource, device) of ContainerDevices messages."""
    for message in messages:
        fields = decoder.by_number(message)
        resource = _text(fields, 1)
        for raw in fields.get(2, ()):
            yield resource, _decode(raw)


def _claimed_devices(decoder: _Decoder, messages: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """(driver, pool/device) of DynamicResource messages."""
    for message in messages:
        for claimed in decoder.parts(message, 4):
            fields = decoder.by_number(claimed)
            if driver := _text(fields, 2):
                yield driver, f"{_text(fields, 3)}/{_text(fields, 4)}"
                continue
            # Kubelets before 1.31 give only the CDI name of a device: vendor/class=device.
            for device in fields.get(1, ()):
                kind, _, name = _text(decoder.by_number(device), 1).partition("=")
                yield kind, name


class _Decoder:
    """Decodes messages. Counts their fields, so that the work for one message is bounded."""

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
        """The fields with a length, which are strings and messages."""
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
            else:  # groups, which proto3 does not have
                raise Unreadable("garbage")
            if at > end or key < 8:
                raise Unreadable("garbage")
            if kind == _BYTES:
                yield key >> 3, message[value_at:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at position ``at``, and the position after it. Raises Unreadable."""
    value = 0
    for shift, byte in zip(range(0, 70, 7), message[at : at + 10], strict=False):
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise Unreadable("garbage")


def _text(fields: dict[int, list[bytes]], number: int) -> str:
    """A string, or "" if it is not set. If it occurs several times, the last one counts, as the encoding defines."""
    values = fields.get(number)
    return _decode(values[-1]) if values else ""


def _decode(raw: bytes) -> str:
    try:
        return clean(raw.decode())
    except UnicodeDecodeError:
        raise Unreadable("garbage") from None

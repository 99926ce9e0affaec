"""Secrets as Helm's client writes them, in Kubernetes's protobuf envelope. It writes all other objects as JSON.

Field numbers are those of generated.proto in k8s.io/apimachinery/pkg/runtime (Unknown), k8s.io/api/core/v1 (Secret) and
k8s.io/apimachinery/pkg/apis/meta/v1 (ObjectMeta).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable

from support_helm import Map

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_META = {1: "name", 3: "namespace", 5: "uid", 6: "resourceVersion"}


def secret(message: bytes) -> Map:
    """The Secret in an envelope."""
    assert message.startswith(_MAGIC)
    envelope = _fields(message[len(_MAGIC) :])
    kind = _fields(envelope[1][0])
    assert (kind[1], kind[2]) == ([b"v1"], [b"Secret"]), "only Secrets are written in protobuf"
    given = _fields(envelope[2][0])
    meta = _fields(given[1][0])
    metadata: Map = {name: meta[number][-1].decode() for number, name in _META.items() if meta.get(number, [b""])[-1]}
    metadata |= {
        name: _map(meta.get(number, []), bytes.decode) for number, name in ((11, "labels"), (12, "annotations"))
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {name: value for name, value in metadata.items() if value},
        "data": _map(given.get(2, []), lambda value: b64encode(value).decode()),
        "type": given[3][0].decode() if 3 in given else "Opaque",
    }


def _map(entries: list[bytes], read: Callable[[bytes], str]) -> dict[str, str]:
    pairs = [_fields(entry) for entry in entries]
    return {pair[1][0].decode(): read(pair[2][0]) for pair in pairs}


def _fields(message: bytes) -> dict[int, list[bytes]]:
    """Fields by their number; numbers themselves are skipped. https://protobuf.dev/programming-guides/encoding/"""
    found: dict[int, list[bytes]] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == 2:
            found.setdefault(tag >> 3, []).append(message[at : at + value])
            at += value
        else:
            assert tag & 7 == 0, "not known here"
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at

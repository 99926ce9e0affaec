"""What a Kubernetes API rejects besides violations of a schema, with the messages that Helm then shows."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from support_helm import Map
from support_kube_merge import Shape, get

OBJECT_LIMIT = 3 << 19
"""etcd's --max-request-bytes, 1.5 MiB. Counted in JSON here, which is longer than the request to etcd."""
DATA_LIMIT = 1 << 20
"""The largest data of a Secret or a ConfigMap, decoded."""
ANNOTATIONS_LIMIT = 256 << 10

NEVER_CHANGES: Mapping[str, tuple[str, ...]] = {
    "DaemonSet": ("spec.selector",),
    "Service": ("spec.clusterIP",),
    "Secret": ("type",),
}
WHEN_IMMUTABLE = ("data", "binaryData", "immutable")

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_NAMES = {"Service": (re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?"), 63), "Namespace": (_LABEL, 63)}
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_KEY = re.compile(r"[-._a-zA-Z0-9]+")


@dataclass(frozen=True)
class Kind:
    group: str
    version: str
    name: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def __str__(self) -> str:
        return f"{self.name}.{self.group}" if self.group else self.name


class Refused(Exception):
    """The API's answer, as a Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


def check(kind: Kind, live: Map | None, new: Map) -> None:
    """Raises Refused for an object that may not be stored, or not instead of `live`."""
    if len(json.dumps(new)) > OBJECT_LIMIT:
        raise Refused(413, "RequestEntityTooLarge", "etcdserver: request is too large")
    found = [*_names(kind, new), *_sizes(kind, new)]
    if kind.name == "DaemonSet":
        found += _template(new["spec"])
    if live:
        found += _changes(kind, live, new)
    if found:
        raise invalid(kind, new, "; ".join(found))


def invalid(kind: Kind, given: Map, why: str) -> Refused:
    return Refused(422, "Invalid", f'{kind} "{given["metadata"]["name"]}" is invalid: {why}')


def _names(kind: Kind, new: Map) -> Iterator[str]:
    meta = new["metadata"]
    pattern, length = _NAMES.get(kind.name, (_SUBDOMAIN, 253))
    if not pattern.fullmatch(meta["name"]) or len(meta["name"]) > length:
        yield f'metadata.name: Invalid value: "{meta["name"]}"'
    yield from _labels("metadata.labels", meta)
    if kind.name in ("Secret", "ConfigMap"):
        yield from (f'data[{key}]: Invalid value: "{key}"' for key in new.get("data") or {} if not _KEY.fullmatch(key))


def _labels(where: str, meta: Map) -> Iterator[str]:
    for name, value in (meta.get("labels") or {}).items():
        if len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
            yield f'{where}: Invalid value: "{value}" (of {name})'


def _sizes(kind: Kind, new: Map) -> Iterator[str]:
    notes = new["metadata"].get("annotations") or {}
    if sum(len(name.encode()) + len(value.encode()) for name, value in notes.items()) > ANNOTATIONS_LIMIT:
        yield f"metadata.annotations: Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"
    if kind.name in ("Secret", "ConfigMap") and data_size(new) > DATA_LIMIT:
        yield f"data: Too long: may not be more than {DATA_LIMIT} bytes"


def data_size(given: Map) -> int:
    """Bytes in a Secret or a ConfigMap."""
    values = (given.get("data") or {}).values()
    return sum(len(b64decode(value) if given["kind"] == "Secret" else value.encode()) for value in values)


def _template(spec: Map) -> Iterator[str]:
    """Names in a DaemonSet that do not match, or occur twice."""
    meta, pod = spec["template"]["metadata"], spec["template"]["spec"]
    if not spec["selector"]["matchLabels"].items() <= meta["labels"].items():
        yield "spec.template.metadata.labels: Invalid value: `selector` does not match template `labels`"
    yield from _labels("spec.template.labels", meta)
    volumes = [volume["name"] for volume in pod.get("volumes") or []]
    containers = [*(pod.get("initContainers") or []), *pod["containers"]]
    yield from _twice("spec.template.spec.volumes", volumes)
    yield from _twice("spec.template.spec.containers", [each["name"] for each in containers])
    for container in containers:
        mounts = container.get("volumeMounts") or []
        where = f"spec.template.spec.containers[{container['name']}].volumeMounts"
        yield from _twice(f"{where}.mountPath", [mount["mountPath"] for mount in mounts])
        for name in {mount["name"] for mount in mounts} - {*volumes}:
            yield f'{where}: Not found: "{name}"'


def _twice(where: str, names: list[str]) -> list[str]:
    return [f'{where}: Duplicate value: "{name}"' for name, count in Counter(names).items() if count > 1]


def _changes(kind: Kind, live: Map, new: Map) -> Iterator[str]:
    names = [*NEVER_CHANGES.get(kind.name, ()), *(WHEN_IMMUTABLE if live.get("immutable") else ())]
    plain = Shape({}, {})
    for name in names:
        path = tuple(name.split("."))
        if get(live, path, plain) != get(new, path, plain):
            yield f"{name}: Invalid value: field is immutable"


def selected(selector: str) -> Callable[[Map], bool]:
    """A label selector with equality, as Helm and `kubectl -l` write it. Raises Refused for others."""
    parts = [part for part in selector.split(",") if part]
    found = [re.fullmatch(r"([^=!,]+)(==?|!=)([^=!,]*)", part) for part in parts]
    if None in found:
        raise Refused(400, "BadRequest", f"not understood here: labelSelector {selector!r}")
    rows = [(match[1], match[2] == "!=", match[3]) for match in found if match]
    return lambda labels: all((labels.get(name) == value) != unequal for name, unequal, value in rows)

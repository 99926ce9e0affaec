"""How a Kubernetes API merges: server-side apply with owners of fields, and the patches of older clients.

The schemas of Kubernetes say which lists are merged, by which keys, and which maps are one value:
https://kubernetes.io/docs/reference/using-api/server-side-apply/#merge-strategy. Sets count as one value here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from support_helm import Map

Item = tuple[tuple[str, Any], ...]
Path = tuple["str | Item", ...]
"""Steps to a field: names and, for an item of a merged list, its keys."""

IDENTITY = frozenset({"apiVersion", "kind"})
_IDENTITY_META = frozenset({"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"})
_KEY_DEFAULTS = {"protocol": "TCP"}
_CUSTOM_KEYS: Mapping[tuple[str, ...], list[str]] = {("PrometheusRule", "spec", "groups"): ["name"]}
"""For custom resources. Their schemas in tests/support/schemas are made from types, which lack this; CRDs have it."""


@dataclass(frozen=True)
class Shape:
    """A place in the schema of a kind."""

    schema: Map
    types: Map
    at: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if "$ref" in self.schema:
            found = self.types[self.schema["$ref"].rpartition("/")[2]]
            object.__setattr__(self, "schema", {**found, **{k: v for k, v in self.schema.items() if k != "$ref"}})

    def child(self, name: str) -> Shape:
        inner = self.schema.get("properties", {}).get(name)
        if inner is None:
            inner = self.schema.get("additionalProperties")
        return Shape(inner if isinstance(inner, dict) else {}, self.types, (*self.at, name))

    def item(self) -> Shape:
        return Shape(self.schema.get("items", {}), self.types, self.at)

    @property
    def keys(self) -> list[str]:
        """The keys that identify items of this list. None if the list is replaced as a whole."""
        return self.schema.get("x-kubernetes-list-map-keys") or _CUSTOM_KEYS.get(self.at, [])

    @property
    def patch_key(self) -> str:
        """The same for a strategic merge patch, which has at most one key. A custom resource has none."""
        merged = "merge" in self.schema.get("x-kubernetes-patch-strategy", "").split(",")
        return self.schema.get("x-kubernetes-patch-merge-key", "") if merged else ""

    @property
    def atomic(self) -> bool:
        return self.schema.get("x-kubernetes-map-type") == "atomic"

    def known_by(self, item: Map) -> Item:
        return tuple((key, item.get(key, _KEY_DEFAULTS.get(key))) for key in self.keys)


# -- fields


def written(path: Path) -> str:
    """As the API writes a field: .spec.containers[name="agent"].image"""
    steps = [
        f".{step}" if isinstance(step, str) else "[" + ",".join(f'{key}="{value}"' for key, value in step) + "]"
        for step in path
    ]
    return "".join(steps)


def fields(value: Any, shape: Shape, path: Path = ()) -> Iterator[Path]:
    """The fields that an object sets, without its identity. An item of a merged list is one, besides its own fields."""
    if isinstance(value, dict) and value and not shape.atomic:
        for name, inner in value.items():
            if not (path == () and name in IDENTITY) and not (path == ("metadata",) and name in _IDENTITY_META):
                yield from fields(inner, shape.child(name), (*path, name))
    elif isinstance(value, list) and shape.keys:
        for item in value:
            here = (*path, shape.known_by(item))
            yield here
            yield from fields(item, shape.item(), here)
    elif path:
        yield path


def twice(value: Any, shape: Shape, path: Path = ()) -> Iterator[str]:
    """Items that a merged list has more than once: server-side apply rejects such a list."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from twice(inner, shape.child(name), (*path, name))
    elif isinstance(value, list) and shape.keys:
        known = [shape.known_by(item) for item in value]
        for item, key in zip(value, known, strict=True):
            if known.count(key) > 1:
                yield f"{written(path)}: duplicate entries for key {written((key,))}"
            yield from twice(item, shape.item(), (*path, key))


_ABSENT = object()


def _index(value: Any, step: Any, shape: Shape) -> Any:
    """The key or the position of a step in a map or a list, or None if it does not exist."""
    if isinstance(step, str):
        return step if isinstance(value, dict) and step in value else None
    return next((n for n, item in enumerate(value or []) if shape.known_by(item) == step), None)


def get(value: Any, path: Path, shape: Shape) -> Any:
    for step in path:
        index = _index(value, step, shape)
        if index is None:
            return _ABSENT
        value = value[index]
        shape = shape.child(step) if isinstance(step, str) else shape.item()
    return value


def _remove(value: Any, path: Path, shape: Shape) -> None:
    """Removes a field, and then the maps that it leaves empty, as Kubernetes does."""
    index = _index(value, path[0], shape)
    if index is None:
        return
    if len(path) > 1:
        step = path[0]
        _remove(value[index], path[1:], shape.child(step) if isinstance(step, str) else shape.item())
    if len(path) == 1 or value[index] in ({}, []):
        del value[index]


# -- server-side apply


class Conflict(Exception):
    """Another manager set a field to another value."""


@dataclass
class Owners:
    """Which manager set which field last."""

    of: dict[str, set[Path]] = field(default_factory=dict)

    def others(self, manager: str) -> dict[str, set[Path]]:
        return {name: owned for name, owned in self.of.items() if name != manager}

    def wrote(self, manager: str, old: Map, new: Map, shape: Shape) -> None:
        """An update: the writer owns the fields that differ."""
        there = set(fields(new, shape))
        changed = {path for path in there if get(old, path, shape) != get(new, path, shape)}
        for name, owned in self.of.items():
            self.of[name] = (owned & there) - (changed if name != manager else set())
        self.of.setdefault(manager, set()).update(changed)


def apply(live: Map, given: Map, owners: Owners, manager: str, shape: Shape, force: bool = False) -> Map:
    """`live` with all fields of `given`, without those that the manager set earlier and not now. Raises Conflict."""
    mine = set(fields(given, shape))
    others = owners.others(manager)
    conflicts = {
        name: sorted(
            written(path)
            for path in mine & owned
            if isinstance(path[-1], str) and get(live, path, shape) != get(given, path, shape)
        )
        for name, owned in others.items()
    }
    if any(conflicts.values()) and not force:
        said = [f'conflict with "{name}": {", ".join(paths)}' for name, paths in conflicts.items() if paths]
        raise Conflict(f"Apply failed with {sum(map(len, conflicts.values()))} conflicts: {'; '.join(said)}")
    for name, paths in conflicts.items():
        owners.of[name] = {path for path in owners.of[name] if written(path) not in paths}
    kept = set().union(*others.values()) if others else set()
    gone = owners.of.get(manager, set()) - mine - kept
    made = merged(live, given, shape)
    for path in sorted(gone, key=len):
        # An item is removed as a whole, unless another manager owns a part of it.
        if not any(other[: len(path)] == path for other in kept):
            _remove(made, path, shape)
    owners.of[manager] = mine
    return made


def merged(live: Any, given: Any, shape: Shape) -> Any:
    """Items of merged lists are in the order of `given`. Those that only `live` has are last."""
    if isinstance(given, dict) and isinstance(live, dict) and not shape.atomic:
        return {**live, **{name: merged(live.get(name), inner, shape.child(name)) for name, inner in given.items()}}
    if isinstance(given, list) and isinstance(live, list) and shape.keys:
        there = {shape.known_by(item): item for item in live}
        made = [merged(there.pop(shape.known_by(item), None), item, shape.item()) for item in given]
        return [*made, *there.values()]
    return copy.deepcopy(given)


# -- patches


def json_merged(live: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    made = dict(live) if isinstance(live, dict) else {}
    for name, inner in patch.items():
        made[name] = json_merged(made.get(name), inner)
        if inner is None:
            del made[name]
    return made


def strategic(live: Any, patch: Any, shape: Shape) -> Any:
    """A strategic merge patch, with the directives of Helm and kubectl: $patch, $retainKeys, $setElementOrder."""
    if isinstance(patch, list) and shape.patch_key:
        return _strategic_list(live or [], patch, shape)
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {name: inner for name, inner in patch.items() if name != "$patch"}
    made = dict(live) if isinstance(live, dict) else {}
    retained = patch.get("$retainKeys", list(made))
    made = {name: inner for name, inner in made.items() if name in retained}
    for name, inner in patch.items():
        if inner is None:
            made.pop(name, None)
        elif not name.startswith("$"):
            made[name] = strategic(made.get(name), inner, shape.child(name))
    for name, order in patch.items():
        listed = name.removeprefix("$setElementOrder/")
        if listed != name and listed in made:
            made[listed] = _ordered(made[listed], order, shape.child(listed).patch_key)
    return made


def _ordered(items: list[Any], order: list[Any], key: str) -> list[Any]:
    """A custom order for a list that has a key. Items that it does not name are last."""
    if not key:
        return items
    wanted = [item[key] for item in order]
    return sorted(items, key=lambda item: wanted.index(item[key]) if item[key] in wanted else len(wanted))


def _strategic_list(live: list[Any], patch: list[Any], shape: Shape) -> list[Any]:
    key = shape.patch_key
    made = {item[key]: item for item in live}
    for item in patch:
        if item.get("$patch") == "delete":
            made.pop(item[key], None)
        else:
            made[item[key]] = strategic(made.get(item[key]), item, shape.item())
    return list(made.values())

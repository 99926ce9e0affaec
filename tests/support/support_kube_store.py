"""The objects of a cluster, and all ways to write them. What Kubernetes would reject is rejected.

Missing: controllers (a DaemonSet creates no pods; `report` writes what its controller would), the scheduler, garbage
collection, admission plugins and webhooks, roles, defaults of fields, finalizers, managedFields as a client reads them,
other kinds and other versions than those listed. A deleted namespace removes its objects at once.
"""

from __future__ import annotations

import copy
import threading
import uuid
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field

from support_helm import Map, definitions, validator
from support_kube_checks import Kind, Refused, check, invalid, selected
from support_kube_merge import Conflict, Owners, Shape, apply, twice

VERSION = "1.33.0"
NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
SECRET = Kind("", "v1", "Secret", "secrets")
DAEMON_SET = Kind("apps", "v1", "DaemonSet", "daemonsets")
CORE = (
    NAMESPACE,
    SECRET,
    DAEMON_SET,
    Kind("", "v1", "ConfigMap", "configmaps"),
    Kind("", "v1", "Service", "services"),
    Kind("", "v1", "ServiceAccount", "serviceaccounts"),
    Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
)
OPERATOR = (
    Kind("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
    Kind("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),
    Kind("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
)
"""Kinds that exist once the Prometheus operator's CRDs are installed."""
KYVERNO = (Kind("kyverno.io", "v1", "ClusterPolicy", "clusterpolicies", namespaced=False),)

Key = tuple[str, str, str]
"""The name of a kind, a namespace (empty for objects of the cluster), a name."""


@dataclass(frozen=True)
class Event:
    version: int
    type: str
    key: Key
    object: Map


@dataclass
class Store:
    """One cluster. Its objects are never changed in place, so a reader keeps the version that it got."""

    kinds: tuple[Kind, ...] = (*CORE, *OPERATOR, *KYVERNO)
    objects: dict[Key, Map] = field(default_factory=dict)
    owners: dict[Key, Owners] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.create(NAMESPACE, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}, "test")

    @property
    def version(self) -> int:
        return self.events[-1].version if self.events else 0

    def get(self, kind: Kind, namespace: str, name: str) -> Map:
        found = self.objects.get((kind.name, namespace, name))
        if found is None:
            raise Refused(404, "NotFound", f'{kind.resource} "{name}" not found')
        return found

    def list(self, kind: Kind, namespace: str = "", selector: str = "", name: str = "") -> list[Map]:
        """The objects of one namespace, or of all if it is empty; the same for names."""
        chosen = selected(selector)
        return [
            found
            for (of, where, called), found in sorted(self.objects.items())
            if of == kind.name and namespace in ("", where) and name in ("", called)
            if chosen(found["metadata"].get("labels") or {})
        ]

    def create(self, kind: Kind, namespace: str, given: Map, manager: str) -> Map:
        key = self._key(kind, namespace, given)
        if key in self.objects:
            raise Refused(409, "AlreadyExists", f'{kind.resource} "{key[2]}" already exists')
        owners = Owners()
        owners.wrote(manager, {}, given, self._shape(kind))
        return self._write(kind, key, given, owners)

    def update(self, kind: Kind, namespace: str, name: str, change: Callable[[Map, Shape], Map], manager: str) -> Map:
        """`change` gets a copy of the live object, and turns it into the new one."""
        live = self.get(kind, namespace, name)
        new = change(copy.deepcopy(live), self._shape(kind))
        if new["metadata"].get("resourceVersion", "") not in ("", live["metadata"]["resourceVersion"]):
            said = f'Operation cannot be fulfilled on {kind.resource} "{name}": the object has been modified'
            raise Refused(409, "Conflict", f"{said}; please apply your changes to the latest version and try again")
        key = (kind.name, namespace, name)
        owners = copy.deepcopy(self.owners[key])
        owners.wrote(manager, live, new, self._shape(kind))
        return self._write(kind, key, new, owners)

    def apply(self, kind: Kind, namespace: str, given: Map, manager: str, force: bool) -> Map:
        """Server-side apply: creates the object if it does not exist."""
        key = self._key(kind, namespace, given)
        for problem in twice(given, self._shape(kind)):
            what = f"({namespace}/{key[2]}; {kind.api_version}, Kind={kind.name})"
            raise Refused(500, "InternalError", f"failed to create typed patch object {what}: {problem}")
        owners = copy.deepcopy(self.owners.get(key, Owners()))
        try:
            made = apply(self.objects.get(key, {}), given, owners, manager, self._shape(kind), force)
        except Conflict as conflict:
            raise Refused(409, "Conflict", str(conflict)) from conflict
        return self._write(kind, key, made, owners)

    def delete(self, kind: Kind, namespace: str, name: str) -> Map:
        gone = self.get(kind, namespace, name)
        within = [key for key in self.objects if kind is NAMESPACE and key[1] == name]
        for key in [*within, (kind.name, namespace, name)]:
            self._happened("DELETED", key, self.objects.pop(key))
            del self.owners[key]
        return gone

    def report(self, kind: Kind, namespace: str, name: str, status: Map) -> None:
        """What a controller writes into an object's status."""
        found = copy.deepcopy(self.get(kind, namespace, name))
        self._happened("MODIFIED", (kind.name, namespace, name), {**found, "status": status})

    def _key(self, kind: Kind, namespace: str, given: Map) -> Key:
        if kind.namespaced and ("Namespace", "", namespace) not in self.objects:
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
        return kind.name, namespace if kind.namespaced else "", given["metadata"]["name"]

    def _shape(self, kind: Kind) -> Shape:
        schema = validator(kind.name, kind.api_version, VERSION).schema
        assert isinstance(schema, dict)
        return Shape(schema, {**definitions(VERSION), **schema.get("$defs", {})}, (kind.name,))

    def _valid(self, kind: Kind, given: Map) -> None:
        for error in validator(kind.name, kind.api_version, VERSION).iter_errors(given):
            raise invalid(kind, given, f"{error.json_path.removeprefix('$.')}: {error.message}")

    def _write(self, kind: Kind, key: Key, given: Map, owners: Owners) -> Map:
        live = self.objects.get(key)
        new = with_data(copy.deepcopy(given))
        self._valid(kind, new)
        check(kind, live, new)
        if kind.namespaced:
            new["metadata"]["namespace"] = key[1]
        old: Map = live["metadata"] if live else {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z"}
        new["metadata"] |= {name: old[name] for name in ("uid", "creationTimestamp", "resourceVersion") if name in old}
        new["metadata"]["generation"] = old.get("generation", 0) + (not live or _body(live) != _body(new))
        self.owners[key] = owners
        if live == new:
            return new
        return self._happened("MODIFIED" if live else "ADDED", key, new)

    def _happened(self, what: str, key: Key, made: Map) -> Map:
        """A new version of the cluster, unless nothing has changed."""
        with self.changed:
            version = self.version + 1
            made = {**made, "metadata": {**made["metadata"], "resourceVersion": str(version)}}
            self.events.append(Event(version, what, key, made))
            if what != "DELETED":
                self.objects[key] = made
            self.changed.notify_all()
        return made


def _body(given: Map) -> Map:
    return {name: inner for name, inner in given.items() if name not in ("metadata", "status")}


def with_data(given: Map) -> Map:
    """stringData of a Secret is never stored: it goes into data, and replaces existing keys."""
    if "stringData" not in given:
        return given
    text = {name: b64encode(value.encode()).decode() for name, value in given["stringData"].items()}
    rest = {name: inner for name, inner in given.items() if name != "stringData"}
    return {**rest, "data": {**given.get("data", {}), **text}}

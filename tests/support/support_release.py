"""A release of the chart: Helm's own engine through its life cycle, with a simulated Kubernetes API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from helm_python import Chart, Config
from helm_python.config import _native  # The Python side names fewer options than the engine has.
from support_helm import HASH, PASSWORDS, TLS, Map, chart, documents
from support_kube_api import Api
from support_kube_store import Key, with_data

PATCHES = {"server_side_apply": False}
"""For `install`: write as Helm 3 does. Upgrades and rollbacks use the same way as the installation."""
OTHERS: Map = {"kyverno": {"enabled": True}, "sidecar": {"podMonitor": {"enabled": True}}}


def on(*names: str, **values: Map) -> Map:
    """Values with these features enabled."""
    return {name: {"enabled": True, **values.get(name, {})} for name in (*names, *values)}


def passwords(hash: str = HASH) -> Map:
    return {"web": {"tls": TLS, "basicAuth": {**PASSWORDS, "users": {"prometheus": hash}}}}


EVERYTHING: Map = {**on("rules", "dashboards", "serviceMonitor", "networkPolicy"), **passwords(), **OTHERS}
"""Each kind of object that the chart creates."""

_GIVEN_BY_SERVER = ("uid", "creationTimestamp", "resourceVersion", "generation")


@dataclass
class Release:
    """`helm install NAME --namespace NAMESPACE --create-namespace`, and later steps. Methods raise HelmError."""

    api: Api
    name: str = "whyidle"
    namespace: str = "monitoring"
    config: Config = field(init=False)

    def __post_init__(self) -> None:
        self.config = Config(kube_apiserver=self.api.url, namespace=self.namespace)

    def install(self, values: Mapping[str, Any] | None = None, of: Chart | None = None, **options: Any) -> Map:
        return self._call("helm_install", values, of, **{"create_namespace": True, **options})

    def upgrade(self, values: Mapping[str, Any] | None = None, of: Chart | None = None, **options: Any) -> Map:
        """With `reset_values` by default: `values` over the chart's own."""
        return self._call("helm_upgrade", values, of, **(options or {"reset_values": True}))

    def _call(self, function: str, values: Mapping[str, Any] | None, of: Chart | None, **options: Any) -> Map:
        loaded, nothing = of or chart(), _native.HANDLE(0)
        said = json.dumps(values or {}), json.dumps(options)
        return json.loads(
            _native.call_string(function, self.config._raw(), nothing, loaded._raw(), None, self.name, *said)
        )

    @property
    def revisions(self) -> list[tuple[int, str]]:
        return [(each["revision"], each["status"]) for each in self.config.history(self.name)]

    @property
    def _owner(self) -> Map:
        """What Helm records on each object."""
        return {"meta.helm.sh/release-name": self.name, "meta.helm.sh/release-namespace": self.namespace}

    @property
    def objects(self) -> dict[Key, Map]:
        """All stored objects that have this release as their owner."""
        return {
            key: found
            for key, found in self.api.store.objects.items()
            if self._owner.items() <= found["metadata"].get("annotations", {}).items()
        }

    @property
    def said(self) -> dict[Key, Map]:
        """The parts of them that a client wrote, without what the server adds."""
        return {key: _said(found) for key, found in self.objects.items()}

    def expected(self, values: Mapping[str, Any] | None = None, of: Chart | None = None) -> dict[Key, Map]:
        """The objects that a release with these values should have."""
        made = (of or chart()).render(values=dict(values or {}), name=self.name, namespace=self.namespace)
        texts = [text for path, text in made.items() if not path.endswith("NOTES.txt")]
        found = [document for text in texts for document in documents(text)]
        return {self._key(each): self._owned(each) for each in found}

    def _key(self, manifest: Map) -> Key:
        return manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]

    def _owned(self, manifest: Map) -> Map:
        meta = manifest["metadata"]
        notes = {**meta.get("annotations", {}), **self._owner}
        return with_data({**manifest, "metadata": {**meta, "annotations": notes}})


def _said(found: Map) -> Map:
    meta = {name: value for name, value in found["metadata"].items() if name not in _GIVEN_BY_SERVER}
    return {name: value for name, value in {**found, "metadata": meta}.items() if name != "status"}

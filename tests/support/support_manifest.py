"""What a rendered manifest says about a pod: its volumes, environment, users and rights, as a kubelet reads it."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helm_python import Chart
from support_yaml import read_yamls

Manifest = Mapping[str, Any]
DEFAULT_CAPABILITIES = frozenset(
    {
        "audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service", "net_raw",
        "setfcap", "setgid", "setpcap", "setuid",
    }
)  # fmt: skip
"""The capabilities that containerd gives to a container that does not set any (without chroot)."""


def rendered(chart: Path, values: Manifest | None = None) -> list[Manifest]:
    """The objects of a chart, as Helm's own engine renders them."""
    with Chart.load(str(chart)) as loaded:
        texts = loaded.render(dict(values or {}), name="whyidle", namespace="monitoring")
    documents = [document for name, text in texts.items() if name.endswith(".yaml") for document in read_yamls(text)]
    return [document for document in documents if document]


def one(objects: Sequence[Manifest], kind: str) -> Manifest:
    [found] = [each for each in objects if each["kind"] == kind]
    return found


@dataclass(frozen=True)
class Mount:
    source: Path
    at: str
    read_only: bool


@dataclass(frozen=True)
class Security:
    """The securityContext of the pod, overridden by that of the container."""

    said: Manifest

    @property
    def uid(self) -> int:
        return self.said.get("runAsUser", 0)

    @property
    def gid(self) -> int:
        return self.said.get("runAsGroup", 0)

    @property
    def groups(self) -> list[int]:
        own = self.said.get("fsGroup")
        return [*([] if own is None else [own]), *self.said.get("supplementalGroups", [])]

    @property
    def capabilities(self) -> list[str]:
        said = self.said.get("capabilities", {})
        dropped = {name.lower() for name in said.get("drop", [])}
        kept = set() if "all" in dropped else DEFAULT_CAPABILITIES - dropped
        return sorted(kept | {name.lower() for name in said.get("add", [])})

    def setpriv(self) -> list[str]:
        groups = [f"--groups={','.join(map(str, self.groups))}"] if self.groups else ["--clear-groups"]
        bounding = ",".join(["-all", *(f"+{name}" for name in self.capabilities)])
        words = [f"--reuid={self.uid}", f"--regid={self.gid}", *groups, f"--bounding-set={bounding}"]
        if not self.said.get("allowPrivilegeEscalation", True):
            words.append("--no-new-privs")
        return ["/usr/bin/setpriv", *words, "--inh-caps=-all", "--ambient-caps=-all", "--"]


@dataclass
class Node:
    """The files of a node: what hostPath volumes show, except /proc and /sys, which are this machine's."""

    files: Path
    name: str = "gpu-node-1"

    def path(self, host_path: str, kind: str = "") -> Path:
        """The path on this machine for a path of the node. It is created, or must exist, depending on the volume's
        type, as in the kubelet."""
        if host_path.rstrip("/") in ("/proc", "/sys"):
            return Path(host_path)
        path = self.files / host_path.lstrip("/")
        if kind == "DirectoryOrCreate" and not path.exists():
            path.mkdir(parents=True)
            path.chmod(0o755)
        assert path.exists(), f"the node has no {host_path}: the pod would not start"
        assert kind != "Directory" or path.is_dir()
        return path


@dataclass
class PodSpec:
    """A pod of a rendered manifest, on a node. ``objects`` has the ConfigMaps and Secrets that it may name."""

    template: Manifest
    node: Node
    folder: Path
    objects: Sequence[Manifest] = ()
    name: str = "pod-0"
    entry_point: Sequence[str] = ("whyidle",)
    image: Path | None = None
    """The root of the image, if there is one."""
    image_env: Mapping[str, str] | None = None

    @property
    def spec(self) -> Manifest:
        return self.template["spec"]

    def security(self, said: Manifest) -> Security:
        return Security({**self.spec.get("securityContext", {}), **said.get("securityContext", {})})

    def words(self, said: Manifest) -> list[str]:
        """The command line of a container."""
        env = self.environment(said)
        return [expand(word, env) for word in [*said.get("command", self.entry_point), *said.get("args", [])]]

    def mounts(self, said: Manifest) -> list[Mount]:
        """The mounts of a container, outer ones first."""
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        found = []
        for mount in said.get("volumeMounts", []):
            assert not {"subPath", "subPathExpr"} & mount.keys(), "not done here"
            volume = volumes[mount["name"]]
            read_only = mount.get("readOnly", False) or bool({"configMap", "secret"} & volume.keys())
            found.append(Mount(self._volume(volume), mount["mountPath"].rstrip("/"), read_only))
        return sorted(found, key=lambda mount: mount.at.count("/"))

    def _volume(self, volume: Manifest) -> Path:
        if "hostPath" in volume:
            return self.node.path(volume["hostPath"]["path"], volume["hostPath"].get("type", ""))
        path = self.folder / "volumes" / volume["name"]
        if not path.exists():
            path.mkdir(parents=True)
            self._fill(volume, path)
        return path

    def _fill(self, volume: Manifest, path: Path) -> None:
        group = self.spec.get("securityContext", {}).get("fsGroup")
        kind = next((kind for kind in ("configMap", "secret") if kind in volume), None)
        if kind:
            said = volume[kind]
            for name, content in self._content(kind, said.get("secretName") or said["name"]).items():
                (path / name).write_bytes(content)
                (path / name).chmod(said.get("defaultMode", 0o644))
                os.chown(path / name, 0, group or 0)
            return
        assert "emptyDir" in volume, f"not done here: {volume}"
        path.chmod(0o777)
        if group is not None:
            os.chown(path, -1, group)
            path.chmod(0o2777)

    def _content(self, kind: str, name: str) -> dict[str, bytes]:
        [found] = [o for o in self.objects if o["kind"].lower() == kind.lower() and o["metadata"]["name"] == name]
        data = {
            key: b64decode(text) if kind == "secret" else text.encode() for key, text in found.get("data", {}).items()
        }
        return data | {key: text.encode() for key, text in found.get("stringData", {}).items()}

    def environment(self, said: Manifest) -> dict[str, str]:
        assert "envFrom" not in said, "not done here"
        fields = {
            "metadata.name": self.name,
            "metadata.namespace": "default",
            "metadata.uid": "8e4b1f9a-0000-4000-8000-000000000001",
            "spec.nodeName": self.node.name,
            "spec.serviceAccountName": "default",
            "status.podIP": "127.0.0.1",
            "status.hostIP": "127.0.0.1",
        }
        for kind in ("labels", "annotations"):
            for key, value in (self.template.get("metadata", {}).get(kind) or {}).items():
                fields[f"metadata.{kind}['{key}']"] = value
        found: dict[str, str] = {}
        for variable in said.get("env", []):
            if "valueFrom" in variable:
                found[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                found[variable["name"]] = expand(variable.get("value", ""), found)
        return found


def expand(text: str, env: Mapping[str, str]) -> str:
    """$(NAME), as in Kubernetes."""
    for name, value in env.items():
        text = text.replace(f"$({name})", value)
    return text

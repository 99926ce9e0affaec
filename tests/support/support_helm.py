"""The chart, rendered by Helm's own engine, and the checks of Kubernetes, the operator and Pod Security on its
manifests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart
from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

import whyidle

ROOT = Path(whyidle.__file__).resolve().parent
CHART = ROOT / "helm" / "whyidle"
SCHEMAS = Path(__file__).parent / "schemas"
VERSIONS = ("1.29.0", "1.33.0", "1.37.0")
"""The oldest version that the chart supports, the newest with schemas, and one between."""

_FOLDER = "kubernetes-json-schema/v{}-local-strict"

Map = dict[str, Any]

HASH = "$2y$10$" + "a" * 53
TLS: Map = {"secretName": "agent-tls", "serverName": "whyidle.example"}
"""Of the values: web.tls."""
PASSWORDS: Map = {"users": {"prometheus": HASH}, "scrapeSecret": {"name": "scrape"}}
"""web.basicAuth."""


@cache
def chart() -> Chart:
    return Chart.load(CHART)


def texts(values: Mapping[str, Any] | None = None, name: str = "whyidle", namespace: str = "monitoring") -> Map:
    """The output of each template that has any, by file name, without the notes. Raises HelmError."""
    made = chart().render(values=dict(values or {}), name=name, namespace=namespace)
    return {
        path.removeprefix("whyidle/templates/"): text
        for path, text in made.items()
        if text.strip() and not path.endswith("NOTES.txt")
    }


def notes(values: Mapping[str, Any] | None = None) -> str:
    return chart().render(values=dict(values or {}), name="whyidle", namespace="monitoring")[
        "whyidle/templates/NOTES.txt"
    ]


def manifests(values: Mapping[str, Any] | None = None, **release: str) -> list[Map]:
    return [each for text in texts(values, **release).values() for each in documents(text)]


def one(objects: Iterable[Map], kind: str) -> Map:
    [found] = [each for each in objects if each["kind"] == kind]
    return found


def kinds(objects: Iterable[Map]) -> set[str]:
    return {each["kind"] for each in objects}


class _Strict(yaml.CSafeLoader):
    """PyYAML uses the last of two equal keys; Kubernetes rejects them."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        assert not twice, f"{twice} twice: {node.start_mark}"
        return super().construct_mapping(node, deep)


@cache
def documents(text: str) -> list[Map]:
    """Do not change the result: each text is parsed once."""
    return [document for document in yaml.load_all(text, _Strict) if document]


@cache
def problems(text: str) -> list[str]:
    """The problems of a template's manifests. Each text is checked once."""
    return [problem for manifest in documents(text) for problem in _problems(manifest)]


# -- schemas


def _problems(manifest: Map) -> list[str]:
    """The problems according to Kubernetes, in each version, or to the custom resource's schema, including unknown
    fields."""
    group = manifest["apiVersion"].rpartition("/")[0]
    if built_in(manifest["apiVersion"]):
        validators = {version: _built_in(manifest["kind"], manifest["apiVersion"], version) for version in VERSIONS}
    else:
        validators = {group: _custom(manifest["kind"])}
    what = f"{manifest['kind']}/{manifest['metadata']['name']}"
    return [
        f"{what} ({version}): {error.json_path}: {error.message}"
        for version, validator in validators.items()
        for error in validator.iter_errors(manifest)
    ]


def built_in(api_version: str) -> bool:
    """Whether every cluster knows the kind."""
    group = api_version.rpartition("/")[0]
    return group in ("", "apps", "batch") or group.endswith(".k8s.io")


def validator(kind: str, api_version: str, version: str) -> Draft202012Validator:
    """A validator that accepts what a cluster of that version accepts, and nothing else."""
    return _built_in(kind, api_version, version) if built_in(api_version) else _custom(kind)


@cache
def _built_in(kind: str, api_version: str, version: str) -> Draft202012Validator:
    """Like kubernetes_validate.validate(strict=True), which reads its 5 MB of schemas again for each manifest."""
    group, _, name = api_version.rpartition("/")
    file = "-".join(filter(None, (kind.lower(), group.partition(".")[0], name)))
    schema = schema_contents(f"{_FOLDER.format(version)}/{file}.json", version)
    return Draft202012Validator(schema, registry=_registry(version))


@cache
def definitions(version: str) -> Map:
    """The types that schemas of that version refer to, by their names."""
    return schema_contents(f"{_FOLDER.format(version)}/_definitions.json", version)["$defs"]


@cache
def _registry(version: str) -> Registry[Any]:
    contents = schema_contents(f"{_FOLDER.format(version)}/_definitions.json", version)
    resource: Resource[Any] = Resource.from_contents(contents)
    return resource @ Registry()


@cache
def _custom(kind: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((SCHEMAS / f"{kind.lower()}.json").read_text()))


# -- Pod Security Standards: https://kubernetes.io/docs/concepts/security/pod-security-standards/

_BASELINE_CAPABILITIES = frozenset(
    {
        "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
        "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
    }
)  # fmt: skip
_RESTRICTED_VOLUMES = frozenset(
    ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"]
)


def against_baseline(spec: Map) -> set[str]:
    """Why a pod does not meet the standard `baseline`."""
    found = {name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)}
    found |= {"hostPath" for volume in spec.get("volumes", []) if "hostPath" in volume}
    for container in _containers(spec):
        security = _security(spec, container)
        found |= {"privileged"} & {name for name, value in security.items() if value}
        if not set(security.get("capabilities", {}).get("add", [])) <= _BASELINE_CAPABILITIES:
            found.add("capabilities")
        if security.get("seccompProfile", {}).get("type") == "Unconfined":
            found.add("seccomp")
        if security.get("procMount", "Default") != "Default":
            found.add("procMount")
        found |= {"hostPort" for port in container.get("ports", []) if port.get("hostPort")}
    return found


def against_restricted(spec: Map) -> set[str]:
    """Why a pod does not meet the standard `restricted`."""
    found = against_baseline(spec)
    found |= {"volumes" for volume in spec.get("volumes", []) if not (volume.keys() - {"name"}) <= _RESTRICTED_VOLUMES}
    for container in _containers(spec):
        security = _security(spec, container)
        capabilities = security.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", []) or not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}:
            found.add("capabilities")
        if security.get("allowPrivilegeEscalation") is not False:
            found.add("allowPrivilegeEscalation")
        if security.get("runAsNonRoot") is not True:
            found.add("runAsNonRoot")
        if security.get("runAsUser", 1) == 0:
            found.add("runAsUser")
        if security.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            found.add("seccomp")
    return found


def _containers(spec: Map) -> list[Map]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def _security(spec: Map, container: Map) -> Map:
    return {**spec.get("securityContext", {}), **container.get("securityContext", {})}


# -- values.yaml, read as text


def documented() -> dict[str, bool]:
    """Each leaf of values.yaml -> whether a comment describes it or its map."""
    found: dict[str, bool] = {}
    path: list[tuple[int, str, bool]] = []
    said = False
    for line in (CHART / "values.yaml").read_text().splitlines():
        match = re.match(r"( *)([A-Za-z]\w*):(.*)", line)
        if line.strip().startswith("#"):
            said = True
        elif match:
            indent = len(match[1])
            path = [entry for entry in path if entry[0] < indent]
            said = said or (bool(path) and path[-1][2] and match[1] != "")
            found[".".join([*(name for _, name, _ in path), match[2]])] = said
            path.append((indent, match[2], said))
            said = False
        else:
            said = False
    maps = {name.rpartition(".")[0] for name in found}
    return {name: said for name, said in found.items() if name not in maps}

"""The chart's parts for training pods, rendered by Helm's own engine inside another chart."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
from helm_python import Chart
from jsonschema import Draft202012Validator
from support_yaml import read_yamls

import whyidle

ROOT = Path(whyidle.__file__).parent
CHART = ROOT / "helm" / "whyidle"
EXAMPLES = ROOT / "examples"
SCHEMAS = Path(__file__).parent / "schemas"
VERSIONS = ("1.29", "1.32", "1.35")
"""Versions from the first with native sidecars by default."""

Map = dict[str, Any]


def job(folder: Path, values: Map | None = None, whyidle: Map | None = None, release: str = "train") -> Map:
    """The Job of examples/chart. ``whyidle`` are values of this chart, ``values`` its own. It writes to ``folder``."""
    chart = folder / "chart"
    if not chart.exists():
        shutil.copytree(EXAMPLES / "chart", chart)
        # What `helm dependency build` does.
        shutil.copytree(CHART, chart / "charts" / "whyidle")
    given: Map = {**(values or {}), "whyidle": {"agent": {"enabled": False}, **(whyidle or {})}}
    with Chart.load(chart) as loaded:
        texts = loaded.render(values=given, name=release, namespace="team")
    manifests = [text for name, text in texts.items() if name.endswith(".yaml")]
    found = [one for text in manifests for one in read_yamls(text) if one]
    assert [one["kind"] for one in found] == ["Job"], "the pieces make nothing by themselves"
    return found[0]


def rendered(template: str, values: Map) -> list[Map]:
    """The manifests that one template of this chart creates."""
    with Chart.load(CHART) as loaded:
        texts = loaded.render(values=values, name="whyidle", namespace="monitoring")
    return [one for name, text in texts.items() if name.endswith(template) for one in read_yamls(text) if one]


def pod_of(owner: Map) -> Map:
    return owner["spec"]["template"]


def check(manifest: Map) -> None:
    """Strict, for each version: an unknown field is an error."""
    for version in VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)


def check_pod(template: Map) -> None:
    metadata = {"name": "checked", **template.get("metadata", {})}
    check({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})


@cache
def _validator(name: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def check_custom(manifest: Map) -> None:
    """Against the vendored schema of its kind."""
    errors = [
        f"{error.json_path}: {error.message}" for error in _validator(manifest["kind"].lower()).iter_errors(manifest)
    ]
    assert not errors, errors


def named(items: list[Map], name: str) -> Map:
    [found] = [one for one in items if one["name"] == name]
    return found


def environment(container: Map, fields: dict[str, str]) -> dict[str, str]:
    """As the kubelet makes it: fields of the pod from ``fields``, and $(NAME) of earlier variables."""
    made: dict[str, str] = {}
    for one in container.get("env", []):
        if "valueFrom" in one:
            made[one["name"]] = fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            made[one["name"]] = re.sub(r"\$\((\w+)\)", lambda found: made.get(found[1], found[0]), one["value"])
    return made

"""NOTES.txt: a new user can follow it, because the objects that it names are stored by the release."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("helm_python", reason="Helm's engine: pip install helm-python-sdk")

from support_helm import Map, notes
from support_kube_api import serving
from support_kubectl import follow, lines
from support_release import EVERYTHING, Release, on

import whyidle


@pytest.mark.parametrize(
    ("values", "name", "namespace", "commands"),
    [
        ({}, "whyidle", "whyidle", 5),
        (on("podMonitor", "rules", "dashboards"), "gpu", "observability", 7),
        ({**EVERYTHING, "podAttribution": True, "nameOverride": "idle"}, "gpu", "observability", 7),
        ({"affinity": None, "fullnameOverride": "agents", "hostPaths": {"root": "/"}}, "gpu", "observability", 5),
        ({"agent": {"enabled": False}, **on(rules={"format": "prometheus"})}, "whyidle", "whyidle", 0),
    ],
    ids=["default", "podMonitor", "everything", "other names", "no agent"],
)
def test_each_command_and_name_in_the_notes_exists(values: Map, name: str, namespace: str, commands: int) -> None:
    with serving() as api:
        release = Release(api, name, namespace)
        said = release.install(values)["notes"]
        assert said == release.config.status(name)["notes"]
        found = lines(said)
        assert len(found) == commands == said.count("kubectl ")
        for line in found:
            follow(api, line)
    stored = {(kind, called) for kind, _, called in release.objects}
    for kind, called in re.findall(r"\b(PodMonitor|ServiceMonitor|ConfigMap) ([a-z-]+[a-z])", said):
        assert (kind, called) in stored
    for called in re.findall(r"PrometheusRules (\S+) and ([a-z-]+)", said):
        assert {("PrometheusRule", each) for each in called} <= stored
    for first, rest in re.findall(r"ConfigMaps whyidle-(\w+), (.*), for", said):
        boards = {first, *re.findall(r"-([\w-]+)", rest)}
        assert {called for kind, called in stored if kind == "ConfigMap"} == {f"whyidle-{each}" for each in boards}


def test_notes_mark_a_placeholder_image() -> None:
    placeholder = f"NO NODE CAN PULL registry.example.com/whyidle:{whyidle.__version__}"
    assert placeholder in notes()
    assert placeholder in notes({"agent": {"enabled": False}, **on("kyverno")})
    assert placeholder not in notes({"image": {"repository": "registry.local/whyidle"}})
    assert placeholder not in notes({"agent": {"enabled": False}, **on("rules")})

"""Checks that a kubectl command in NOTES or a page finds the objects that it names."""

from __future__ import annotations

import argparse
import re
import shlex

from support_helm import Map
from support_kube_api import Api
from support_kube_checks import Kind, selected
from support_kube_store import DAEMON_SET, NAMESPACE

_LINE = re.compile(r"(?m)^ {4}(kubectl (?:.*\\\n)*.*)$|: (kubectl .*)$")
_NOT_STORED = {"nodes", "prometheus"}
"""Kinds that a command may list although no chart creates them."""


def lines(notes: str) -> list[str]:
    """The commands in a text: on a separate line, or after a colon."""
    return [(match[1] or match[2]).replace("\\\n", " ") for match in _LINE.finditer(notes)]


def follow(api: Api, line: str) -> None:
    """Raises AssertionError, Refused or SystemExit for a command that would find nothing, or is not known here."""
    command, _, _ = line.partition("|")
    words = shlex.split(command)
    inside = words[words.index("--") + 1 :] if "--" in words else []
    found = _parser().parse_args(words[1 : len(words) - len(inside) - bool(inside)])
    if found.namespace:
        api.store.get(NAMESPACE, "", found.namespace)
    match found.words:
        case ["rollout", "status", what]:
            assert _object(api, found.namespace, what)["kind"] == "DaemonSet"
        case ["describe" | "logs", what]:
            _object(api, found.namespace, what)
        case ["get", "pods"]:
            assert _selecting(api, found.namespace, found.selector), f"no pods for {found.selector}"
        case ["get", kind, name]:
            _object(api, found.namespace, f"{kind}/{name}")
        case ["get", kind]:
            assert kind in _NOT_STORED, line
        case ["label", "namespace", name, label]:
            api.store.get(NAMESPACE, "", name)
            assert re.fullmatch(r"[a-z.-]+/[a-z]+=[a-z]+", label), label
        case ["exec", what]:
            [container] = [
                each
                for each in _object(api, found.namespace, what)["spec"]["template"]["spec"]["containers"]
                if each["name"] == found.container
            ]
            assert inside[:2] == ["whyidle", "doctor"]
            assert {*inside[2:]} <= {*container["args"]}, "it looks elsewhere than the agent"
        case _:
            raise AssertionError(f"not known here: {line}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("kubectl", allow_abbrev=False)
    parser.add_argument("-n", "--namespace")
    parser.add_argument("-l", "--selector", default="")
    parser.add_argument("-c", "--container")
    parser.add_argument("-o", "--output", choices=["wide", "yaml"])
    parser.add_argument("-A", "--all-namespaces", action="store_true")
    parser.add_argument("--show-labels", action="store_true")
    parser.add_argument("words", nargs="+")
    return parser


def _object(api: Api, namespace: str, what: str) -> Map:
    of, _, name = what.partition("/")
    return api.store.get(_kind(api, of), namespace, name)


def _kind(api: Api, name: str) -> Kind:
    [kind] = [kind for kind in api.store.kinds if name in (kind.name.lower(), kind.plural)]
    return kind


def _selecting(api: Api, namespace: str, selector: str) -> list[Map]:
    """DaemonSets whose pods match a selector."""
    chosen = selected(selector)
    found = api.store.list(DAEMON_SET, namespace)
    return [each for each in found if chosen(each["spec"]["template"]["metadata"]["labels"])]

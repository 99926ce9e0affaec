"""The Compose project as a pod of support_pod: its services' users, mounts and flags, on a node of files.

The parts of Compose that the file needs are implemented here. Anything else in the file is an error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from support_manifest import Node
from support_yaml import read_yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "compose"
CHECKOUT = Path("/srv/whyidle")
"""The path of the repository on the node."""
NOBODY = 65534
"""The users of Prometheus's and Alertmanager's images."""

Json = dict[str, Any]

KNOWN = {
    *("image", "build", "pull_policy", "command", "entrypoint", "environment", "user", "volumes", "depends_on"),
    *("network_mode", "pid", "restart", "cap_drop", "cap_add", "security_opt", "read_only", "logging", "healthcheck"),
    "mem_limit",
}


def project(name: str = "compose.yaml") -> Json:
    return read_yaml((FOLDER / name).read_text())


def mounts(service: Json) -> Iterator[tuple[str, str, bool]]:
    """Source, path in the container, whether it is read-only. A source without a slash is a named volume."""
    for volume in service.get("volumes", ()):
        if isinstance(volume, dict):
            yield volume["source"], volume["target"], volume.get("read_only", False)
        else:
            source, target, *mode = volume.split(":")
            assert mode in ([], ["ro"]), volume
            yield source, target, bool(mode)


def on_node(source: str) -> str:
    """A source of the file -> its path on the node."""
    return os.path.normpath(CHECKOUT / FOLDER.relative_to(ROOT) / source)


def install(node: Node) -> Path:
    """Gives the node the parts of a checkout that the project uses, and returns the path."""
    checkout = node.files / CHECKOUT.relative_to("/")
    for part in ("deploy", "alerts/generated", "dashboards/generated"):
        shutil.copytree(ROOT / part, checkout / part)
    return checkout


def container(name: str, service: Json, program: Iterable[str]) -> Json:
    """The service as a container of a pod. ``program`` is what its image starts."""
    assert service.keys() <= KNOWN, service.keys() - KNOWN
    assert service["security_opt"] == ["no-new-privileges:true"]
    uid, _, gid = service.get("user", f"{NOBODY}:{NOBODY}").partition(":")
    return {
        "name": name,
        "image": service["image"],
        "command": [*service.get("entrypoint", program), *service.get("command", ())],
        "env": [{"name": key, "value": value} for key, value in service.get("environment", {}).items()],
        "securityContext": {
            "runAsUser": int(uid),
            "runAsGroup": int(gid),
            "capabilities": {"drop": service["cap_drop"], "add": service.get("cap_add", [])},
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": service.get("read_only", False),
        },
        "volumeMounts": [
            {"name": source, "mountPath": target, "readOnly": read_only}
            for source, target, read_only in mounts(service)
        ],
    }


def volumes(services: Iterable[Json]) -> list[Json]:
    sources = sorted({source for service in services for source, _, _ in mounts(service)})
    return [
        {"name": source, "hostPath": {"path": on_node(source)}} if "/" in source else {"name": source, "emptyDir": {}}
        for source in sources
    ]


def pod(services: dict[str, Json], programs: dict[str, list[str]], first: Iterable[str] = ()) -> Json:
    """A pod of these services. Those in ``first`` end before the others start."""
    said = {name: container(name, service, programs.get(name, ())) for name, service in services.items()}
    return {
        "spec": {
            "hostPID": True,
            "initContainers": [said[name] for name in first],
            "containers": [said[name] for name in services if name not in first],
            "volumes": volumes(services.values()),
        }
    }

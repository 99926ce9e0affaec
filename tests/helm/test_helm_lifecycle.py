"""The chart's life cycle with Helm's own engine and a simulated Kubernetes API: the objects that are stored after each
step."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("helm_python", reason="Helm's engine: pip install helm-python-sdk")

import helm_python
from helm_python import HelmError
from support_helm import CHART, HASH, ROOT, TLS, Map, manifests, one
from support_kube_api import Api, serving
from support_kube_checks import DATA_LIMIT, data_size
from support_kube_merge import json_merged
from support_kube_store import CORE, DAEMON_SET, NAMESPACE, SECRET, Store
from support_release import EVERYTHING, OTHERS, PATCHES, Release, on, passwords

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
WALK: list[tuple[str, Map, bool]] = [
    ("rules", on("rules"), False),
    ("rule files", on(rules={"format": "prometheus"}), False),
    ("dashboards", on("dashboards"), False),
    ("dashboards in a folder", on(dashboards={"folder": "GPUs", "labels": {"a": "b"}}), False),
    ("podMonitor", on(podMonitor={"labels": {"release": "kps"}}), False),
    ("serviceMonitor in its place", on("serviceMonitor"), False),
    ("networkPolicy", on("serviceMonitor", "networkPolicy"), False),
    ("annotations", on("scrapeAnnotations"), True),
    ("TLS", {"web": {"tls": TLS}}, True),
    ("a password too", passwords(), True),
    ("another password", passwords(HASH.replace("a", "b")), False),
    ("sidecars and Kyverno", {**passwords(), **OTHERS}, False),
    ("no agent", {**on("rules"), **OTHERS, "agent": {"enabled": False}}, True),
    ("which pod holds which GPU", {"podAttribution": True}, True),
    ("an annotated account", {"podAttribution": True, "serviceAccount": {"annotations": {"a": "b"}}}, False),
]
"""Upgrades in order: the name, the values, and whether agents stop or restart."""


@pytest.fixture
def api() -> Iterator[Api]:
    with serving() as found:
        yield found


def agents(api: Api) -> Map | None:
    """The DaemonSet of the agents, if there is one."""
    return next(iter(api.store.list(DAEMON_SET)), None)


def pods(found: Map | None) -> Any:
    """What pods are created from, and by which DaemonSet. If this changes, they are created again."""
    return found and (found["metadata"]["uid"], found["spec"]["template"])


def refused(action: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(HelmError) as caught:
        action(*args, **options)
    return str(caught.value)


# -- upgrade, rollback


@pytest.mark.parametrize(
    "options", [{}, pytest.param(PATCHES, marks=pytest.mark.long)], ids=["server-side apply", "patches"]
)
def test_each_upgrade_stores_what_is_rendered_and_restarts_agents_only_if_needed(api: Api, options: Map) -> None:
    release = Release(api)
    release.install(**options)
    first = release.said
    assert first == release.expected()
    for what, values, restarts in WALK:
        before = agents(api)
        release.upgrade(values)
        assert release.said == release.expected(values), what
        assert (pods(before) != pods(agents(api))) == restarts, what
    release.config.rollback(release.name, version=1)
    assert release.said == first
    assert release.revisions[-1] == (len(WALK) + 2, "deployed")


def test_only_a_new_version_of_the_agent_restarts_agents(api: Api, tmp_path: Path) -> None:
    release = Release(api)
    release.install(values := on("podMonitor"))
    for version, agent in (("0.1.1", "0.1.0"), ("0.2.0", "0.2.0")):
        before = agents(api)
        packaged = helm_python.package(CHART, destination=tmp_path, version=version, app_version=agent)
        with helm_python.Chart.load(packaged) as newer:
            release.upgrade(of=newer, reset_then_reuse_values=True)
            assert release.said == release.expected(values, newer)
        assert (pods(before) != pods(agents(api))) == (agent != "0.1.0")
        for found in release.objects.values():
            assert found["metadata"]["labels"]["helm.sh/chart"] == f"whyidle-{version}"


def test_an_upgrade_with_a_wrong_value_is_refused_before_anything_changes(api: Api) -> None:
    release = Release(api)
    release.install(on("podMonitor"))
    before = api.store.version
    said = refused(release.upgrade, {"agent": {"ledgerRetention": "15x"}})
    assert 'agent.ledgerRetention is "15x": write a number and a unit, such as 90s, 15m or 24h' in said
    assert "additional properties 'prot' not allowed" in refused(release.upgrade, {"agent": {"prot": 9838}})
    assert api.store.version == before
    assert release.revisions == [(1, "deployed")]


def test_an_immutable_change_is_refused_and_a_rollback_repairs_the_release(api: Api) -> None:
    release = Release(api)
    release.install()
    first = release.said
    assert "spec.selector: Invalid value: field is immutable" in refused(release.upgrade, {"nameOverride": "idle"})
    assert "`nameOverride` is part of the DaemonSet's selector, which can never change" in PAGE
    release.config.rollback(release.name, version=1)
    assert release.said == first


def test_a_conflicting_manual_edit_stops_an_upgrade(api: Api) -> None:
    release = Release(api)
    release.install()
    edit = {"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "50%"}}}}
    api.store.update(DAEMON_SET, "monitoring", "whyidle", lambda live, _: json_merged(live, edit), "kubectl-edit")
    said = refused(release.upgrade)
    assert 'conflict with "kubectl-edit": .spec.updateStrategy.rollingUpdate.maxUnavailable' in said
    assert '`conflict with "kubectl-edit"`' in PAGE
    release.upgrade(force_conflicts=True, reset_values=True)
    assert release.said == release.expected()


READY: Map = {
    "desiredNumberScheduled": 3,
    "currentNumberScheduled": 3,
    "updatedNumberScheduled": 3,
    "numberMisscheduled": 0,
    "numberAvailable": 3,
    "numberReady": 3,
}

RUNS_ON: Map = {
    **EVERYTHING,
    "web": {},
    "updateStrategy": {"type": "OnDelete"},
    "sidecar": {"port": 9999, "podMonitor": {"enabled": True}},
}
RESTARTS: list[Map] = [
    {"image": {"tag": "next"}},
    {"agent": {"logLevel": "debug"}},
    {"hostPaths": {"podLogs": "/var/log/pods"}},
    {"ledgers": {"hostPath": "/run/whyidle"}},
    {"podAttribution": True},
    {"hostPID": True},
    {"resources": None},
    {"affinity": None},
    {"priorityClassName": "system-node-critical"},
    {"extraLabels": {"team": "infra"}},
    {"podLabels": {"team": "infra"}},
    {"web": {"existingSecret": "web"}},
    {"scrapeAnnotations": {"enabled": True}},
]


def test_the_page_is_right_about_restarts() -> None:
    def template(values: Map) -> Map:
        return one(manifests(values), "DaemonSet")["spec"]["template"]

    plain = template({})
    assert template(RUNS_ON) == plain
    for values in RESTARTS:
        assert template(values) != plain, values


def test_waiting_ends_when_the_agents_are_ready(api: Api) -> None:
    """`--wait` uses the DaemonSet's status, which its controller writes."""
    release = Release(api)
    with controlling(api):
        release.install(wait="watcher", timeout_seconds=120)
        release.upgrade({"agent": {"logLevel": "debug"}}, wait="watcher", timeout_seconds=120, reset_values=True)
        release.config.rollback(release.name, version=1, wait="watcher", timeout=120)
    assert release.revisions[-1] == (3, "deployed")


@contextmanager
def controlling(api: Api) -> Iterator[None]:
    """A controller of DaemonSets on three nodes whose pods are ready at once."""
    ended = threading.Event()

    def follow_changes() -> None:
        while not ended.wait(0.05):
            with api.lock:
                for found in api.store.list(DAEMON_SET):
                    meta = found["metadata"]
                    if found.get("status", {}).get("observedGeneration") != meta["generation"]:
                        status = {**READY, "observedGeneration": meta["generation"]}
                        api.store.report(DAEMON_SET, meta["namespace"], meta["name"], status)

    thread = threading.Thread(target=follow_changes, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# -- uninstall, install


def test_uninstall_leaves_only_the_namespace_and_a_new_install_is_the_same(api: Api) -> None:
    release = Release(api)
    release.install(EVERYTHING)
    first = release.said
    release.config.uninstall(release.name)
    assert [kind for kind, *_ in api.store.objects] == ["Namespace", "Namespace"]
    release.install(EVERYTHING)
    assert release.said == first
    assert release.revisions == [(1, "deployed")]


def test_the_page_names_what_stays_on_nodes(api: Api) -> None:
    Release(api).install({"podAttribution": True, "hostPaths": {"podLogs": "/var/log/pods"}})
    pod = (agents(api) or {})["spec"]["template"]["spec"]
    mounts = [mount for each in pod["containers"] + pod["initContainers"] for mount in each["volumeMounts"]]
    writable = {mount["name"] for mount in mounts if not mount.get("readOnly")}
    written = {volume["hostPath"]["path"] for volume in pod["volumes"] if volume["name"] in writable}
    uninstall = PAGE.partition("## Uninstall")[2].partition("\n## ")[0]
    assert written == {"/dev/shm/whyidle"}
    assert all(f"`{path}`" in uninstall for path in written)


def test_two_releases_in_one_cluster_do_not_collide(api: Api) -> None:
    values = {**EVERYTHING, "kyverno": {"enabled": False}}
    first, second = Release(api), Release(api, namespace="other")
    first.install({**values, "kyverno": {"enabled": True}})
    before = first.objects
    second.install(values)
    assert second.said == second.expected(values)
    # There is one policy for the cluster: with a second one, pods would get everything twice.
    said = refused(second.upgrade, {**values, "kyverno": {"enabled": True}})
    assert 'ClusterPolicy "whyidle-inject"' in said
    assert 'must equal "other": current value is "monitoring"' in said
    assert second.said == second.expected(values)
    second.config.uninstall(second.name)
    assert first.objects == before


def test_an_install_that_is_refused_leaves_nothing_behind(api: Api) -> None:
    release = Release(api)
    assert 'namespaces "monitoring" not found' in refused(release.install, create_namespace=False)
    named = {"metadata": {"name": "monitoring"}, "apiVersion": "v1", "kind": "Namespace"}
    api.store.create(NAMESPACE, "", named, "kubectl-create")
    [account] = [kind for kind in CORE if kind.name == "ServiceAccount"]
    theirs = {**named, "kind": "ServiceAccount", "metadata": {"name": "whyidle"}}
    api.store.create(account, "monitoring", theirs, "kubectl-create")
    before = api.store.version
    said = refused(release.install)
    assert 'ServiceAccount "whyidle" in namespace "monitoring" exists and cannot be imported' in said
    assert api.store.version == before


@pytest.mark.parametrize(("version", "taken"), [("1.28.15", False), ("1.29.0-eks-036c24b", True)])
def test_a_kubernetes_without_native_sidecars_is_refused(version: str, taken: bool) -> None:
    with serving(version=version) as api:
        if taken:
            Release(api).install()
        else:
            assert "chart requires kubeVersion: >=1.29.0-0 which is incompatible" in refused(Release(api).install)
            assert api.store.list(NAMESPACE, name="monitoring") == []


@pytest.mark.parametrize("feature", ["podMonitor", "serviceMonitor", "rules", "kyverno"])
def test_is_refused_without_the_custom_resources_as_the_page_says(feature: str) -> None:
    with serving(Store(kinds=CORE)) as api:
        release = Release(api)
        before = api.store.version
        said = refused(release.install, on(feature))
        [kind] = set(re.findall(r'no matches for kind "(\w+)" in version', said))
        assert "ensure CRDs are installed first" in said
        assert api.store.version == before
        release.install(on("dashboards", rules={"format": "prometheus"}))
    page = PAGE.partition("## Before")[2].partition("\n## ")[0]
    assert 'no matches for kind "PodMonitor"' in page
    assert kind in page


def test_accepts_the_longest_name_that_helm_allows(api: Api) -> None:
    release = Release(api, name="r" * 53)
    release.install(EVERYTHING)
    assert release.said == release.expected(EVERYTHING)


# -- the size of a release


def test_a_release_of_everything_takes_less_than_half_of_what_a_secret_holds(api: Api) -> None:
    """As the page says. Helm keeps the chart, its files and all manifests in the Secret, compressed."""
    release = Release(api)
    release.install(EVERYTHING)
    [secret] = api.store.list(SECRET, "monitoring", "owner=helm")
    assert 100_000 < data_size(secret) < DATA_LIMIT // 2
    assert "less than half of the 1 MiB" in PAGE

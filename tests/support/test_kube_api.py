"""The simulated Kubernetes API: it rejects what its documentation says, and merges as Kubernetes documents it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

pytest.importorskip("helm_python", reason="Helm's engine: pip install helm-python-sdk")

from support_helm import Map, manifests, one
from support_kube_api import Api, serving
from support_kube_checks import ANNOTATIONS_LIMIT, DATA_LIMIT, OBJECT_LIMIT, Kind, Refused
from support_kube_merge import json_merged, strategic
from support_kube_store import DAEMON_SET, NAMESPACE, SECRET, Store


@pytest.fixture
def store() -> Store:
    """With the namespace `monitoring`, and the chart's objects unchanged."""
    made = Store()
    made.create(NAMESPACE, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring"}}, "test")
    values = {"serviceMonitor": {"enabled": True}, "web": {"tls": {"secretName": "t", "serverName": "a.example"}}}
    for manifest in manifests(values):
        made.apply(kind_of(made, manifest), "monitoring", manifest, "helm", force=False)
    return made


def kind_of(store: Store, manifest: Map) -> Kind:
    return next(kind for kind in store.kinds if kind.name == manifest["kind"])


def changed(manifest: Map, path: str, value: Any) -> Map:
    for name in reversed(path.split(".")):
        value = {name: value}
    return json_merged(manifest, value)


def config_map(**fields: Any) -> Map:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}, **fields}


# -- rejected

WRONG: dict[str, tuple[str, str, Any, str]] = {
    "an unknown field": ("DaemonSet", "spec.selectors", {}, "'selectors' was unexpected"),
    "a wrong type": ("Service", "spec.publishNotReadyAddresses", "yes", "'yes' is not of type"),
    "an unknown field of a custom resource": ("ServiceMonitor", "spec.endpoint", [], "'endpoint' was unexpected"),
    "the selector": (
        "DaemonSet",
        "spec.selector.matchLabels.a",
        "b",
        "spec.selector: Invalid value: field is immutable",
    ),
    "labels that it does not select": (
        "DaemonSet",
        "spec.template.metadata.labels",
        {"app.kubernetes.io/name": "other"},
        "`selector` does not match template `labels`",
    ),
    "a volume that is mounted and not there": ("DaemonSet", "spec.template.spec.volumes", [], 'Not found: "proc"'),
    "a Service's IP": ("Service", "spec.clusterIP", "10.0.0.1", "spec.clusterIP: Invalid value: field is immutable"),
    "a Secret's type": ("Secret", "type", "kubernetes.io/tls", "type: Invalid value: field is immutable"),
    "a label that is none": ("Service", "metadata.labels.a", "b c", 'Invalid value: "b c"'),
    "a long label": ("Service", "metadata.labels.a", "b" * 64, "metadata.labels: Invalid value"),
    "annotations": ("Service", "metadata.annotations.a", "b" * ANNOTATIONS_LIMIT, "metadata.annotations: Too long"),
    "an old version": ("Service", "metadata.resourceVersion", "1", "the object has been modified"),
}
"""What changes, the new value, and the message."""


@pytest.mark.parametrize(("kind", "path", "value", "said"), WRONG.values(), ids=WRONG)
def test_a_change_that_kubernetes_refuses_changes_nothing(
    store: Store, kind: str, path: str, value: Any, said: str
) -> None:
    [of] = [each for each in store.kinds if each.name == kind]
    [live] = store.list(of, "monitoring")
    before = store.version
    with pytest.raises(Refused) as caught:
        store.update(of, "monitoring", live["metadata"]["name"], lambda live, _: changed(live, path, value), "test")
    assert said in str(caught.value)
    assert store.version == before
    assert store.list(of, "monitoring") == [live]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (config_map(metadata={"name": "New"}), 'metadata.name: Invalid value: "New"'),
        (config_map(data={"a b": "c"}), 'data[a b]: Invalid value: "a b"'),
        (config_map(data={"a": "b" * (DATA_LIMIT + 1)}), "data: Too long"),
        (config_map(data={"a": "b" * OBJECT_LIMIT}), "request is too large"),
        ({**config_map(), "kind": "Secret", "data": {"a": "YWJj" * DATA_LIMIT}}, "request is too large"),
        ({**config_map(), "kind": "Secret", "stringData": {"a": "b" * (DATA_LIMIT + 1)}}, "data: Too long"),
    ],
)
def test_refuses_objects_that_are_too_large_or_have_invalid_names(store: Store, given: Map, said: str) -> None:
    with pytest.raises(Refused) as caught:
        store.create(kind_of(store, given), "monitoring", given, "test")
    assert said in str(caught.value)


def test_names_are_unique_within_an_existing_namespace(store: Store) -> None:
    kind = kind_of(store, config_map())
    store.create(kind, "monitoring", config_map(), "test")
    with pytest.raises(Refused, match='configmaps "new" already exists'):
        store.create(kind, "monitoring", config_map(), "test")
    with pytest.raises(Refused, match='namespaces "other" not found'):
        store.create(kind, "other", config_map(), "test")


def test_refuses_changes_of_immutable_fields(store: Store) -> None:
    kind = kind_of(store, config_map())
    store.create(kind, "monitoring", config_map(data={"a": "b"}, immutable=True), "test")
    for path, value in (("data.a", "c"), ("immutable", False)):
        with pytest.raises(Refused, match="field is immutable"):
            store.update(kind, "monitoring", "new", lambda live, _, to=(path, value): changed(live, *to), "test")
    store.update(kind, "monitoring", "new", lambda live, _: changed(live, "metadata.labels", {"a": "b"}), "test")


# -- server-side apply: https://kubernetes.io/docs/reference/using-api/server-side-apply/


def applied(store: Store, *edits: Callable[[Map], None], manager: str = "helm", force: bool = False) -> Map:
    """The chart's DaemonSet, after the edits."""
    manifest = json.loads(json.dumps(one(manifests(), "DaemonSet")))
    for edit in edits:
        edit(manifest)
    return store.apply(DAEMON_SET, "monitoring", manifest, manager, force)


def environment(found: Map) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in found["spec"]["template"]["spec"]["containers"][0]["env"]}


def add_variable(manifest: Map) -> None:
    manifest["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "A", "value": "b"})


def test_an_apply_removes_fields_that_its_manager_no_longer_sets(store: Store) -> None:
    before = environment(applied(store))
    assert environment(applied(store, add_variable)) == {**before, "A": "b"}
    assert environment(applied(store)) == before


def test_keeps_fields_of_another_manager(store: Store) -> None:
    before = environment(applied(store))
    live = store.get(DAEMON_SET, "monitoring", "whyidle")
    edited = json.loads(json.dumps(live))
    add_variable(edited)
    store.update(DAEMON_SET, "monitoring", "whyidle", lambda *_: edited, "kubectl-edit")
    assert environment(applied(store)) == {**before, "A": "b"}


def test_a_field_of_another_manager_is_a_conflict_unless_forced(store: Store) -> None:
    live = store.get(DAEMON_SET, "monitoring", "whyidle")
    edited = changed(live, "spec.updateStrategy.rollingUpdate.maxUnavailable", "50%")
    store.update(DAEMON_SET, "monitoring", "whyidle", lambda *_: edited, "kubectl-edit")
    before = store.version
    with pytest.raises(Refused, match=r'conflict with "kubectl-edit": \.spec\.updateStrategy\.rollingUpdate'):
        applied(store)
    assert store.version == before
    assert applied(store, force=True)["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "10%"
    applied(store)


def test_refuses_duplicate_items(store: Store) -> None:
    with pytest.raises(Refused, match=r'containers\[name="agent"\].env: duplicate entries for key \[name="A"\]'):
        applied(store, add_variable, add_variable)


def test_an_unchanged_apply_makes_no_new_version(store: Store) -> None:
    applied(store)
    before = store.version
    applied(store)
    assert store.version == before


def test_a_change_of_labels_is_not_a_new_generation(store: Store) -> None:
    first = applied(store)["metadata"]["generation"]
    labelled = applied(store, lambda manifest: manifest["metadata"]["labels"].update(a="b"))
    assert labelled["metadata"]["generation"] == first
    assert applied(store, add_variable)["metadata"]["generation"] == first + 1


# -- patches


def test_a_strategic_merge_patch_merges_lists_by_their_keys(store: Store) -> None:
    """https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/"""
    patch = {
        "spec": {
            "template": {
                "spec": {
                    "$setElementOrder/volumes": [{"name": "new"}, {"name": "proc"}],
                    "containers": [{"name": "agent", "args": ["agent"]}],
                    "volumes": [{"name": "new", "emptyDir": {}}, {"name": "tls", "$patch": "delete"}],
                    "terminationGracePeriodSeconds": None,
                }
            }
        }
    }
    before = store.get(DAEMON_SET, "monitoring", "whyidle")["spec"]["template"]["spec"]

    def change(live: Map, shape: Any) -> Map:
        made = strategic(live, patch, shape)
        for container in made["spec"]["template"]["spec"]["containers"]:
            container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] != "tls"]
        return made

    pod = store.update(DAEMON_SET, "monitoring", "whyidle", change, "helm")["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["volumes"]][:2] == ["new", "proc"]
    assert {each["name"] for each in pod["volumes"]} == {each["name"] for each in before["volumes"]} - {"tls"} | {"new"}
    assert pod["containers"][0]["args"] == ["agent"]
    assert pod["containers"][0]["image"] == before["containers"][0]["image"]
    assert "terminationGracePeriodSeconds" not in pod


# -- HTTP


@pytest.fixture
def api(store: Store) -> Iterator[Api]:
    with serving(store) as found:
        yield found


def ask(api: Api, path: str) -> Map:
    with urlopen(api.url + path) as answer:
        return json.loads(answer.read())


def test_resources_in_discovery_exist(api: Api) -> None:
    groups = [version["groupVersion"] for group in ask(api, "/apis")["groups"] for version in group["versions"]]
    listed = {
        (path, row["name"])
        for path in ["/api/v1", *(f"/apis/{group}" for group in groups)]
        for row in ask(api, path)["resources"]
    }
    assert len(listed) == len(api.store.kinds)
    for path, plural in listed:
        assert ask(api, f"{path}/{plural}")["kind"].endswith("List")


def test_a_refusal_is_a_status(api: Api) -> None:
    with pytest.raises(HTTPError) as caught:
        ask(api, "/api/v1/namespaces/monitoring/secrets/none")
    assert caught.value.code == 404
    assert json.loads(caught.value.read())["message"] == 'secrets "none" not found'


def test_a_watch_reports_changes_after_its_version(api: Api) -> None:
    version = ask(api, "/api/v1/namespaces/monitoring/secrets")["metadata"]["resourceVersion"]
    with urlopen(f"{api.url}/api/v1/namespaces/monitoring/secrets?watch=true&resourceVersion={version}") as events:
        api.store.delete(SECRET, "monitoring", "whyidle-web")
        event = json.loads(events.readline())
    assert (event["type"], event["object"]["metadata"]["name"]) == ("DELETED", "whyidle-web")

"""The parts of the sidecar: valid in every chart, without privileges, and unable to stop the training."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("helm_python", reason="Helm's engine: pip install helm-python-sdk")

from helm_python import HelmError
from support_kyverno import mutate
from support_sidecar import Map, check, check_custom, check_pod, environment, job, named, pod_of, rendered

from whyidle.agent.collector import COLLECTORS
from whyidle.agent.metrics import METRICS
from whyidle.cli import agent as agent_command
from whyidle.cli.main import _parse

JOB_LABEL = "batch.kubernetes.io/job-name"
HOOKS = "/opt/whyidle-hooks"
FIELDS = {"spec.nodeName": "gpu-7", "metadata.namespace": "team", f"metadata.labels['{JOB_LABEL}']": "train"}


@pytest.fixture
def pod(tmp_path: Path) -> Any:
    """The pod of a chart with this chart as a dependency: pod(value of `sidecar`…)."""
    return lambda **sidecar: pod_of(job(tmp_path, whyidle={"sidecar": sidecar}))


def sidecar(template: Map) -> Map:
    return named(template["spec"]["initContainers"], "whyidle")


def collectors_of(arguments: list[str]) -> set[str]:
    """As the agent's own parser reads the arguments."""
    args = _parse(arguments, None)
    return {entry.name for entry in COLLECTORS if getattr(args, f"collector_{entry.name}")}


# -- as parts of a pod


@pytest.mark.parametrize(
    ("enabled", "hooks", "label"), [*itertools.product([True, False], [True, False], ["x/job", ""])]
)
def test_every_combination_is_a_valid_pod(pod: Any, enabled: bool, hooks: bool, label: str) -> None:
    template = pod(enabled=enabled, hooks={"enabled": hooks}, run={"label": label}, lingerSeconds=5)
    check_pod(template)
    spec = template["spec"]
    assert [one["name"] for one in spec.get("initContainers") or []] == ["whyidle-hooks"] * hooks + [
        "whyidle"
    ] * enabled
    trainer = spec["containers"][0]
    variables = environment(trainer, FIELDS | {"metadata.labels['x/job']": "train"})
    assert variables["WHYIDLE"] == "1"
    assert variables["WHYIDLE_NODE"] == "gpu-7"
    assert variables.get("WHYIDLE_RUN") == ("train" if label else None)
    assert variables["WHYIDLE_NAMESPACE"] == "team"  # the owner of the run
    assert ("PYTHONPATH" in variables) == hooks
    mounted = {
        mount["name"]
        for container in [trainer, *(spec.get("initContainers") or [])]
        for mount in container["volumeMounts"]
    }
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    assert ("hostPath" in named(spec["volumes"], "whyidle-ledgers")) == (not enabled)


def test_all_containers_use_the_same_ledger_directory(pod: Any) -> None:
    template = pod(ledgers={"path": "/ledgers"})
    trainer = template["spec"]["containers"][0]
    assert environment(trainer, FIELDS)["WHYIDLE_DIR"] == "/ledgers"
    assert "--ledger.dir=/ledgers" in sidecar(template)["args"]
    for container in (trainer, sidecar(template)):
        assert named(container["volumeMounts"], "whyidle-ledgers")["mountPath"] == "/ledgers"


@pytest.mark.parametrize("wanted", [None, [], ["ranks", "process", "cgroup"], [one.name for one in COLLECTORS]])
def test_agent_accepts_its_arguments_and_runs_the_requested_collectors(pod: Any, wanted: list[str] | None) -> None:
    args = sidecar(pod(**({} if wanted is None else {"collectors": wanted})))["args"]
    assert collectors_of(args) == set(["ranks", "tcp"] if wanted is None else wanted)


def test_probes_and_scrapes_use_the_port_of_the_agent(pod: Any) -> None:
    container = sidecar(pod(port=9999, extraArgs=["--log.format=json"]))
    args = _parse(container["args"], None)
    assert args.address == ("", 9999)
    assert args.format == "json"
    assert [(one["name"], one["containerPort"]) for one in container["ports"]] == [("whyidle", 9999)]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "whyidle"}
    assert agent_command.DEFAULT_ADDRESS.endswith(f":{sidecar(pod())['ports'][0]['containerPort']}")


def test_cannot_prevent_the_training_from_starting_or_ending(pod: Any) -> None:
    """A native sidecar with a startup probe delays the containers after it. Without one, it only has to start."""
    template = pod()
    container = sidecar(template)
    assert container["restartPolicy"] == "Always"
    assert not {"startupProbe", "readinessProbe", "lifecycle"} & set(container)
    assert "--never-fail" in named(template["spec"]["initContainers"], "whyidle-hooks")["args"]


def test_meets_the_restricted_pod_security_standard(pod: Any) -> None:
    """Its containers and volumes. The training container is not checked."""
    template = pod()
    for container in template["spec"]["initContainers"]:
        context = container["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert context["readOnlyRootFilesystem"] is True
        assert not [port for port in container.get("ports", []) if "hostPort" in port]
    assert all(set(volume) - {"name"} <= {"emptyDir", "configMap"} for volume in template["spec"]["volumes"])


def test_a_host_path_without_the_sidecar_violates_even_baseline(pod: Any) -> None:
    """As docs/sidecar.md says: only in this case."""
    kinds = {kind for volume in pod(enabled=False)["spec"]["volumes"] for kind in volume if kind != "name"}
    assert "hostPath" in kinds


def test_the_training_cannot_change_the_hooks(pod: Any) -> None:
    assert named(pod()["spec"]["containers"][0]["volumeMounts"], "whyidle-hooks")["readOnly"] is True


def test_rejects_a_volume_that_hides_the_agent_in_its_image(pod: Any) -> None:
    with pytest.raises(HelmError, match=r"sidecar\.hooks\.path"):
        pod(hooks={"path": "/opt/whyidle"})


def test_a_pinned_image_is_pinned_everywhere(tmp_path: Path) -> None:
    digest = "sha256:" + "1" * 64
    template = pod_of(job(tmp_path, whyidle={"image": {"repository": "registry.example/whyidle", "digest": digest}}))
    images = {one["image"] for one in template["spec"]["initContainers"]}
    assert images == {f"registry.example/whyidle@{digest}"}


# -- found by Prometheus


def test_monitor_selects_the_labels_of_the_pieces(pod: Any) -> None:
    [monitor] = rendered(
        "sidecar-podmonitor.yaml", {"sidecar": {"podMonitor": {"enabled": True, "labels": {"a": "b"}}}}
    )
    template = pod()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == sidecar(template)["ports"][0]["name"]
    assert monitor["spec"]["namespaceSelector"] == {"any": True}
    assert monitor["metadata"]["labels"]["a"] == "b"
    assert not rendered("sidecar-podmonitor.yaml", {})
    assert "labels" not in pod(enabled=False)["metadata"] or not pod(enabled=False)["metadata"]["labels"]


def test_the_monitor_takes_the_agents_metrics_and_no_others() -> None:
    """Anybody who can create a pod can set the label."""
    [monitor] = rendered("sidecar-podmonitor.yaml", {"sidecar": {"podMonitor": {"enabled": True}}})
    assert monitor["spec"]["sampleLimit"] == 10_000
    [rule] = monitor["spec"]["podMetricsEndpoints"][0]["metricRelabelings"]
    assert (rule["sourceLabels"], rule["action"]) == (["__name__"], "keep")
    kept = re.compile(rule["regex"])
    assert all(kept.fullmatch(metric.name) for metric in METRICS)
    assert not [name for name in ("up", "ALERTS", "kube_pod_info", "run:ranks:count") if kept.fullmatch(name)]


# -- added by Kyverno

KYVERNO = {"kyverno": {"enabled": True}}


def plain(**container: Any) -> Map:
    """A pod as a Job creates it, with a second container next to the training."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "train-x",
            "labels": {JOB_LABEL: "train"},
            "annotations": {"whyidle.dev/inject": "trainer"},
        },
        "spec": {
            "restartPolicy": "Never",
            "initContainers": [{"name": "fetch", "image": "fetch:1"}],
            "containers": [
                {"name": "helper", "image": "helper:1"},
                {"name": "trainer", "image": "torch:1", **container},
            ],
        },
    }


def injected(given: Map, **values: Any) -> Map:
    [policy] = rendered("kyverno-policy.yaml", KYVERNO | values)
    made = mutate(policy, given, "team")
    check(made)
    return made


def trainer_of(made: Map) -> Map:
    return named(made["spec"]["containers"], "trainer")


@pytest.mark.parametrize("sidecar", [{}, {"enabled": False}, {"hooks": {"enabled": False}}])
def test_policy_is_valid(sidecar: Map) -> None:
    [policy] = rendered("kyverno-policy.yaml", KYVERNO | {"sidecar": sidecar})
    check_custom(policy)
    assert policy["spec"]["failurePolicy"] == "Ignore"
    assert not rendered("kyverno-policy.yaml", {})


def test_policy_adds_the_same_pieces_as_the_chart(pod: Any) -> None:
    made, template = injected(plain()), pod()
    ours = [one for one in made["spec"]["initContainers"] if one["name"] != "fetch"]
    assert sorted(ours, key=lambda one: one["name"]) == sorted(
        template["spec"]["initContainers"], key=lambda one: one["name"]
    )
    volumes = {one["name"]: one for one in template["spec"]["volumes"] if one["name"].startswith("whyidle")}
    assert {one["name"]: one for one in made["spec"]["volumes"]} == volumes
    assert made["metadata"]["labels"].items() >= template["metadata"]["labels"].items()
    variables = environment(trainer_of(made), FIELDS)
    included = environment(template["spec"]["containers"][0], FIELDS)
    assert variables == {name: included[name] for name in included if name != "WHYIDLE_JOB"}
    mounts = {one["mountPath"]: one for one in trainer_of(made)["volumeMounts"]}
    assert mounts == {
        one["mountPath"]: one
        for one in template["spec"]["containers"][0]["volumeMounts"]
        if one["name"].startswith("whyidle")
    }


def test_policy_does_not_change_other_containers_and_pods() -> None:
    given = plain()
    made = injected(given)
    assert named(made["spec"]["containers"], "helper") == named(given["spec"]["containers"], "helper")
    assert named(made["spec"]["initContainers"], "fetch") == given["spec"]["initContainers"][0]
    for none in ({}, {"whyidle.dev/inject": ""}):
        given["metadata"]["annotations"] = none
        assert injected(given) == given


def test_keeps_settings_of_the_author() -> None:
    secret = {"name": "WHYIDLE_NODE", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}}
    own = [{"name": "WHYIDLE", "value": "0"}, {"name": "WHYIDLE_RUN", "value": "mine"}, secret]
    given = plain(env=own)
    by_name = {one["name"]: one for one in trainer_of(injected(given))["env"]}
    assert {name: by_name[name] for name in ("WHYIDLE", "WHYIDLE_RUN", "WHYIDLE_NODE")} == {
        one["name"]: one for one in own
    }


def test_the_authors_pythonpath_comes_after_ours() -> None:
    variables = environment(trainer_of(injected(plain(env=[{"name": "PYTHONPATH", "value": "/app:/lib"}]))), FIELDS)
    assert variables["PYTHONPATH"] == f"{HOOKS}/whyidle/torch_hooks/autoload:/app:/lib"


def test_does_not_change_a_pythonpath_that_it_cannot_read() -> None:
    one = {"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}}
    assert one in trainer_of(injected(plain(env=[one])))["env"]


@pytest.mark.parametrize(
    ("labels", "run"),
    [
        ({JOB_LABEL: "train-node-0", "jobset.sigs.k8s.io/jobset-name": "train"}, "train"),
        ({"training.kubeflow.org/job-name": "train"}, "train"),
        ({}, None),
    ],
)
def test_the_run_is_named_by_the_outermost_owner(labels: dict[str, str], run: str | None) -> None:
    given = plain()
    given["metadata"]["labels"] = labels
    assert environment(trainer_of(injected(given)), FIELDS).get("WHYIDLE_RUN") == run


def test_applying_the_policy_twice_changes_nothing() -> None:
    """Admission may apply a policy again to its own result."""
    [policy] = rendered("kyverno-policy.yaml", KYVERNO)
    once = mutate(policy, plain(), "team")
    twice = mutate(policy, once, "team")
    path = environment(trainer_of(twice), FIELDS)["PYTHONPATH"].split(":")
    assert len(twice["spec"]["initContainers"]) == len(once["spec"]["initContainers"]) == 3
    assert len(path) == len(set(path))

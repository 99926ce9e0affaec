"""The chart: every combination of its features is valid, invalid values are rejected, and its documentation is true."""

from __future__ import annotations

import argparse
import difflib
import gzip
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("helm_python", reason="Helm's engine: pip install helm-python-sdk")

import helm_python
from helm_python import HelmError
from support_helm import (
    CHART,
    HASH,
    PASSWORDS,
    ROOT,
    TLS,
    Map,
    against_baseline,
    against_restricted,
    chart,
    documented,
    documents,
    kinds,
    manifests,
    notes,
    one,
    problems,
    texts,
)
from support_yaml import read_yaml

from whyidle.agent.collector import COLLECTORS
from whyidle.agent.web.config import parse as parse_web
from whyidle.alerts.output import files as rule_files
from whyidle.cli.main import _parse
from whyidle.dashboards.output import rendered as dashboards

GOLDEN = Path(__file__).parent / "golden"

FEATURES: dict[str, Map] = {
    "no agent": {"agent": {"enabled": False}},
    "all of agent": {
        "agent": {
            "logFormat": "json",
            "disabledCollectors": ["lustre", "nfs"],
            "extraArgs": ["--log.level=debug"],
            "extraEnv": [{"name": "A", "value": "b"}],
        }
    },
    "digest": {"image": {"digest": "sha256:" + "0" * 64, "pullSecrets": [{"name": "registry"}]}},
    "pods": {"podAttribution": True},
    "pod logs": {"hostPaths": {"podLogs": "/var/log/pods"}},
    "root file system": {"hostPaths": {"root": "/"}},
    "directory by the node": {"ledgers": {"prepare": False, "hostPath": "/run/whyidle"}},
    "host's namespaces": {"hostPID": True, "hostNetwork": True},
    "no GPUs": {"nvidia": {"enabled": False}, "affinity": None, "tolerations": []},
    "default runtime": {"nvidia": {"runtimeClassName": ""}},
    "placement": {"priorityClassName": "system-node-critical", "nodeSelector": {"pool": "gpu"}},
    "on delete": {"updateStrategy": {"type": "OnDelete"}},
    "no resources": {"resources": None},
    "names": {"nameOverride": "idle", "extraLabels": {"team": "infra"}, "podLabels": {"a": "b"}},
    "pod annotations": {"podAnnotations": {"a": "b"}, "serviceAccount": {"annotations": {"c": "d"}}},
    "no account": {"serviceAccount": {"create": False}},
    "podMonitor": {"podMonitor": {"enabled": True, "labels": {"release": "kps"}, "sampleLimit": 10_000}},
    "serviceMonitor": {
        "serviceMonitor": {
            "enabled": True,
            "sampleLimit": 10_000,
            "relabelings": [{"targetLabel": "cluster", "replacement": "lab"}],
            "metricRelabelings": [{"sourceLabels": ["__name__"], "regex": "whyidle_nfs_.*", "action": "drop"}],
        }
    },
    "annotations": {"scrapeAnnotations": {"enabled": True}},
    "service": {"service": {"enabled": True, "annotations": {"a": "b"}}},
    "networkPolicy": {
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]}
    },
    "TLS": {"web": {"tls": TLS}},
    "mutual TLS": {"web": {"tls": {**TLS, "clientCA": True, "scrapeSecretName": "prometheus-tls"}}},
    "passwords": {"web": {"basicAuth": PASSWORDS}},
    "a web configuration": {"web": {"existingSecret": "web", "scheme": "https"}},
    "rules": {"rules": {"enabled": True, "labels": {"release": "kps"}}},
    "rule files": {"rules": {"enabled": True, "format": "prometheus"}},
    "dashboards": {"dashboards": {"enabled": True, "folder": "GPUs"}},
}
"""Each feature separately. The features of the sidecar and of Kyverno are in test_helm_sidecar.py."""

TOGETHER_REFUSED = {
    frozenset(pair)
    for pair in [
        *itertools.combinations(("podMonitor", "serviceMonitor", "annotations"), 2),
        *itertools.product(["annotations"], ["TLS", "mutual TLS", "passwords", "a web configuration"]),
        *itertools.product(["a web configuration"], ["TLS", "mutual TLS", "passwords"]),
        *itertools.product(["no agent"], ["podMonitor", "serviceMonitor", "annotations"]),
        ("host's namespaces", "networkPolicy"),
    ]
}


def merged(*values: Map) -> Map:
    result: Map = {}
    for each in values:
        for key, value in each.items():
            old = result.get(key)
            result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def parsed(words: list[str]) -> argparse.Namespace:
    """As the agent's own command line parses them. The paths of the node exist in the container, not here."""
    return _parse([word.replace("=/host/", "=/").replace("=/root", "=/") for word in words], None)


def refusal(values: Map) -> str:
    with pytest.raises(HelmError) as caught:
        texts(values)
    return str(caught.value)


def pod(values: Map | None = None) -> Map:
    return one(manifests(values), "DaemonSet")["spec"]["template"]["spec"]


def agent(values: Map | None = None) -> Map:
    [container] = pod(values)["containers"]
    return container


# -- the chart is valid, and creates valid manifests


def test_passes_helm_lint() -> None:
    everything = merged(FEATURES["podMonitor"], FEATURES["rules"], FEATURES["dashboards"])
    for values in ({}, everything):
        report = helm_python.lint(CHART, values, strict=True)
        said = [message for message in report["messages"] if "icon is recommended" not in message["error"]]
        assert (said, report["errors"]) == ([], [])


@pytest.mark.parametrize("first", FEATURES)
def test_every_combination_of_features_is_valid_for_kubernetes(first: str) -> None:
    for second in [*FEATURES][[*FEATURES].index(first) :]:
        values = merged(FEATURES[first], FEATURES[second])
        if frozenset((first, second)) in TOGETHER_REFUSED:
            assert "execution error" in refusal(values)
            continue
        made = texts(values)
        assert not [problem for text in made.values() for problem in problems(text)], second
        assert "<no value>" not in "".join(made.values()), second
        if "daemonset.yaml" in made:
            [daemon_set] = documents(made["daemonset.yaml"])
            parsed(daemon_set["spec"]["template"]["spec"]["containers"][0]["args"])


@pytest.mark.parametrize("name", ["default", "podMonitor", "pods", "secured", "packaged", "minimal"])
def test_rendering_equals_the_golden_file(name: str) -> None:
    """`WHYIDLE_UPDATE_GOLDEN=1 pytest tests/helm/test_helm_chart.py` updates them. Read the changes first."""
    values: Map = {
        "default": {},
        "podMonitor": merged(FEATURES["podMonitor"], FEATURES["networkPolicy"], FEATURES["names"]),
        "pods": merged(FEATURES["pods"], FEATURES["pod logs"], FEATURES["host's namespaces"]),
        "secured": merged(FEATURES["serviceMonitor"], FEATURES["mutual TLS"], FEATURES["passwords"]),
        "packaged": merged(FEATURES["no agent"], FEATURES["rules"], FEATURES["dashboards"]),
        "minimal": merged(FEATURES["no GPUs"], FEATURES["directory by the node"], FEATURES["no resources"]),
    }[name]
    made = {**texts(values), "NOTES.txt": notes(values)}
    text = "".join(f"# {path}\n{part.strip()}\n" for path, part in sorted(made.items()))
    # Packaged files are compared with their sources below.
    text = re.sub(r"(?m)^((?: *groups:|    \{\")).*(?:\n {4,}.*)*", r"\1 …", text)
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("WHYIDLE_UPDATE_GOLDEN"):
        file.write_text(text)
    difference = list(difflib.unified_diff(file.read_text().splitlines(), text.splitlines(), "golden", "found", n=0))
    assert not difference, "\n".join(difference[:60])


def test_duplicate_labels_are_merged_and_the_selector_matches() -> None:
    """The YAML loader rejects duplicate keys."""
    same = {"app.kubernetes.io/name": "other", "grafana_dashboard": "2"}
    values = merged(
        {"extraLabels": same, "podLabels": same}, FEATURES["dashboards"], FEATURES["rules"], FEATURES["podMonitor"]
    )
    made = manifests(merged(values, {"rules": {"labels": same}, "podMonitor": {"labels": same}}))
    daemon_set = one(made, "DaemonSet")
    labels = daemon_set["spec"]["template"]["metadata"]["labels"]
    assert daemon_set["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert {each["metadata"]["labels"]["app.kubernetes.io/name"] for each in made} == {"whyidle"}


def test_an_upgrade_keeps_the_selector_and_a_chart_version_restarts_nothing() -> None:
    daemon_set = one(manifests(), "DaemonSet")
    assert daemon_set["spec"]["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "whyidle",
        "app.kubernetes.io/instance": "whyidle",
        "app.kubernetes.io/component": "agent",
    }
    assert "helm.sh/chart" not in daemon_set["spec"]["template"]["metadata"]["labels"]


def test_names_of_two_releases_do_not_collide() -> None:
    values = merged(FEATURES["serviceMonitor"], FEATURES["rules"], FEATURES["passwords"], FEATURES["networkPolicy"])
    names = [
        {(each["kind"], each["metadata"]["name"]) for each in manifests(values, name=release)} for release in ("a", "b")
    ]
    assert not names[0] & names[1]


# -- what is rejected


WRONG: list[tuple[str, Any, str]] = [
    ("agentt", {}, "additional properties 'agentt' not allowed"),
    ("agent.prot", 9838, "at '/agent': additional properties 'prot' not allowed"),
    ("image.pullPolicy", "Sometimes", "at '/image/pullPolicy': value must be one of 'IfNotPresent', 'Always', 'Never'"),
    ("image.repository", "registry.example.com/whyidle:1", "image.tag"),
    ("image.tag", "a b", 'image.tag is "a b": write a tag alone'),
    ("image.digest", "0123", "write sha256: and 64 hexadecimal digits"),
    ("agent.port", "9838", "at '/agent/port': got string, want integer"),
    ("agent.port", 99999, "at '/agent/port': maximum: got 99,999, want 65,535"),
    ("agent.logLevel", "loud", "at '/agent/logLevel': value must be one of 'debug', 'info', 'warn', 'error'"),
    ("agent.disabledCollectors", ["gpus"], "at '/agent/disabledCollectors/0': value must be one of 'clock', 'ranks'"),
    ("agent.ledgerRetention", "15", 'agent.ledgerRetention is "15": write a number and a unit'),
    ("agent.ledgerDeleteAfter", "1 day", 'agent.ledgerDeleteAfter is "1 day": write a number and a unit'),
    ("agent.collectorDeadline", 2, "at '/agent/collectorDeadline': got number, want string"),
    ("agent.extraEnv", [{"value": "x"}], "at '/agent/extraEnv/0': missing property 'name'"),
    ("hostPaths.proc", "proc", 'hostPaths.proc is "proc": write an absolute path'),
    ("hostPaths.sys", "", 'hostPaths.sys is "": write an absolute path'),
    ("ledgers.hostPath", "/", "write an absolute path to a separate directory"),
    ("ledgers.hostPath", "/dev/shm", "which other programs use too"),
    ("ledgers.mountPath", "ledgers", 'ledgers.mountPath is "ledgers"'),
    ("podAttribution", "yes", "at '/podAttribution': got string, want boolean"),
    ("nvidia.visibleDevices", 0, "at '/nvidia/visibleDevices': got number, want string"),
    ("nvidia.visibleDevices", "0, 1", 'nvidia.visibleDevices is "0, 1": write all, or indices or UUIDs'),
    ("nvidia.driverCapabilities", "compute", "write a list that contains utility"),
    ("nvidia.runtimeClassName", "NVIDIA", "write a name as in Kubernetes"),
    ("tolerations", [{"effect": "No"}], "at '/tolerations/0/effect': value must be one of 'NoSchedule'"),
    ("tolerations", {"key": "gpu"}, "at '/tolerations': got object, want array"),
    ("nodeSelector", {"gpu": True}, "at '/nodeSelector/gpu': got boolean, want string"),
    ("affinity", {"node": {}}, "at '/affinity': additional properties 'node' not allowed"),
    ("resources.request", {}, "at '/resources': additional properties 'request' not allowed"),
    ("updateStrategy.type", "Recreate", "at '/updateStrategy/type': value must be one of 'RollingUpdate', 'OnDelete'"),
    ("podMonitor.interval", "60s", 'podMonitor.interval is "60s": write 5s to 30s'),
    ("podMonitor", {"interval": "5s", "scrapeTimeout": "10s"}, "podMonitor.scrapeTimeout is 10s, longer than its"),
    ("serviceMonitor.relabelings", [{"target": "a"}], "additional properties 'target' not allowed"),
    ("networkPolicy.from", [{}], "at '/networkPolicy/from/0': minProperties: got 0, want 1"),
    ("web.scheme", "HTTPS", "at '/web/scheme': value must be one of 'http', 'https'"),
    ("web.tls.clientCA", True, "web.tls.clientCA requires client certificates, which need TLS"),
    ("rules.format", "yaml", "at '/rules/format': value must be one of 'operator', 'prometheus'"),
    (
        "dashboards.labels",
        {"grafana_dashboard": 1},
        "at '/dashboards/labels/grafana_dashboard': got number, want string",
    ),
    ("sidecar.collectors", ["all"], "at '/sidecar/collectors/0': value must be one of"),
    ("kyverno.enable", True, "at '/kyverno': additional properties 'enable' not allowed"),
]


@pytest.mark.parametrize(("value", "given", "said"), WRONG, ids=[f"{name}-{n}" for n, (name, *_) in enumerate(WRONG)])
def test_rejects_invalid_values_by_name(value: str, given: Any, said: str) -> None:
    for name in reversed(value.split(".")):
        given = {name: given}
    assert said in refusal(given)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (merged(FEATURES["podMonitor"], FEATURES["serviceMonitor"]), "podMonitor and serviceMonitor are enabled: each"),
        (merged(FEATURES["no agent"], FEATURES["podMonitor"]), "podMonitor is enabled and agent is not"),
        (merged(FEATURES["podMonitor"], {"web": {"basicAuth": {"users": {"p": HASH}}}}), "basicAuth.scrapeSecret.name"),
        (merged(FEATURES["podMonitor"], {"web": {"tls": {"secretName": "t"}}}), "web.tls.serverName is empty"),
        (merged(FEATURES["podMonitor"], {"web": {"tls": {**TLS, "clientCA": True}}}), "web.tls.scrapeSecretName"),
    ],
)
def test_rejects_incompatible_values_and_says_what_to_do(values: Map, said: str) -> None:
    assert said in refusal(values)


def test_rejects_a_plain_password_without_repeating_it() -> None:
    said = refusal({"web": {"basicAuth": {"users": {"prometheus": "hunter2"}}}})
    assert "web.basicAuth.users.prometheus is wrong: write a bcrypt hash" in said
    assert "hunter2" not in said


def test_every_value_is_documented_has_a_schema_and_is_used() -> None:
    assert not [name for name, said in documented().items() if not said]
    sources = "".join(template["data"] for template in chart().templates)
    for path, schema in _leaves(chart().values, chart().schema or {}):
        assert schema is not None, f"{path} is not in values.schema.json"
        *_, name = path.split(".")
        assert re.search(rf"\.{name}\b", sources), f"{path} is used nowhere"


def _leaves(values: Map, schema: Map, path: str = "") -> list[tuple[str, Map | None]]:
    found: list[tuple[str, Map | None]] = []
    for name, value in values.items():
        inner = schema.get("properties", {}).get(name)
        if isinstance(value, dict) and inner and "properties" in inner and name not in ("affinity", "rollingUpdate"):
            found += _leaves(value, inner, f"{path}{name}.")
        else:
            found.append((path + name, inner))
    return found


def test_schema_has_only_values_of_the_chart_and_every_collector() -> None:
    schema = chart().schema or {}
    spare = {"global", "enabled"}  # for charts that have this one as a dependency
    assert schema["properties"].keys() - spare == chart().values.keys()
    assert schema["definitions"]["collector"]["enum"] == [entry.name for entry in COLLECTORS]


# -- what runs


@pytest.mark.parametrize(
    ("feature", "baseline", "restricted"),
    [
        # Without paths of the node the agent sees nothing, so it needs the standard `privileged`.
        ("default", {"hostPath"}, {"hostPath", "volumes", "capabilities", "runAsNonRoot", "runAsUser"}),
        # No container runs as root, and none has a capability.
        ("directory by the node", {"hostPath"}, {"hostPath", "volumes"}),
        # The kubelet's socket belongs to root.
        ("pods", {"hostPath"}, {"hostPath", "volumes", "capabilities", "runAsNonRoot", "runAsUser"}),
        (
            "host's namespaces",
            {"hostPath", "hostPID", "hostNetwork"},
            {"hostPath", "hostPID", "hostNetwork", "volumes", "capabilities", "runAsNonRoot", "runAsUser"},
        ),
    ],
)
def test_pod_security_of_each_mode(feature: str, baseline: set[str], restricted: set[str]) -> None:
    """Why each mode does not meet the next stricter standard. The sidecar meets `restricted`: test_helm_sidecar.py."""
    spec = pod(FEATURES.get(feature))
    assert against_baseline(spec) == baseline
    assert against_restricted(spec) == restricted


@pytest.mark.parametrize("feature", [name for name in FEATURES if name != "no agent"])
def test_agent_has_no_extra_capability_or_token_and_writes_only_ledgers_in_any_mode(feature: str) -> None:
    spec, container = pod(FEATURES[feature]), agent(FEATURES[feature])
    uid = 0 if feature == "pods" else 65532
    assert spec["automountServiceAccountToken"] is False
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (uid, uid != 0)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")] == ["ledgers"]
    assert not kinds(manifests(FEATURES[feature])) & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


def test_mounts_and_volumes_match() -> None:
    for values in FEATURES.values():
        if values == FEATURES["no agent"]:
            continue
        spec = pod(values)
        mounted = {mount["name"] for each in (*spec["containers"], *spec.get("initContainers", []))
                   for mount in each["volumeMounts"]}  # fmt: skip
        assert mounted == {volume["name"] for volume in spec["volumes"]}


# -- the directory of the ledgers


def prepare(directory: Path, uid: int) -> subprocess.CompletedProcess[str]:
    """The init container's command as in the manifest, except for the last two words."""
    [container] = pod()["initContainers"]
    _, *command = container["command"]
    script, _, _ = container["args"]
    words = [sys.executable, *command, script, str(directory), str(uid)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def owner_and_mode(directory: Path) -> tuple[int, int]:
    status = directory.stat()
    return status.st_uid, stat.S_IMODE(status.st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory to another user")
def test_ledger_directory_is_writable_by_all_and_owned_by_the_agent(tmp_path: Path) -> None:
    ledgers = tmp_path / "whyidle"
    ledgers.mkdir(mode=0o755)
    assert prepare(ledgers, 65532).returncode == 0
    assert owner_and_mode(ledgers) == (65532, 0o1777)
    (ledgers / "0-1-ab.ledger").touch()
    assert prepare(ledgers, 0).returncode == 0, "podAttribution was switched on"
    assert owner_and_mode(ledgers) == (0, 0o1777)
    assert prepare(ledgers, 65532).returncode == 0
    (ledgers / "a stranger's").touch()
    assert prepare(ledgers, 65532).returncode == 0, "who may write there must not keep the agent from starting"
    assert prepare(ledgers, 0).returncode == 0
    assert (ledgers / "0-1-ab.ledger").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory to another user")
def test_does_not_change_a_directory_that_holds_other_files(tmp_path: Path) -> None:
    """ledgers.hostPath may be wrong, or somebody on the node may have replaced the directory by a link."""
    (tmp_path / "passwd").touch()
    tmp_path.chmod(0o755)
    before = owner_and_mode(tmp_path)
    done = prepare(tmp_path, 65532)
    assert done.returncode != 0
    assert "contains files that are not ledgers, such as 'passwd'" in done.stderr
    assert "ledgers.hostPath must be a directory for ledgers only" in done.stderr
    assert owner_and_mode(tmp_path) == before
    (link := tmp_path.parent / "link").symlink_to(tmp_path)
    assert prepare(link, 65532).returncode != 0


def test_no_gpu_is_requested() -> None:
    assert set(agent()["resources"]["requests"]) == {"cpu", "memory"}


@pytest.mark.parametrize(
    ("feature", "probe"),
    [
        ("default", {"httpGet": {"path": "/readyz", "port": "metrics"}}),
        ("TLS", {"httpGet": {"path": "/readyz", "port": "metrics", "scheme": "HTTPS"}}),
        ("mutual TLS", {"tcpSocket": {"port": "metrics"}}),
        ("passwords", {"tcpSocket": {"port": "metrics"}}),
        ("a web configuration", {"tcpSocket": {"port": "metrics"}}),
    ],
)
def test_probes_use_pages_that_the_kubelet_may_read(feature: str, probe: Map) -> None:
    assert probe.items() <= agent(FEATURES.get(feature))["readinessProbe"].items()


@pytest.mark.parametrize("feature", ["TLS", "mutual TLS", "passwords"])
def test_agent_accepts_the_web_configuration(feature: str) -> None:
    text = one(manifests(FEATURES[feature]), "Secret")["stringData"]["web.yml"]
    config = parse_web(text.encode(), "/etc/whyidle/web")
    assert bool(config)
    assert "--web.config.file=/etc/whyidle/web/web.yml" in agent(FEATURES[feature])["args"]


def test_the_monitors_keep_the_labels_of_the_ranks_and_the_job_of_the_alerts() -> None:
    for feature, endpoints in (("podMonitor", "podMetricsEndpoints"), ("serviceMonitor", "endpoints")):
        spec = one(manifests(FEATURES[feature]), feature[0].upper() + feature[1:])["spec"]
        assert spec["sampleLimit"] == 10_000
        [endpoint] = spec[endpoints]
        assert endpoint["honorLabels"] is True
        job = next(each["replacement"] for each in endpoint["relabelings"] if each.get("targetLabel") == "job")
        for alert in re.findall(r'up\{job=~"([^"]*)"\}', (ROOT / "alerts" / "generated" / "alerts.yaml").read_text()):
            assert re.fullmatch(alert, job)


# -- packaged files have one source


def test_the_rules_are_the_generated_ones() -> None:
    expected = [read_yaml(text)["groups"] for text in rule_files().values()]
    resources = [each for each in manifests(FEATURES["rules"]) if each["kind"] == "PrometheusRule"]
    assert [each["spec"]["groups"] for each in resources] == expected
    config_map = one(manifests(FEATURES["rule files"]), "ConfigMap")
    assert [read_yaml(text)["groups"] for text in config_map["data"].values()] == expected
    assert list(config_map["data"]) == list(rule_files())


def test_the_dashboards_are_the_generated_ones() -> None:
    made = [each for each in manifests(FEATURES["dashboards"]) if each["kind"] == "ConfigMap"]
    found = {name.removesuffix(".json"): json.loads(text) for each in made for name, text in each["data"].items()}
    assert found == json.loads(json.dumps(dashboards()))
    for each in made:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "GPUs"}
        assert len(json.dumps(each)) < 256 << 10, "kubectl apply takes no more"


def test_a_package_holds_files_in_place_of_the_links(tmp_path: Path) -> None:
    with helm_python.Chart.load(helm_python.package(CHART, destination=tmp_path)) as packaged:
        values = merged(FEATURES["rules"], FEATURES["dashboards"])
        assert packaged.render(values=values, name="x") == chart().render(values=values, name="x")


def test_a_release_fits_into_its_secret() -> None:
    """Helm keeps chart and manifests in a Secret of at most 1 MiB, as JSON with files in base64, gzip, base64."""
    values = merged(FEATURES["rules"], FEATURES["dashboards"], FEATURES["serviceMonitor"])
    files = [b64encode(each["data"].encode()).decode() for each in (*chart().files, *chart().templates)]
    release = json.dumps({"chart": files, "manifest": "\n".join(texts(values).values()), "values": values})
    assert len(b64encode(gzip.compress(release.encode()))) < 512 << 10


def test_notes_are_true() -> None:
    assert "NOTHING SCRAPES" in notes()
    assert "NOTHING SCRAPES" not in notes(FEATURES["podMonitor"])
    assert "by the PodMonitor whyidle" in notes(FEATURES["podMonitor"])
    assert "by the ServiceMonitor whyidle" in notes(FEATURES["serviceMonitor"])
    assert "plain HTTP, for everybody" in notes()
    assert "plain HTTP" not in notes(FEATURES["TLS"])
    assert "rollout status" in notes()
    assert "rollout status" not in notes(FEATURES["no agent"])
    assert "RuntimeClass" in notes()
    assert "RuntimeClass" not in notes(FEATURES["default runtime"])
    assert "The agent sees no GPUs" in notes(FEATURES["no GPUs"])
    assert "PrometheusRules whyidle-recording and whyidle-alerts" in notes(FEATURES["rules"])
    assert "ConfigMap whyidle-rules" in notes(FEATURES["rule files"])


@pytest.mark.parametrize("feature", ["default", "pods", "pod logs"])
def test_command_in_the_notes_uses_the_directory_of_the_agent(feature: str) -> None:
    [command] = re.findall(r"whyidle (doctor .*)", notes(FEATURES.get(feature)))
    words = agent(FEATURES.get(feature))["args"]
    assert parsed(command.split()).directory == parsed(words).directory
    assert [word for word in words if word.startswith(("--path", "--ledger.dir"))] == command.split()[1:]


def test_every_node_path_in_the_agents_flags_is_mounted() -> None:
    for name in FEATURES.keys() - {"no agent"}:
        container = agent(FEATURES[name])
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        for word in container["args"]:
            _, _, path = word.partition("=")
            if path.startswith(("/host/", "/dev/", "/etc/")):
                below = [mount for mount in mounts if mount == path or path in mount or mount in path]
                assert below, f"{name}: {word}"


# -- the statements of the page on Kubernetes

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


def test_settings_on_the_page_are_accepted() -> None:
    settings = re.findall(r"--set ([^ `\n]+=[^ `\n]*)", PAGE)
    assert len(settings) > 5
    refused = {
        "agent.prot=9838": "- at '/agent': additional properties 'prot' not allowed",
        "agent.ledgerRetention=15x": 'agent.ledgerRetention is "15x": write a number and a unit, such as 90s, 15m',
    }
    assert all(sentence in PAGE for sentence in refused.values())
    for setting in settings:
        values = helm_python.parse_set_string(setting.replace("…", "x"))
        if setting in refused:
            assert refused[setting] in refusal(values)
        else:
            texts(values)


def test_values_on_the_page_exist() -> None:
    cases = PAGE.partition("## Values for the usual cases")[2].partition("## Permissions")[0]
    written = [read_yaml(part) for part in re.findall(r"`([a-zA-Z]+: [^`]+)`", cases)]
    written += [read_yaml(part.replace("$2y$10$…", HASH)) for part in re.findall(r"```yaml\n(.*?)```", cases, re.S)]
    values = [each for each in written if each.keys() <= chart().values.keys()]
    assert len(values) > 12
    for each in values:
        assert not [problem for text in texts(each).values() for problem in problems(text)]


def test_as_a_subchart_it_is_switched_by_its_condition(tmp_path: Path) -> None:
    [snippet] = re.findall(r"```yaml\n(dependencies:.*?)```", PAGE, re.S)
    shutil.copytree(CHART, tmp_path / "charts" / "whyidle")
    (tmp_path / "Chart.yaml").write_text(f"apiVersion: v2\nname: train\nversion: 0.1.0\n{snippet}")
    (tmp_path / "values.yaml").write_text("global: {registry: somewhere}\n")
    with helm_python.Chart.load(tmp_path) as parent:
        for given, made in (
            ({"enabled": True}, True),
            ({"enabled": False}, False),
            ({"agent": {"enabled": False}}, False),
        ):
            rendered = parent.render(values={"whyidle": given}, name="train")
            assert any("DaemonSet" in text for text in rendered.values()) == made

"""The chart's pods really run: pods of its rendered manifests, in separate namespaces on this machine.

Command lines, users, mounts, ports, probes and environment come from the manifest and are not repeated here.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from fake_node.kubelet import ALLOCATABLE, PODS, Kubelet
from prometheus_client.parser import text_string_to_metric_families as parse
from support_certificates import authority, needs_openssl, signed
from support_ledgers import until
from support_manifest import Manifest, Node, one, rendered
from support_pod import PACKAGE, Container, Pod, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

CHART = PACKAGE / "helm" / "whyidle"
EXAMPLE = PACKAGE / "examples" / "chart"
RANKS = 2
JOB = "llama-7b"
TRIAL = {"nvidia": {"enabled": False}}
USER = re.search(r"^USER (\d+):(\d+)$", (PACKAGE / "deploy" / "image" / "Dockerfile").read_text(), re.MULTILINE)
Sample = tuple[str, dict[str, str], float]


@pytest.fixture
def node() -> Iterator[Node]:
    """A node that has just started. Its files are on a tmpfs, like the ledgers should be."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="node-") as folder:
        files = Path(folder)
        files.chmod(0o755)
        (files / "dev" / "shm").mkdir(parents=True)
        (files / "dev" / "shm").chmod(0o1777)
        (files / "var" / "lib" / "kubelet" / "pod-resources").mkdir(parents=True)
        yield Node(files)


def agent_pod(node: Node, values: Manifest, *objects: Manifest) -> Pod:
    made = rendered(CHART, {**TRIAL, **values})
    template = one(made, "DaemonSet")["spec"]["template"]
    return Pod(template, node, node.files / "pods" / "agent", [*made, *objects], "whyidle-x7k2p")


def training_pod(node: Node, folder: Path, values: Manifest, security: Manifest | None = None) -> Pod:
    """The pod of the example, a chart with this chart as a dependency. It trains on CPUs, because there are no GPUs."""
    copy = folder / "example"
    shutil.copytree(EXAMPLE, copy)
    shutil.copytree(CHART, copy / "charts" / "whyidle")
    template: dict[str, Any] = dict(one(rendered(copy, {"gpus": RANKS, "whyidle": values}), "Job")["spec"]["template"])
    # The Job's controller sets this label.
    labels = {**(template["metadata"].get("labels") or {}), "batch.kubernetes.io/job-name": JOB}
    template["metadata"] = {**template["metadata"], "labels": labels}
    if security:
        template["spec"] = {**template["spec"], "securityContext": security}
    script = (PACKAGE / "examples" / "train_ddp.py").read_text()
    train = {"kind": "ConfigMap", "metadata": {"name": "train"}, "data": {"train_ddp.py": script}}
    return Pod(template, node, node.files / "pods" / "train", [train], f"{JOB}-0-9qz4d")


def started(pod: Pod) -> Container:
    """The agent of a DaemonSet's pod, once all probes succeed."""
    pod.prepare(until)
    pod.begin()
    agent = pod.containers["agent"]
    until(lambda: agent.running and all(map(agent.probe, ("startupProbe", "readinessProbe", "livenessProbe"))))
    return agent


def samples(container: Container, **how: Any) -> list[Sample]:
    [port] = [port["name"] for port in container.said["ports"]]
    code, text = container.ask(port, "/metrics", **how)
    assert code == 200, text
    return [(sample.name, sample.labels, sample.value) for family in parse(text) for sample in family.samples]


def values_of(found: list[Sample], name: str) -> dict[tuple[str, str], float]:
    return {(labels["run"], labels["rank"]): value for n, labels, value in found if n == name}


def assert_rights(container: Container, uid: int) -> None:
    """It has only the rights that the manifest gives it, and can write only where the manifest allows it."""
    status = container.status()
    assert status["Uid"].split() == status["Gid"].split() == [str(uid)] * 4
    assert {status[name].strip("0") for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")} == {""}
    assert status["NoNewPrivs"] == "1"
    assert status["Groups"].split() == [str(group) for group in container.security.groups]
    writable = {mount.at for mount in container.mounts if not mount.read_only}
    assert writable == {"/dev/shm/whyidle"}, "the ledgers alone"
    found = container.inside(_TRY)
    assert found.returncode == 0, found.stderr
    could = set(json.loads(found.stdout))
    if uid == 0:  # root's /dev; and readOnly does not apply to mounts below the node's /sys
        could = {at for at in could if at != "/dev" and not at.startswith("/host/sys/fs/cgroup")}
    assert could == writable | {"/dev/shm"}, "where it can make files"


def assert_blind(agent: Container) -> None:
    """It reads counters of the node's processes, but nothing private. It has no token."""
    private = [f"/host/proc/1/{name}" for name in ("environ", "mem", "maps", "io", "fd/0", "cwd", "root")]
    found = agent.inside(_READ, json.dumps([*private, "/var/run/secrets", "/host/proc/1/stat"]))
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == ["/host/proc/1/stat"]


_READ = """
import json, os, sys
def may(path):
    try:
        if os.path.islink(path) or os.path.isdir(path):
            os.listdir(path)
        else:
            open(path, "rb").read(1)
        return True
    except OSError:
        return False
print(json.dumps([path for path in json.loads(sys.argv[1]) if may(path)]))
"""
_TRY = """
import json, os
# Every directory in which a file can be made. /dev/shm is its own; what is in /proc and /sys is no file.
found = []
for top, folders, _ in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(top, name) not in ("/proc", "/host/proc", "/usr")]
    try:
        os.close(os.open(os.path.join(top, ".tried"), os.O_CREAT | os.O_WRONLY))
        os.unlink(os.path.join(top, ".tried"))
        found.append(top)
    except OSError:
        pass
print(json.dumps(found))
"""


# -- the DaemonSet, and training on its node


def test_the_agent_of_a_node_sees_the_ranks_of_a_pod_with_which_it_shares_a_directory(
    node: Node, tmp_path: Path
) -> None:
    with agent_pod(node, {"agent": {"ledgerDeleteAfter": "2s"}}) as pod:
        agent = started(pod)
        assert_rights(agent, 65532)
        assert_blind(agent)

        with training_pod(
            node, tmp_path, {"sidecar": {"enabled": False}}, {"runAsUser": 1000, "runAsGroup": 1000}
        ) as job:
            job.prepare(until)
            job.begin()
            trainer = job.containers["trainer"]
            found = until(lambda: _steps(agent, trainer))
            assert_ranks(found)
            assert trainer.status()["NSpid"].split()[1:] == agent.status()["NSpid"].split()[1:] == ["1"]
            # The node's /proc shows the processes of ranks, although they have another user and another PID namespace.
            seen = until(lambda: values_of(samples(agent), "whyidle_process_resident_bytes"))
            assert len(seen) == RANKS

        ledgers = node.files / "dev" / "shm" / "whyidle"
        assert {path.stat().st_uid for path in ledgers.iterdir()} <= {1000}
        until(lambda: not list(ledgers.iterdir()))  # removed by the agent, which does not own them
        assert agent.terminate() == 0, agent.log()


def _steps(agent: Container, trainer: Container) -> list[Sample]:
    """What the agent serves, once each rank has made a step."""
    assert trainer.process.poll() is None, trainer.log()
    found = samples(agent)
    steps = values_of(found, "whyidle_steps_total")
    return found if len(steps) == RANKS and all(steps.values()) else []


def assert_ranks(found: list[Sample]) -> None:
    ranks = {(JOB, str(rank)) for rank in range(RANKS)}
    assert values_of(found, "whyidle_rank_up") == dict.fromkeys(ranks, 1.0)
    assert values_of(found, "whyidle_steps_total").keys() == ranks
    assert [labels for name, labels, value in found if name == "whyidle_ledger_errors_total" and value] == []
    assert {labels["node"] for name, labels, _ in found if name == "whyidle_rank_info"} == {"gpu-node-1"}


# -- the sidecar


@pytest.mark.long
def test_the_agent_beside_a_training_sees_its_ranks(node: Node, tmp_path: Path) -> None:
    with training_pod(node, tmp_path, {}) as pod:
        pod.prepare(until)
        pod.begin()
        agent, trainer = pod.containers["whyidle"], pod.containers["trainer"]
        until(lambda: agent.running and agent.probe("livenessProbe"))
        assert_ranks(until(lambda: _steps(agent, trainer)))
        assert_rights(agent, 65532)
        # It runs as root in its container, like most training images. Its ledgers can still be read.
        assert trainer.status()["Uid"].split() == ["0"] * 4
        assert trainer.status()["NSpid"].split()[1:] == agent.status()["NSpid"].split()[1:] == ["1"]
        # The pod has written nothing to the node.
        assert list((node.files / "dev" / "shm").iterdir()) == []
        trainer.kill()
        until(lambda: set(values_of(samples(agent), "whyidle_rank_up").values()) == {0.0})
        assert agent.terminate() == 0, agent.log()


# -- the effect of values


def test_pods_by_name_run_as_uid_0_without_capabilities(node: Node) -> None:
    socket = node.files / "var" / "lib" / "kubelet" / "pod-resources" / "kubelet.sock"
    kubelet = Kubelet(socket)
    try:
        kubelet.answer(PODS, ALLOCATABLE)
        socket.chmod(0o600)
        with agent_pod(node, {"podAttribution": True}) as pod:
            agent = started(pod)
            assert_rights(agent, 0)
            assert_blind(agent)
            found = samples(agent)
            assert [labels for name, labels, _ in found if name == "whyidle_gpu_pod_info"], agent.log()
            assert kubelet.calls()
    finally:
        kubelet.close()


@needs_openssl
def test_keys_and_passwords_come_from_secrets_that_only_the_agent_can_read(node: Node, tmp_path: Path) -> None:
    pair = signed(tmp_path, authority(tmp_path), "agent", "DNS:whyidle")
    files = {"tls.crt": pair.cert.read_bytes(), "tls.key": pair.key.read_bytes()}
    data = {name: b64encode(content).decode() for name, content in files.items()}
    secret = {"kind": "Secret", "metadata": {"name": "agent-tls"}, "data": data}
    users = {"prometheus": bcrypt.hashpw(b"let me in", bcrypt.gensalt(4, b"2b")).decode()}
    web = {"tls": {"secretName": "agent-tls"}, "basicAuth": {"users": users}}
    with agent_pod(node, {"web": web}, secret) as pod:
        agent = started(pod)
        assert_rights(agent, 65532)
        assert agent.ask("metrics", "/metrics", tls=True)[0] == 401
        password = {"Authorization": f"Basic {b64encode(b'prometheus:let me in').decode()}"}
        assert samples(agent, headers=password, tls=True)


@pytest.mark.parametrize("values", [{"hostPID": True}, {"hostPaths": {"root": "/"}}, {"agent": {"logFormat": "json"}}])
def test_the_agent_starts_with_values_other_than_the_defaults(node: Node, values: Manifest) -> None:
    with agent_pod(node, values) as pod:
        agent = started(pod)
        assert samples(agent)


def test_the_agent_restarts_in_a_directory_with_arbitrary_files_of_a_pod(node: Node) -> None:
    for _ in range(2):
        with agent_pod(node, {}) as pod:
            started(pod)
        ledgers = node.files / "dev" / "shm" / "whyidle"
        status = ledgers.stat()
        assert (status.st_mode & 0o7777, status.st_uid) == (0o1777, 65532)
        (ledgers / "left behind").mkdir(exist_ok=True)
        shutil.rmtree(node.files / "pods")


def test_the_image_and_the_chart_use_the_same_user() -> None:
    assert USER
    pod = one(rendered(CHART, TRIAL), "DaemonSet")["spec"]["template"]["spec"]["securityContext"]
    assert (str(pod["runAsUser"]), str(pod["runAsGroup"])) == USER.groups()

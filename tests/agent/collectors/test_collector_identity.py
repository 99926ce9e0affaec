"""The collector `identity`: real processes with ledgers, with files as Slurm, the kubelet and the kernel create them,
and a kubelet that answers."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_node import kubelet
from fake_node.kubelet import ALLOCATABLE, CONTAINER_ID, PODS, SOCKET, UID, Pod, gpu, mig, serve
from hypothesis import given
from hypothesis import strategies as st
from support_ledgers import Child, Spec, children
from support_matrix import FAULTS, Series, check, read

from whyidle.agent.collector import Options
from whyidle.agent.collectors import identity
from whyidle.agent.exposition import Exposition
from whyidle.agent.files import Roots, Unreadable
from whyidle.agent.kubelet import owners, pod_resources
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.metrics import METRIC
from whyidle.agent.metrics import identity as metrics
from whyidle.agent.parsers.environ import environ, label
from whyidle.agent.parsers.kubernetes import (
    gpu_uuid,
    minor_and_uuid,
    pod_cgroup,
    pod_of_log_directory,
)
from whyidle.agent.parsers.slurm import slurm_job
from whyidle.agent.reading import ReadError, Reading

NOBODY = 65534

SLURM = {
    "SLURM_CLUSTER_NAME": "alps",
    "SLURM_JOB_ID": "81234",
    "SLURM_JOB_NAME": "pretrain 7b",
    "SLURM_JOB_USER": "ann",
    "SLURM_JOB_ACCOUNT": "nlp",
    "SLURM_JOB_PARTITION": "h200",
    "SLURM_JOB_QOS": "high",
    "SLURM_ARRAY_JOB_ID": "81230",
    "SLURM_ARRAY_TASK_ID": "4",
    "SLURM_STEP_ID": "0",
    "SLURMD_NODENAME": "nid001234",
    "SLURM_NODEID": "3",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
}
SLURM_CGROUP = "0::/system.slice/slurmstepd.scope/job_81234/step_0/user/task_0\n"
POD_CGROUP = (
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
    f"/cri-containerd-{CONTAINER_ID}.scope\n"
)
PLAIN_CGROUP = "0::/user.slice/user-1000.slice/session-3.scope\n"
IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "llama-0", "PATH": "/usr/bin"}


class Node:
    """A node with its files in a directory, and an agent's collector that reads them."""

    def __init__(self, path: Path):
        self.path = path
        self.roots = Roots(str(path / "proc"), str(path / "sys"), str(path / "root"))
        self.ledgers = path / "ledgers"
        kubelet.build(self.roots)
        for name in ("self", "locks"):
            (path / "proc" / name).symlink_to(f"/proc/{name}")
        self.store = LedgerStore(str(self.ledgers), 60.0)
        self.collector = self.create()

    def create(self) -> identity.IdentityCollector:
        return identity.create(Options(self.store, self.roots))

    def rank(self, child: Child, environment: dict[str, str], cgroup: str) -> Path:
        """Gives a real process this environment and cgroup, and returns its directory."""
        pid = child.process.pid
        kubelet.process(self.roots, pid, environment, cgroup)
        folder = Path(self.roots.procfs, str(pid))
        for name in ("stat", "status", "task"):
            (folder / name).symlink_to(f"/proc/{pid}/{name}")
        return folder

    def scrape(self) -> Reading:
        self.store.look()
        reading = Reading()
        self.collector.collect(reading)
        return reading


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_resources, "KEEP_SECONDS", 0.0)


def series(reading: Reading, metric: Any) -> list[dict[str, str]]:
    """The labels of a metric's series that are not empty."""
    found = reading.samples.get(metric, {})
    assert set(found.values()) <= {1}
    return [{name: value for name, value in zip(metric.labels, labels, strict=True) if value} for labels in found]


def values(reading: Reading, metric: Any) -> dict[str, Any]:
    return {labels[0]: value for labels, value in reading.samples.get(metric, {}).items()}


# The node


def test_the_node_has_its_name_and_kernel(node: Node, monkeypatch: pytest.MonkeyPatch):
    for name in ("NODE_NAME", "WHYIDLE_NODE"):
        monkeypatch.delenv(name, raising=False)
    arch = os.uname().machine
    assert series(node.scrape(), metrics.NODE) == [
        {"node": "gpu-node-17", "kernel": "6.8.0-1021-nvidia", "arch": arch},
    ]
    monkeypatch.setenv("NODE_NAME", "ip-10-0-0-7")
    assert series(node.scrape(), metrics.NODE)[0]["node"] == "ip-10-0-0-7"


def test_reads_this_machine():
    reading = Reading()
    with tempfile.TemporaryDirectory() as folder:
        identity.create(Options(LedgerStore(folder, 60.0))).collect(reading)
    assert series(reading, metrics.NODE)[0]["kernel"] == os.uname().release
    assert not reading.errors


# GPUs and other devices


def test_gpus_and_devices_have_their_pods(node: Node):
    with serve(Path(node.roots.rootfs, SOCKET)):
        reading = node.scrape()
    llama = {"namespace": "research", "container": "trainer", "resource": "nvidia.com/gpu"}
    shared = {"namespace": "notebooks", "container": "notebook", "resource": "nvidia.com/gpu.shared"}
    assert series(reading, metrics.GPU_POD) == [
        {"uuid": gpu(0), "pod": "llama-0", **llama},
        {"uuid": gpu(1), "pod": "llama-0", **llama},
        {"uuid": gpu(2), "pod": "llama-1", **llama},
        {"uuid": gpu(3), "pod": "jupyter-ann", **shared},
        {"uuid": gpu(3), "pod": "jupyter-bob", **shared},
        {"uuid": mig(4), "pod": PODS[4].name, "namespace": "serving", "container": "server"}
        | {"resource": "nvidia.com/mig-1g.10gb"},
    ]
    assert [(one["resource"], one["device"], one["pod"]) for one in series(reading, metrics.DEVICE_POD)] == [
        ("rdma/hca_shared_devices_a", "1f", "llama-0"),
        ("vpc.amazonaws.com/efa", "rdmap0s6-rdma", "llama-1"),
        ("gpu.nvidia.com", "n1/gpu-5", "dra-0"),
    ]
    assert values(reading, metrics.ALLOCATABLE) == {name: len(devices) for name, devices in ALLOCATABLE.items()}
    assert values(reading, metrics.ALLOCATED)["nvidia.com/gpu.shared"] == 2
    assert values(reading, metrics.ALLOCATED)["rdma/hca_shared_devices_a"] == 1
    assert not reading.errors


@pytest.mark.usefixtures("asked_each_time")
def test_removes_pods_that_the_kubelet_no_longer_lists(node: Node):
    with serve(Path(node.roots.rootfs, SOCKET)) as server:
        assert len(series(node.scrape(), metrics.GPU_POD)) == 6
        server.answer(PODS[1:], ALLOCATABLE)
        assert {one["pod"] for one in series(node.scrape(), metrics.GPU_POD)} == {pod.name for pod in PODS[1:5]}
        server.answer((), {"nvidia.com/gpu": [gpu(0)]})
        reading = node.scrape()
        assert not series(reading, metrics.GPU_POD)
        assert values(reading, metrics.ALLOCATED) == {"nvidia.com/gpu": 0}
        server.answer(PODS, ALLOCATABLE, status="UNAVAILABLE")
        reading = node.scrape()
        assert reading.samples.keys() == {metrics.NODE}
        assert reading.errors == [ReadError("", "pod-resources List", "unavailable")]
        server.answer(PODS, ALLOCATABLE, allocatable_status="INTERNAL")
        reading = node.scrape()
        assert len(series(reading, metrics.GPU_POD)) == 6
        assert metrics.ALLOCATABLE not in reading.samples
        assert reading.errors == [ReadError("", "pod-resources GetAllocatableResources", "internal")]
        server.kill()
        assert node.scrape().samples.keys() == {metrics.NODE}


@pytest.mark.usefixtures("asked_each_time")
def test_devices_are_bounded_in_number(node: Node):
    many = [Pod("ns", f"pod-{n}", {"c": {"nvidia.com/gpu": [gpu(n)], "smarter/fuse": [str(n)]}}) for n in range(1500)]
    with serve(Path(node.roots.rootfs, SOCKET), many):
        reading = node.scrape()
    assert len(series(reading, metrics.GPU_POD)) == owners.MOST_DEVICES
    assert len(series(reading, metrics.DEVICE_POD)) == owners.MOST_DEVICES
    assert ReadError("", "pod-resources List", "huge") in reading.errors


def test_recognises_devices_by_file_number(node: Node):
    """Names as the device plugin of GKE uses them."""
    information = Path(node.roots.procfs, "driver/nvidia/gpus/0000:07:00.0/information")
    information.parent.mkdir(parents=True)
    information.write_text(
        f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 166\nGPU UUID: \t {gpu(6)}\nBus Type: \t PCIe\nDevice Minor: \t 3\n"
    )
    held = {"nvidia.com/gpu": ["nvidia3", "nvidia3/vgpu1", "nvidia4", "nvidia3/gi1"]}
    with serve(Path(node.roots.rootfs, SOCKET), [Pod("ns", "p", {"c": held})]):
        reading = node.scrape()
    assert [one["uuid"] for one in series(reading, metrics.GPU_POD)] == [gpu(6)]
    assert [one["device"] for one in series(reading, metrics.DEVICE_POD)] == ["nvidia4", "nvidia3/gi1"]


# Ranks


def test_reads_a_real_process_of_slurm(tmp_path: Path):
    variables = (f"{name}={value}" for name, value in SLURM.items())
    store = LedgerStore(str(tmp_path), 60.0)
    collector = identity.create(Options(store))
    with children(tmp_path, Spec(rank=3), launcher=["env", *variables]):
        store.look()
        reading = Reading()
        collector.collect(reading)
    assert series(reading, metrics.RANK_SLURM) == [
        {
            "owner": "lab",
            "run": "r1",
            "rank": "3",
            "slurm_cluster": "alps",
            "job_id": "81234",
            "job_name": "pretrain 7b",
            "user": "ann",
            "account": "nlp",
            "partition": "h200",
            "qos": "high",
            "array_job_id": "81230",
            "array_task_id": "4",
            "step": "0",
            "slurm_node": "nid001234",
            "evidence": "environment",
        }
    ]
    text = Exposition().render(METRIC.values(), [reading.samples], openmetrics=False)
    assert "hunter2" not in text
    store.look()
    reading = Reading()
    collector.collect(reading)
    assert metrics.RANK_SLURM not in reading.samples, "gone with the rank"
    assert not collector._known


def test_reads_a_rank_once(node: Node):
    with children(node.ledgers, Spec()) as (child,):
        folder = node.rank(child, SLURM, SLURM_CGROUP)
        before = series(node.scrape(), metrics.RANK_SLURM)
        assert before[0]["evidence"] == "cgroup"
        (folder / "environ").unlink()
        (folder / "cgroup").unlink()
        reading = node.scrape()
        assert series(reading, metrics.RANK_SLURM) == before
        assert not reading.errors


def test_a_rank_on_a_plain_host_has_neither_pod_nor_job(node: Node):
    with children(node.ledgers, Spec()) as (child,):
        node.rank(child, {"PATH": "/bin", "HOSTNAME": "ws1", "POD_NAME": "no-pod"}, PLAIN_CGROUP)
        reading = node.scrape()
        assert reading.samples.keys() == {metrics.NODE}
        assert not reading.errors


DOWNWARD = IN_POD | {"POD_NAME": "llama-0", "POD_NAMESPACE": "research", "POD_UID": UID, "JOBSET_NAME": "llama"}
LLAMA = {"namespace": "research", "pod": "llama-0"}
INSIDE = {"pod_uid": UID, "container_id": CONTAINER_ID}
TRAINER = {"container": "trainer"}
BARE = {"PATH": "/bin"}
SAID = {"workload": "llama", "evidence": "downward_api"}


@pytest.mark.parametrize(
    ("environment", "cgroup", "uuid", "logs", "listed", "expected"),
    [
        (DOWNWARD, POD_CGROUP, "", True, True, LLAMA | INSIDE | TRAINER | {"workload": "llama", "evidence": "cgroup"}),
        (BARE, POD_CGROUP, "", True, False, LLAMA | INSIDE | {"evidence": "cgroup"}),
        (BARE, POD_CGROUP, "", False, False, INSIDE | {"evidence": "cgroup"}),
        (BARE, POD_CGROUP, gpu(0), False, True, LLAMA | INSIDE | TRAINER | {"evidence": "pod_resources"}),
        (BARE, POD_CGROUP, gpu(0)[4:], False, True, LLAMA | INSIDE | TRAINER | {"evidence": "pod_resources"}),
        # The id of a shared GPU does not identify the pod.
        (BARE, POD_CGROUP, gpu(3), False, True, INSIDE | {"evidence": "cgroup"}),
        (
            {"HOSTNAME": "jupyter-bob"},
            POD_CGROUP,
            gpu(3),
            False,
            True,
            {"namespace": "notebooks", "pod": "jupyter-bob", "container": "notebook", "evidence": "pod_resources"}
            | INSIDE,
        ),
        (DOWNWARD, POD_CGROUP, "", False, False, LLAMA | INSIDE | SAID),
        (DOWNWARD, PLAIN_CGROUP, "", False, False, LLAMA | {"pod_uid": UID} | SAID),
        # The environment of another pod is not trusted.
        (DOWNWARD | {"POD_UID": "b" * 32}, POD_CGROUP, "", False, False, INSIDE | {"evidence": "cgroup"}),
        (IN_POD, POD_CGROUP, "", False, True, LLAMA | INSIDE | TRAINER | {"evidence": "hostname"}),
        # How a Job names its pods, and the host name of a pod in the node's network.
        (
            IN_POD | {"HOSTNAME": "small-5d4f9c7b8"},
            PLAIN_CGROUP,
            "",
            False,
            True,
            {"namespace": "serving", "pod": PODS[4].name, "container": "server", "evidence": "hostname"},
        ),
        (IN_POD | {"HOSTNAME": "gpu-node-17"}, POD_CGROUP, "", False, True, INSIDE | {"evidence": "cgroup"}),
        (IN_POD, PLAIN_CGROUP, "", False, False, None),
    ],
)
def test_finds_the_pod_of_a_rank(
    node: Node,
    environment: dict[str, str],
    cgroup: str,
    uuid: str,
    logs: bool,
    listed: bool,
    expected: dict[str, str] | None,
):
    if not logs:
        for folder in Path(node.roots.rootfs, "var/log/pods").iterdir():
            folder.rmdir()
    with children(node.ledgers, Spec(uuid=uuid)) as (child,):
        node.rank(child, environment, cgroup)
        if listed:
            with serve(Path(node.roots.rootfs, SOCKET)):
                reading = node.scrape()
        else:
            reading = node.scrape()
    wanted = [] if expected is None else [{"owner": "lab", "run": "r1", "rank": "0"} | expected]
    assert series(reading, metrics.RANK_POD) == wanted
    assert not reading.errors


@pytest.mark.usefixtures("asked_each_time")
def test_names_a_pod_as_soon_as_the_kubelet_lists_it(node: Node):
    for folder in Path(node.roots.rootfs, "var/log/pods").iterdir():
        folder.rmdir()
    with children(node.ledgers, Spec(uuid=gpu(0))) as (child,):
        node.rank(child, BARE, POD_CGROUP)
        assert "pod" not in series(node.scrape(), metrics.RANK_POD)[0]
        with serve(Path(node.roots.rootfs, SOCKET)):
            assert series(node.scrape(), metrics.RANK_POD)[0]["pod"] == "llama-0"
        assert "pod" not in series(node.scrape(), metrics.RANK_POD)[0]
        Path(node.roots.rootfs, f"var/log/pods/other_pod-x_{UID}").mkdir()
        assert series(node.scrape(), metrics.RANK_POD)[0]["pod"] == "pod-x"


def test_follows_ranks_that_come_and_go(node: Node):
    for number in range(3):
        with children(node.ledgers, Spec(rank=2 * number), Spec(rank=2 * number + 1)) as ranks:
            for child in ranks:
                node.rank(child, SLURM, SLURM_CGROUP)
            found = series(node.scrape(), metrics.RANK_SLURM)
            assert [one["rank"] for one in found] == [str(2 * number), str(2 * number + 1)]
            assert len(node.collector._known) == 2
    assert metrics.RANK_SLURM not in node.scrape().samples
    assert not node.collector._known


# What cannot be read


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_affects_only_its_own_series(node: Node, fault: str):
    class Forgetful:
        """The files of a rank are read once, so only a collector that has not read them can miss them."""

        def collect(self, reading: Reading) -> None:
            node.create().collect(reading)

    def of_rank(rank: str) -> Callable[[Series], bool]:
        return lambda one: one[0].startswith("whyidle_rank") and one[1][2] == rank

    kernel = Path(node.roots.procfs, "sys/kernel")
    with children(node.ledgers, Spec(rank=0), Spec(rank=1), Spec(rank=2)) as ranks:
        folders = [
            node.rank(ranks[0], SLURM, PLAIN_CGROUP),
            node.rank(ranks[1], BARE, POD_CGROUP),
            node.rank(ranks[2], SLURM, SLURM_CGROUP),
        ]
        node.store.look()
        for name in ("osrelease", "hostname"):
            check(
                Forgetful if fault in ("missing", "EINVAL") else node.create,  # the kernel does not remove these
                kernel / name,
                fault,
                lambda one: one[0] == "whyidle_node_info",
            )
        check(Forgetful, folders[0] / "environ", fault, of_rank("0"))
        check(Forgetful, folders[1] / "cgroup", fault, of_rank("1"))
        # One source has what the other lacks.
        check(Forgetful, folders[2] / "environ", fault, of_rank("2"), comes=of_rank("2"))
        check(Forgetful, folders[2] / "cgroup", fault, of_rank("2"), comes=of_rank("2"))


def test_retries_after_an_error(node: Node):
    with children(node.ledgers, Spec()) as (child,):
        folder = node.rank(child, SLURM, SLURM_CGROUP)
        sound = (folder / "environ").read_bytes()
        (folder / "environ").write_bytes(b"my own title\0\0\0\0")
        reading = node.scrape()
        assert reading.errors == [ReadError("lab/r1/0", "environ", "garbage")]
        assert series(reading, metrics.RANK_SLURM) == [
            {"owner": "lab", "run": "r1", "rank": "0", "job_id": "81234", "step": "0", "evidence": "cgroup"}
        ]
        (folder / "environ").write_bytes(sound)
        reading = node.scrape()
        assert not reading.errors
        assert series(reading, metrics.RANK_SLURM)[0]["user"] == "ann"


def test_a_process_that_ends_meanwhile_is_not_an_error(node: Node):
    with children(node.ledgers, Spec()) as (child,):
        folder = node.rank(child, SLURM, SLURM_CGROUP)
        node.store.look()
        options = Options(node.store, node.roots)
        assert options.processes.look()
        for path in sorted(folder.iterdir()):
            path.unlink()
        folder.rmdir()
        _, errors = read(identity.create(options))
        assert errors == Counter()


def as_nobody(look: Callable[[], Any]) -> Any:
    """What ``look`` finds as a user without any rights."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, json.dumps(look()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(answer)


@pytest.fixture
def open_node() -> Iterator[Node]:
    """A node whose files everybody can read."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Node(Path(folder))


def test_identifies_a_rank_by_cgroup_without_privileges(open_node: Node):
    pods = Path(open_node.roots.rootfs, SOCKET).parent
    pods.mkdir(parents=True)
    pods.chmod(0o750)  # as the kubelet creates it
    with children(open_node.ledgers, Spec()) as (child,):
        folder = open_node.rank(child, SLURM | IN_POD, SLURM_CGROUP + POD_CGROUP)
        (folder / "environ").chmod(0o400)

        def look() -> Any:
            first, again = open_node.scrape(), open_node.scrape()
            assert first.samples == again.samples
            found = [series(again, metric) for metric in (metrics.RANK_SLURM, metrics.RANK_POD, metrics.GPU_POD)]
            return found, again.errors, again.blind_spots

        (slurm, pod, gpus), errors, blind = as_nobody(look)
    rank = {"owner": "lab", "run": "r1", "rank": "0", "evidence": "cgroup"}
    assert slurm == [rank | {"job_id": "81234", "step": "0"}]
    assert pod == [rank | LLAMA | INSIDE]
    assert gpus == errors == []
    assert sorted(blind) == sorted([list(identity.PODS_HIDDEN), list(identity.ENVIRONMENTS_HIDDEN)])


def test_reports_a_real_process_of_another_user_as_hidden(open_node: Node):
    with children(open_node.ledgers, Spec()):

        def look() -> Any:
            open_node.store.look()
            reading = Reading()
            identity.create(Options(open_node.store)).collect(reading)
            return reading.errors, reading.blind_spots

        errors, blind = as_nobody(look)
    assert errors == []
    assert blind == [list(identity.ENVIRONMENTS_HIDDEN)]


def test_reports_a_socket_without_permission(open_node: Node):
    path = Path(open_node.roots.rootfs, SOCKET)
    with serve(path):
        path.resolve().parent.chmod(0o755)
        path.resolve().chmod(0o700)

        def look() -> Any:
            reading = open_node.scrape()
            return reading.errors, reading.blind_spots

        assert as_nobody(look) == [[], [list(identity.PODS_HIDDEN)]]


# The parsers


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (POD_CGROUP, (UID, CONTAINER_ID)),
        (f"0::/kubepods/besteffort/pod{UID}/{CONTAINER_ID}\n", (UID, CONTAINER_ID)),
        (f"12:cpu:/\n9:memory:/kubepods/burstable/pod{UID}/{CONTAINER_ID}\n0::/\n", (UID, CONTAINER_ID)),
        (
            f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{CONTAINER_ID}.scope\n",
            (UID, CONTAINER_ID),
        ),
        (f"0::/kubepods/pod{UID}/docker-{CONTAINER_ID}.scope/inner\n", (UID, CONTAINER_ID)),
        # From inside a cgroup namespace; runc with systemd under a containerd without it; a static pod.
        (f"0::/../../pod{UID}/{CONTAINER_ID}\n", (UID, CONTAINER_ID)),
        (f"0::/system.slice/kubepods-burstable-pod{UID}.slice:cri-containerd:{CONTAINER_ID}\n", (UID, CONTAINER_ID)),
        (f"0::/kubepods/pod{'a1' * 16}/{CONTAINER_ID}\n", ("a1" * 16, CONTAINER_ID)),
        (f"0::/kubepods/pod{UID}\n", (UID, "")),
        (f"0::/docker/{CONTAINER_ID}\n", ("", "")),
        (PLAIN_CGROUP, ("", "")),
        ("0::/kubepods/podracer/1\n", ("", "")),
        ("", ("", "")),
    ],
)
def test_parses_cgroups_of_pods(cgroup: str, expected: tuple[str, str]):
    assert pod_cgroup(cgroup.encode()) == expected


@pytest.mark.parametrize(
    ("cgroup", "job", "step"),
    [
        (SLURM_CGROUP, "81234", "0"),
        ("0::/system.slice/nid7_slurmstepd.scope/job_7/step_batch/user/task_special\n", "7", "batch"),
        ("9:memory:/slurm/uid_1000/job_7/step_interactive\n", "7", "interactive"),
        ("9:memory:/slurm_nid7/uid_1000/job_7\n", "7", ""),
    ],
)
def test_parses_cgroups_of_slurm(cgroup: str, job: str, step: str):
    found = slurm_job({}, cgroup.encode())
    assert found
    assert (found.job_id, found.step, found.evidence) == (job, step, "cgroup")


def test_the_cgroup_takes_precedence_over_the_environment():
    found = slurm_job({"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "stale"}, SLURM_CGROUP.encode())
    assert found
    assert (found.job_id, found.job_name) == ("81234", "")
    assert slurm_job({"SLURM_JOB_ID": "one"}, b"") is None
    assert slurm_job({}, b"0::/jobs/job_7\n") is None


@pytest.mark.parametrize(
    ("device", "uuid"),
    [
        (gpu(1), gpu(1)),
        (f"{gpu(1)}::12", gpu(1)),
        (f"{gpu(1)}-3", gpu(1)),
        (mig(1), mig(1)),
        (f"{mig(1)}::0", mig(1)),
        (f"MIG-{gpu(1)}/7/0", f"MIG-{gpu(1)}/7/0"),
        ("nvidia3", gpu(9)),
        ("nvidia3/vgpu0", gpu(9)),
        ("nvidia4", None),
        ("0", None),
        ("0000:c1:00.0", None),
        ("GPU-1", None),
        (f"{gpu(1)}\n", None),
    ],
)
def test_parses_ids_of_device_plugins(device: str, uuid: str | None):
    assert gpu_uuid(device, {3: gpu(9)}) == uuid


def test_parses_log_directories():
    assert pod_of_log_directory(f"ns_pod-0_{UID}") == (UID, ("ns", "pod-0"))
    for name in ("ns_pod", "ns__uid", "lost+found", "a_b_c_d", ""):
        assert pod_of_log_directory(name) is None


def test_a_gpu_that_was_never_used_has_no_uuid():
    unknown = b"GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n"
    assert minor_and_uuid(unknown) is None


def test_an_environment_is_cleaned():
    found = environ(b"A=one\0B=\0A=two\0C=\xff\n\x1b[31m\0D=" + b"x" * 1000 + b"\0SECRET=s", ("A", "B", "C", "D"))
    assert found.pop("D") == "x" * 128
    assert found == {"A": "one", "C": "\ufffd\ufffd\ufffd[31m"}


@given(st.binary(max_size=200))
def test_any_bytes_make_a_label(raw: bytes):
    assert label(raw).isprintable()
    try:
        environ(raw, ("A",))
    except Unreadable:
        pass
    pod_cgroup(raw)
    slurm_job({}, raw)
    minor_and_uuid(raw)

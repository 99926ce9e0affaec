"""The example manifests: a cluster would accept them, and their pod works on this machine."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support_sites import TORCH_ABORTED, WHYIDLE, bare_python, clean_env, report
from support_training import LIMIT_SECONDS, metrics, until
from support_yaml import read_yaml

import whyidle

pytest.importorskip("helm_python", reason="Helm's engine: pip install helm-python-sdk")

from support_sidecar import check, check_custom, check_pod, environment, job, named, pod_of

EXAMPLES = Path(whyidle.__file__).parent / "examples"

Map = dict[str, Any]


def manifest(name: str) -> Map:
    return read_yaml((EXAMPLES / name).read_text())


def pods(owner: Map) -> list[Map]:
    """The pod templates of a Job, a JobSet or a PyTorchJob, each validated as the resulting Job or Pod."""
    if owner["kind"] == "Job":
        check(owner)
        return [pod_of(owner)]
    check_custom(owner)
    spec = owner["spec"]
    if owner["kind"] == "JobSet":
        jobs = [one["template"] for one in spec["replicatedJobs"]]
        for one in jobs:
            check({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": one["spec"]})
        return [pod_of(one) for one in jobs]
    templates = [one["template"] for one in spec["pytorchReplicaSpecs"].values()]
    for template in templates:
        check_pod(template)
    return templates


SET_BY_OTHERS = re.compile(r"\$\((JOB_COMPLETION_INDEX|RANK|MASTER_ADDR|MASTER_PORT)\)")
"""Variables that the Job controller and the training operator set in a container. The kubelet substitutes them in the
command."""
RUN_LABELS = {
    "job.yaml": "batch.kubernetes.io/job-name",
    "jobset.yaml": "jobset.sigs.k8s.io/jobset-name",
    "pytorchjob.yaml": "training.kubeflow.org/job-name",
}


@pytest.mark.parametrize("name", RUN_LABELS)
def test_manifests_have_the_pieces_of_the_chart(name: str, tmp_path: Path) -> None:
    ours = pod_of(job(tmp_path, whyidle={"sidecar": {"run": {"label": RUN_LABELS[name]}}}))
    for template in pods(manifest(name)):
        assert template["metadata"] == ours["metadata"]
        assert template["spec"]["initContainers"] == ours["spec"]["initContainers"]
        assert template["spec"]["volumes"] == ours["spec"]["volumes"]
        [mine], [theirs] = template["spec"]["containers"], ours["spec"]["containers"]
        assert {**mine, "name": "", "command": []} == {**theirs, "name": "", "command": []}


def test_the_plain_job_is_what_the_example_chart_renders(tmp_path: Path) -> None:
    assert manifest("job.yaml") == job(tmp_path)


def test_the_job_for_kyverno_is_the_plain_one_without_our_pieces() -> None:
    [bare], [full] = pods(manifest("job-kyverno.yaml")), pods(manifest("job.yaml"))
    [trainer], [theirs] = bare["spec"]["containers"], full["spec"]["containers"]
    assert bare["metadata"]["annotations"] == {"whyidle.dev/inject": trainer["name"]}
    ours = ("env", "volumeMounts")
    assert trainer == {**{k: v for k, v in theirs.items() if k not in ours}, "volumeMounts": trainer["volumeMounts"]}
    assert all(one in theirs["volumeMounts"] for one in trainer["volumeMounts"])


@pytest.mark.parametrize("name", [*RUN_LABELS, "job-kyverno.yaml"])
def test_torchrun_accepts_the_command(name: str) -> None:
    from torch.distributed.run import parse_args

    for template in pods(manifest(name)):
        [container] = template["spec"]["containers"]
        assert container["command"][0] == "torchrun"
        words = [SET_BY_OTHERS.sub("1", word) for word in container["command"][1:]]
        assert "$(" not in " ".join(words)
        args = parse_args(words)
        assert (EXAMPLES / Path(args.training_script).name).is_file()
        gpus = container["resources"]["limits"]["nvidia.com/gpu"]
        assert args.nproc_per_node == str(gpus)


# -- a pod, as it is rendered


@pytest.fixture
def pod(tmp_path: Path) -> Map:
    """The Job's pod for two processes, with its volumes in ``tmp_path``."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sidecar = {
        "port": port,
        "hooks": {"path": str(tmp_path / "hooks"), "imagePythonPath": str(tmp_path / "image")},
        "ledgers": {"path": str(tmp_path / "ledgers")},
    }
    return pod_of(job(tmp_path / "charts", {"gpus": 2}, {"sidecar": sidecar}))


@pytest.mark.long
def test_records_a_pod_whose_image_has_no_whyidle(pod: Map, tmp_path: Path) -> None:
    """Runs the init container, the sidecar and the training as rendered, but with other paths. There is a verdict, and
    /metrics has the ranks.

    (Other users, mounts and namespaces: tests/helm/test_pod.py.)
    """
    spec = pod["spec"]
    python = bare_python(tmp_path / "venv", torch=True)
    for folder in ("ledgers", "image"):
        (tmp_path / folder).mkdir()
    (tmp_path / "image" / "sitecustomize.py").write_text("import os\nos.environ['OWN_SITE'] = 'ran'\n")
    (tmp_path / "image" / "of_the_image.py").write_text("")
    assert subprocess.run(
        [python, "-c", "import whyidle"], env=clean_env(), capture_output=True, check=False
    ).returncode

    hooks = named(spec["initContainers"], "whyidle-hooks")
    subprocess.run([*WHYIDLE, *hooks["args"]], env=clean_env(), check=True, timeout=120, stdout=subprocess.DEVNULL)

    trainer = named(spec["containers"], "trainer")
    fields = {
        "spec.nodeName": "gpu-7",
        "metadata.namespace": "team",
        "metadata.labels['batch.kubernetes.io/job-name']": "train",
    }
    kubelets = environment(trainer, fields)
    base = {"PATH": f"{python.parent}:/usr/bin:/bin", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words = [word.replace("/train/", f"{EXAMPLES}/") for word in trainer["command"]]
    seen = "import os, of_the_image, sys; print(os.environ['OWN_SITE'], 'whyidle' in sys.modules)"
    told = subprocess.run(
        [python, "-c", seen], env=base | kubelets, capture_output=True, text=True, timeout=60, check=False
    )
    assert (told.stdout, told.stderr) == ("ran False\n", ""), "the image's own, and nothing of ours before torch"

    agent = named(spec["initContainers"], "whyidle")
    with subprocess.Popen([*WHYIDLE, *agent["args"]], env=clean_env(), stderr=subprocess.DEVNULL) as sidecar:
        try:
            for _ in range(3):
                done = subprocess.run(
                    [*words, "--steps", "30", "--batch", "8"],
                    env=base | kubelets,
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_SECONDS,
                    check=False,
                )
                if TORCH_ABORTED not in done.stderr:
                    break
            assert done.returncode == 0, done.stderr
            address = f"http://127.0.0.1:{agent['ports'][0]['containerPort']}/metrics"
            ranks = until(lambda: _ranks(address))
        finally:
            sidecar.kill()
    assert sorted((one["run"], one["rank"], one["node"]) for one in ranks) == [
        ("train", "0", "gpu-7"),
        ("train", "1", "gpu-7"),
    ]
    said = report(tmp_path / "ledgers")
    assert (said["owner"], said["run"]) == ("team", "train")
    assert said["verdict"]["family"]


def _ranks(address: str) -> list[dict[str, str]]:
    try:
        return [labels for labels, _ in metrics(address, "whyidle_rank_info")]
    except OSError:
        time.sleep(0.1)
        return []

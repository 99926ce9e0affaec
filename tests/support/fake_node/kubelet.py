"""A simulated kubelet: a gRPC server of the pod-resources API in a separate process, and the files of a kubelet, the
kernel and Slurm that show which pod or job a process belongs to.

``python kubelet.py SOCKET`` is that process. It reads from lines of JSON what to answer. The messages are written by
hand, so that they do not depend on protoc or on the agent's own decoder.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whyidle.agent.files import Roots

SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"
DEADLINE_SECONDS = 240.0


@dataclass
class Pod:
    """A pod as the kubelet lists it: container -> resource -> device ids. Claims are driver -> pool/device."""

    namespace: str
    name: str
    containers: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    claims: dict[str, list[str]] = field(default_factory=dict)  # of the first container


def gpu(number: int) -> str:
    """The UUID of a GPU, by a number."""
    return f"GPU-{number:08x}-1111-2222-3333-444455556666"


def mig(number: int) -> str:
    return f"MIG-{number:08x}-aaaa-bbbb-cccc-ddddeeeeffff"


UID = "7f4c9a52-0b1d-4d0e-9c53-2f1f8e6ab301"
CONTAINER_ID = "c0ffee" + "5" * 58

PODS: tuple[Pod, ...] = (
    Pod(
        "research",
        "llama-0",
        {
            "trainer": {"nvidia.com/gpu": [gpu(0), gpu(1)], "rdma/hca_shared_devices_a": ["1f"]},
            "log-shipper": {},
        },
    ),
    Pod("research", "llama-1", {"trainer": {"nvidia.com/gpu": [gpu(2)], "vpc.amazonaws.com/efa": ["rdmap0s6-rdma"]}}),
    Pod("notebooks", "jupyter-ann", {"notebook": {"nvidia.com/gpu.shared": [f"{gpu(3)}::0"]}}),
    Pod("notebooks", "jupyter-bob", {"notebook": {"nvidia.com/gpu.shared": [f"{gpu(3)}::3"]}}),
    Pod("serving", "small-5d4f9c7b8-xk2lp", {"server": {"nvidia.com/mig-1g.10gb": [mig(4)]}}),
    Pod("serving", "dra-0", {"server": {}}, {"gpu.nvidia.com": ["n1/gpu-5"]}),
    Pod("kube-system", "coredns-abcde", {"coredns": {}}),
)
ALLOCATABLE: dict[str, list[str]] = {
    "nvidia.com/gpu": [gpu(0), gpu(1), gpu(2)],
    "nvidia.com/gpu.shared": [f"{gpu(3)}::{replica}" for replica in range(4)],
    "nvidia.com/mig-1g.10gb": [mig(4), mig(5)],
    "rdma/hca_shared_devices_a": [f"{number:x}" for number in range(63)],
}


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def part(number: int, content: bytes | str) -> bytes:
    """A field of a message that has a length."""
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def _devices(number: int, resources: Mapping[str, Sequence[str]]) -> bytes:
    """One ContainerDevices for each device, with its NUMA node, as in the kubelet."""
    topology = part(3, part(1, varint(1 << 3) + varint(1)))
    return b"".join(
        part(number, part(1, resource) + part(2, device) + topology)
        for resource, devices in resources.items()
        for device in devices
    )


def _claims(claims: Mapping[str, Sequence[str]]) -> bytes:
    found = b""
    for driver, devices in claims.items():
        for pool, _, device in (one.partition("/") for one in devices):
            cdi = part(1, part(1, f"k8s.{driver}/claim=c1-{device}"))
            claimed = cdi + part(2, driver) + part(3, pool) + part(4, device)
            found += part(5, part(2, "claim-1") + part(3, "serving") + part(4, claimed))
    return found


def list_response(pods: Sequence[Pod]) -> bytes:
    """A ListPodResourcesResponse."""
    message = b""
    for pod in pods:
        containers = b""
        for at, (name, resources) in enumerate(pod.containers.items()):
            cpus = part(3, b"".join(map(varint, range(8)))) + part(
                4, part(1, "memory") + varint(2 << 3) + varint(1 << 40)
            )
            containers += part(3, part(1, name) + _devices(2, resources) + cpus + (b"" if at else _claims(pod.claims)))
        message += part(1, part(1, pod.name) + part(2, pod.namespace) + containers)
    return message


def allocatable_response(resources: Mapping[str, Sequence[str]]) -> bytes:
    """An AllocatableResourcesResponse."""
    return _devices(1, resources) + part(2, b"".join(map(varint, range(96))))


class Kubelet:
    """The running server, as a test sees it."""

    def __init__(self, path: Path):
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answered()

    def answer(
        self,
        pods: Sequence[Pod] = (),
        allocatable: Mapping[str, Sequence[str]] | None = None,
        *,
        raw: bytes | None = None,
        status: str = "",
        allocatable_status: str = "",
        seconds: float = 0.0,
    ) -> None:
        """What to answer from now on: these pods, this message, or the gRPC status with that name, and after what
        delay."""
        message = {
            "list": (list_response(pods) if raw is None else raw).hex(),
            "allocatable": allocatable_response(allocatable or {}).hex(),
            "status": status,
            "allocatable_status": allocatable_status,
            "seconds": seconds,
        }
        self._say(message)

    def calls(self) -> int:
        """How often List has been called."""
        return self._say({})

    def kill(self) -> None:
        """Ends it like a crash: its socket stays."""
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _say(self, message: dict[str, Any]) -> int:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return self._answered()

    def _answered(self) -> int:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the kubelet did not start"
        return int(line)


@contextlib.contextmanager
def serve(
    socket_path: str | Path, pods: Sequence[Pod] = PODS, allocatable: Mapping[str, Sequence[str]] = ALLOCATABLE
) -> Iterator[Kubelet]:
    """A kubelet whose socket is at ``socket_path``: a link to it, for the address of a socket holds 107 bytes."""
    path = Path(socket_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        real = Path(folder, "kubelet.sock")
        kubelet = Kubelet(real)
        kubelet.answer(pods, allocatable)
        path.symlink_to(real)
        try:
            yield kubelet
        finally:
            path.unlink(missing_ok=True)
            kubelet.close()


def _main(path: str) -> None:
    import grpc

    now: dict[str, Any] = {}
    calls = 0
    ending = threading.Event()

    def handler(what: str, status_of: str) -> Any:
        def handle(request: bytes, context: Any) -> bytes:
            nonlocal calls
            calls += what == "list"
            ending.wait(now["seconds"])
            if now[status_of]:
                context.abort(grpc.StatusCode[now[status_of]], "as told")
            return bytes.fromhex(now[what])

        return grpc.unary_unary_rpc_method_handler(handle)  # no (de)serializers: the messages are bytes

    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_send_message_length", -1)])
    methods = {
        "List": handler("list", "status"),
        "GetAllocatableResources": handler("allocatable", "allocatable_status"),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods)])
    server.add_insecure_port(f"unix:{path}")
    server.start()
    print(0, flush=True)
    for line in sys.stdin:
        now.update(json.loads(line))
        print(calls, flush=True)
    ending.set()
    server.stop(None)


def process(roots: Roots, pid: int, environment: Mapping[str, str], cgroup: str) -> None:
    """What the kernel shows of a process: what it was started with, and where it was put."""
    folder = Path(roots.procfs, str(pid))
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("environ").write_bytes(
        b"".join(f"{name}={value}\0".encode() for name, value in environment.items())
    )
    folder.joinpath("cgroup").write_text(cgroup)


def build(roots: Roots) -> None:
    """The node's own name and kernel, and the kubelet's log directories of its pods."""
    kernel = Path(roots.procfs, "sys/kernel")
    kernel.mkdir(parents=True, exist_ok=True)
    kernel.joinpath("osrelease").write_text("6.8.0-1021-nvidia\n")
    kernel.joinpath("hostname").write_text("gpu-node-17\n")
    logs = Path(roots.rootfs, "var/log/pods")
    for number, pod in enumerate(PODS):
        uid = UID if pod.name == "llama-0" else f"{number:08x}{UID[8:]}"
        logs.joinpath(f"{pod.namespace}_{pod.name}_{uid}").mkdir(parents=True, exist_ok=True)


if __name__ == "__main__":
    _main(sys.argv[1])

"""The whole simulated node with an agent: the trees of all parts, the libraries, a kubelet, two live ranks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support_agent import Agent
from support_ledgers import SECOND, Spec, children

from whyidle.agent.files import Roots
from whyidle.ledger.links import SHAPERS, link_text
from whyidle.ledger.mounts import LIMITS, mount_text

from . import clock, cpu, kernel, kubelet, nic, numa, nvml, processes, qdisc, rdma, storage
from .nvml_values import own

NODE = "gpu-node-17"
SHORTAGE = {"cpu_asked_ns": 32 * SECOND, "cpu_stolen_ns": 4 * SECOND, "cpu_queued_ns": SECOND // 4}
"""The CPU time that each rank did not get."""
GIVEN = {
    "cpus_node": 64,
    "cpus_allowed": 16,
    "cpu_quota_milli": 4000,
    "used_cpu_ns": 30 * SECOND,
    "memory_at_ns": 1,
    "memory_of": 2,
    "memory_used_bytes": 61 << 30,
    "memory_limit_bytes": 64 << 30,
}
"""What each rank was given, and uses."""

MOUNTS: list[dict[str, Any]] = [
    {
        "text": mount_text("/mnt/data sets", "imagenet", "nfs", "nfs1.cluster:/export/data sets"),
        "data_ns": SECOND,
        "own_ns": SECOND // 4,
        "bytes": 60_000_000,
        "measured_ns": 8 * SECOND,
        "counted": 1,
    },
    {
        "text": mount_text("/ckpt", "", "ext4", "/dev/nvme1n1"),
        "save_ns": 2 * SECOND,
        "bytes": 64_000_000,
        "measured_ns": 8 * SECOND,
        "limit": 8_000_000,
        "limit_by": LIMITS.index("io.max"),
    },
]
_CARRIED = {"up": 1, "sent": 1 << 30, "received": 1 << 30, "wait_bytes": 1 << 29, "wait_ns": 4 * SECOND}
LINKS: list[dict[str, Any]] = [
    {
        "link": link_text("tcp", "eth0", "10.0.0.17/24"),
        **_CARRIED,
        "speed": 10_000_000_000,
        "limit": 4_000_000_000,
        "limit_by": SHAPERS.index("tbf"),
        "segments": 1 << 20,
        "resent": 1 << 12,
    },
    {"link": link_text("rdma", "mlx5_0/1", ""), "up": 1, "all": 1 << 31, "connections": 8, "speed": 400_000_000_000},
    {"link": link_text("tcp", "eth1", "10.1.0.17/24"), "up": 1, "speed": 25_000_000_000},
]
"""Where each rank was blocked, and what its connections carried."""


@dataclass
class Whole:
    roots: Roots
    gpus: nvml.Node
    ledgers: Path
    environment: Mapping[str, str]

    @contextlib.contextmanager
    def agent(self, *flags: str) -> Iterator[Agent]:
        """A real agent that sees this node and nothing of the machine."""
        paths = [f"--path.{name}={getattr(self.roots, name)}" for name in ("procfs", "sysfs", "rootfs")]
        command = [
            "env",
            *(f"{name}={value}" for name, value in self.environment.items()),
            *(sys.executable, "-m", "whyidle.cli.main", "agent", "--web.listen-address=127.0.0.1:0"),
            *(f"--ledger.dir={self.ledgers}", *paths, *flags),
        ]
        with contextlib.closing(Agent(command)) as running:
            yield running


@contextlib.contextmanager
def whole(folder: Path) -> Iterator[Whole]:
    """Creates the node in ``folder``. Its ranks live until the end of the block."""
    roots = Roots(*(str(folder / name) for name in ("proc", "sys", "root")))
    for root in (roots.procfs, roots.sysfs, roots.rootfs):
        Path(root).mkdir()
    for part in (rdma, nic, storage, cpu, processes, clock, kubelet, numa):
        part.build(roots)
    storage.write(Path(roots.procfs, "1/mountinfo"), storage.MOUNTINFO)
    kernel.write(folder / "kernel", nic.SCRIPT, clock.SCRIPT, qdisc.script())
    gpus = nvml.Node(folder)
    gpus.gpu(5, architecture=7, gpm=0, retired_pending=0, field29=2, field30=1)  # from before GPM
    for number, pid in enumerate(processes.RANKS):
        kubelet.process(roots, pid, _environment(number), processes.CGROUP)
        _own_network(Path(roots.procfs, str(pid), "net"))
    ledgers = folder / "ledgers"
    ledgers.mkdir()
    environment = {**gpus.environment(), **kernel.environment(folder / "kernel"), "NODE_NAME": NODE}
    with contextlib.ExitStack() as stack:
        stack.enter_context(kubelet.serve(Path(roots.rootfs, kubelet.SOCKET), _pods()))
        stack.enter_context(children(ledgers, *_specs()))
        yield Whole(roots, gpus, ledgers, environment)


def _uuid(gpu: int) -> str:
    return str(own(gpu)["uuid"])


def _specs() -> list[Spec]:
    """Rank 1 is late because of reads. Both ranks have GPUs of the node."""
    steps = ({"compute": 0.0625, "straggler": 0.03125}, {"compute": 0.0625, "data_read": 0.03125})
    return [
        replace(
            spec,
            run="llama",
            node=NODE,
            device=f"cuda:{spec.rank}",
            uuid=_uuid(spec.rank),
            steps=64,
            step=step,
            op_bytes={"all_reduce": 1 << 30},
            late={"storage": 64 * step.get("data_read", 0.0)},
            waited_for={"storage": 64 * step.get("straggler", 0.0)},
            late_steps=64 if "data_read" in step else 0,
            words={**spec.words, **SHORTAGE, **GIVEN, "slot_op_bytes": 1 << 30},
            slots=[{"key": 17, "size": 2}],
            mounts=MOUNTS,
            links=LINKS,
            groups=[("dp", {"straggler": 64 * step.get("straggler", 0.0)}, 64), ("unknown", {}, 1)],
        )
        for spec, step in zip(processes.specs(), steps, strict=True)
    ]


def _own_network(folder: Path) -> None:
    """The pod's own network namespace. The other end of its interface is one of the node's veths."""
    folder.mkdir()
    folder.joinpath("dev").write_text(nic.net_dev((nic.Fake("eth0", counts=tuple(range(101, 117))),)))
    folder.joinpath("snmp").write_text(nic.SNMP)
    folder.joinpath("netstat").write_text(nic.NETSTAT)


def _pods() -> list[kubelet.Pod]:
    return [
        kubelet.Pod(
            "research", "llama-0", {"trainer": {"nvidia.com/gpu": [_uuid(0), _uuid(1)], "rdma/hca": ["mlx5_0"]}}
        ),
        kubelet.Pod("notebooks", "jupyter-ann", {"notebook": {"nvidia.com/gpu.shared": [f"{_uuid(3)}::0"]}}),
    ]


def _environment(rank: int) -> dict[str, str]:
    if rank == 0:
        return {"POD_NAME": "llama-0", "POD_NAMESPACE": "research", "SECRET": "nobody may see this"}
    return {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "llama", "SLURM_JOB_USER": "ann", "SLURM_JOB_PARTITION": "h100"}

"""RDMA ports of captured trees, and why a process does not use them. No real adapter has been tried."""

from __future__ import annotations

import resource
from itertools import count
from pathlib import Path

import pytest
from fake_node import rdma as fake

from whyidle.agent.files import Roots
from whyidle.ledger.links import RDMA_MISSING
from whyidle.torch_hooks.links import rdma
from whyidle.torch_hooks.links.rdma import Port, fits, missing, moved_bytes, ports

PORTS = [
    Port("mlx5_0", 1, True, 400_000_000_000, "eth0", ""),
    Port("mlx5_1", 1, False, 0, "eth1", ""),
    Port("mlx5_10", 2, True, 200_000_000_000, "", "fe80:0000:0000:0000"),
]


@pytest.fixture
def adapters(tmp_path: Path) -> str:
    fake.build(Roots(sysfs=str(tmp_path)))
    return str(tmp_path / "class/infiniband")


def test_ports_of_each_vendor(adapters: str) -> None:
    found = {port.name: port for port in ports(adapters)}
    assert len(found) == 14
    assert found["mlx5_0/1"][2:4] == (True, 400_000_000_000)
    assert found["mlx5_2/1"].interface == "eth2"
    assert found["mlx5_4/1"][2:4] == (False, 0)
    assert found["mlx4_0/2"][1:4] == (2, True, 40_000_000_000)
    assert found["rdmap16s27/1"].bits_per_second == 100_000_000_000


def test_counts_what_anybody_moves(tmp_path: Path) -> None:
    for index, hca in enumerate(fake.hcas()[:1] + fake.hcas()[6:7]):
        fake.build_hca(Roots(sysfs=str(tmp_path / str(index))), hca, count(1))
    root = tmp_path / "0/class/infiniband"
    folder = root / "mlx5_0/ports/1/counters"
    data = sum(int((folder / name).read_text()) for name in ("port_xmit_data", "port_rcv_data"))
    assert moved_bytes(ports(str(root))[0], str(root)) == 4 * data  # words of four bytes
    root = tmp_path / "1/class/infiniband"
    folder = root / "rdmap16s27/ports/1/hw_counters"
    data = sum(int((folder / name).read_text()) for name in ("tx_bytes", "rx_bytes"))
    assert moved_bytes(ports(str(root))[0], str(root)) == data
    assert moved_bytes(PORTS[0], str(root)) is None


def test_a_node_without_adapters_lacks_nothing(tmp_path: Path) -> None:
    assert ports(str(tmp_path)) == []
    assert missing([], gloo=True, cuda=False) == 0


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        ("", {"mlx5_0", "mlx5_1", "mlx5_10"}),
        ("mlx5", {"mlx5_0", "mlx5_1", "mlx5_10"}),
        ("mlx5_1", {"mlx5_1", "mlx5_10"}),  # a prefix
        ("=mlx5_1", {"mlx5_1"}),
        ("^mlx5_1", {"mlx5_0"}),
        ("^=mlx5_1", {"mlx5_0", "mlx5_10"}),
        ("=mlx5_0,mlx5_10:2", {"mlx5_0", "mlx5_10"}),
        ("mlx5_10:1", set()),
        ("mlx4_0", set()),
    ],
)
def test_which_ports_nccl_may_use(wanted: str, allowed: set[str]) -> None:
    assert {port.device for port in PORTS if fits(port, wanted)} == allowed


@pytest.fixture
def able(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a container in which nothing is missing."""
    for file, text in {
        "dev/infiniband/uverbs0": "",
        "etc/ld.so.cache": "glibc-ld.so.cache1.1 libibverbs.so.1 /usr/lib/libibverbs.so.1",
        "proc/self/status": "Name:\tpython\nCapEff:\t0000000000000000\n",
        "proc/modules": "nvidia_peermem 16384 0 - Live 0x0\nnvidia 1 0 - Live 0x0\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    limit_memory(monkeypatch, resource.RLIM_INFINITY)
    return tmp_path


def limit_memory(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(rdma.resource, "getrlimit", lambda which: (limit, limit))


def told(root: Path, *, found: list[Port] = PORTS, gloo: bool = False, cuda: bool = True, **env: str) -> set[str]:
    bits = missing(found, gloo, cuda, env, str(root))
    return {why for bit, why in enumerate(RDMA_MISSING) if bits >> bit & 1}


def test_nothing_is_missing(able: Path) -> None:
    assert told(able) == set()
    assert told(able, NCCL_IB_DISABLE="0", NCCL_NET="IB", NCCL_IB_HCA="=mlx5_0") == set()


def test_variables_of_nccl(able: Path) -> None:
    assert told(able, NCCL_IB_DISABLE="1") == {"NCCL_IB_DISABLE"}
    assert told(able, NCCL_NET="Socket") == {"NCCL_NET"}
    assert told(able, NCCL_IB_HCA="=mlx5_1") == {"NCCL_IB_HCA"}  # this port is down
    assert told(able, gloo=True, cuda=False, NCCL_IB_DISABLE="1") == {"backend"}


def test_what_the_container_lacks(able: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (able / "dev/infiniband/uverbs0").unlink()
    (able / "etc/ld.so.cache").write_text("")
    monkeypatch.setattr(rdma, "_LIBRARY_FOLDERS", ("/usr/lib",))
    assert told(able) == {"devices", "libibverbs"}
    (able / "opt").mkdir()
    (able / "opt/libibverbs.so.1").write_text("")
    assert told(able, LD_LIBRARY_PATH="/none:/opt") == {"devices"}


def test_limit_of_locked_memory(able: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch, 8 << 20)
    assert told(able) == {"memlock"}
    (able / "proc/self/status").write_text("CapEff:\t000000000000c000\n")  # CAP_IPC_LOCK lifts the limit
    assert told(able) == set()


def test_all_ports_down(able: Path) -> None:
    assert told(able, found=PORTS[1:2]) == {"port"}


def test_access_to_the_memory_of_gpus(able: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (able / "proc/modules").write_text("nvidia 1 0 - Live 0x0\n")
    assert told(able) == {"gpudirect"}
    assert told(able, cuda=False) == set()
    monkeypatch.setattr(rdma.platform, "release", lambda: "6.8.0-45-generic")
    (able / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550\n")
    assert told(able) == set()  # by dma-buf
    (able / "proc/modules").unlink()
    (able / "proc/driver/nvidia/version").unlink()
    assert told(able) == set()  # not known

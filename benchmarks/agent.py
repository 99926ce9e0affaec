"""Measures what the agent costs a node, compared with node_exporter in the same run.

    python benchmarks/agent.py [--json FILE] [--rounds N] [--scrapes N] [--only SECTION ...]

Three agents take turns in blocks of scrapes (A B C A B C ...). Each is scraped as Prometheus does it: over one
persistent connection, compressed.

    node_exporter   Debian's, with the collectors cpu, diskstats, netdev, netstat, infiniband, meminfo, pressure and nfs
    same            whyidle with the collectors that read the same: cpu, disk, nic, tcp, rdma, memory, pressure, nfs
    whole           whyidle with all collectors, on a node of 8 GPUs, 8 adapters and 8 ranks

node_exporter and `same` read this machine. `whole` reads this machine's /proc, a tree of 8 mlx5 adapters, and 8 GPUs of
a C library that replaces NVML's, through the real binding. So the time of the driver itself is not included. CPU time
is that of the process in /proc/<pid>/stat. This is not a test: nothing passes or fails.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.client
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "tests" / "support"))  # the fake node

NODE_EXPORTER = "prometheus-node-exporter"
THEIRS = ("cpu", "diskstats", "netdev", "netstat", "infiniband", "meminfo", "pressure", "nfs")
OURS = ("cpu", "disk", "nic", "tcp", "rdma", "memory", "pressure", "nfs")
ASKED_AS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
    "Accept-Encoding": "gzip",
    "User-Agent": "Prometheus/2.42.0",
    "X-Prometheus-Scrape-Timeout-Seconds": "10",
}
GPUS = ADAPTERS = RANKS = 8
READY_SECONDS = 60.0


class Target:
    """A running exporter, which is scraped over one connection."""

    def __init__(self, name: str, command: list[str], port: int, environment: dict[str, str]):
        self.name = name
        self.process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self.scrape()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{name} does not serve: {' '.join(command)}") from None
                self.connection.close()
                time.sleep(0.1)

    def scrape(self) -> tuple[float, bytes]:
        """Scrapes once. Returns the seconds that it took, and the body of the answer."""
        start = time.perf_counter()
        self.connection.request("GET", "/metrics", headers=ASKED_AS)
        answer = self.connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - start
        assert answer.status == 200, answer.status
        return took, gzip.decompress(body) if answer.headers.get("Content-Encoding") == "gzip" else body

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) * 1024

    def close(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.wait(30)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def node_exporter() -> Target:
    port = free_port()
    flags = ["--collector.disable-defaults", *(f"--collector.{name}" for name in THEIRS)]
    return Target("node_exporter", [NODE_EXPORTER, f"--web.listen-address=127.0.0.1:{port}", *flags], port, {})


def agent(name: str, flags: list[str], environment: dict[str, str]) -> Target:
    port = free_port()
    command = [sys.executable, "-m", "whyidle.cli.main", "agent", f"--web.listen-address=127.0.0.1:{port}", *flags]
    return Target(name, [*command, "--log.level=error"], port, environment)


def same(scratch: Path) -> Target:
    from whyidle.agent.collector import COLLECTORS

    others = [f"--no-collector.{entry.name}" for entry in COLLECTORS if entry.name not in OURS]
    return agent("same", [*others, f"--ledger.dir={scratch / 'none'}"], {})


@contextlib.contextmanager
def whole(scratch: Path) -> Iterator[Target]:
    """The agent with all collectors, on a node of 8 GPUs, 8 adapters and 8 live ranks."""
    from fake_node import nvml, rdma
    from support_ledgers import SECOND, Spec, children

    from whyidle.agent.files import Roots

    sysfs = scratch / "sys"
    for folder in ("", "class"):  # link this machine's /sys, except for the folders that the adapters replace
        (sysfs / folder).mkdir()
        for entry in Path("/sys", folder).iterdir():
            if entry.name not in ("bus", "class", "devices", "infiniband"):
                (sysfs / folder / entry.name).symlink_to(entry)
    rdma.build_hcas(Roots(sysfs=str(sysfs)), ADAPTERS)
    gpus = nvml.Node(scratch, gpus=GPUS, mig=None, real_time=True)
    ledgers = scratch / "ledgers"
    ledgers.mkdir()
    short = {"cpu_asked_ns": 10 * SECOND, "cpu_stolen_ns": SECOND, "cpu_queued_ns": SECOND}
    ranks = [Spec(rank=rank, world_size=RANKS, steps=100, step={"compute": 0.05}, words=short) for rank in range(RANKS)]
    with children(ledgers, *ranks):
        target = agent(
            "whole", [f"--path.sysfs={sysfs}", f"--ledger.dir={ledgers}"], gpus.environment(frozen=True, log=False)
        )
        try:
            yield target
        finally:
            target.close()


# -- measurements ----------------------------------------------------------------------------------------------------


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "least": ordered[0], "most": ordered[-1]}


def samples(body: bytes) -> list[str]:
    return [line for line in body.decode().splitlines() if line and not line.startswith("#")]


def cost(targets: list[Target], rounds: int, scrapes: int) -> dict[str, Any]:
    """CPU time per scrape. The targets take turns."""
    cpu: dict[str, list[float]] = {target.name: [] for target in targets}
    for target in targets:
        for _ in range(50):
            target.scrape()
    for _ in range(rounds):
        for target in targets:
            before = target.cpu_seconds()
            for _ in range(scrapes):
                target.scrape()
            cpu[target.name].append((target.cpu_seconds() - before) / scrapes * 1000)
    return {
        target.name: {
            "cpu_ms": spread(cpu[target.name]),
            "samples": len(samples(target.scrape()[1])),
            "rss_mb": target.resident_bytes() / 1e6,
        }
        for target in targets
    }


def latency(targets: list[Target], scrapes: int) -> dict[str, Any]:
    """How long a scrape takes while two processes train on the machine's cores."""
    load = [subprocess.Popen([sys.executable, str(HERE), "--child"]) for _ in range(os.cpu_count() or 2)]
    try:
        time.sleep(3)
        times: dict[str, list[float]] = {target.name: [] for target in targets}
        for _ in range(scrapes):
            for target in targets:
                times[target.name].append(target.scrape()[0] * 1000)
                time.sleep(0.005)
    finally:
        for process in load:
            process.kill()
            process.wait()
    return {name: {"median": statistics.median(v), "p99": sorted(v)[int(len(v) * 0.99)]} for name, v in times.items()}


def series(target: Target) -> dict[str, Any]:
    """The number of series by collector, and of one GPU."""
    from whyidle.agent.metrics import BY_COLLECTOR

    collector_of = {metric.name: name for name, metrics in BY_COLLECTOR.items() for metric in metrics}
    counts: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    for line in samples(target.scrape()[1]):
        name = line.partition("{")[0].partition(" ")[0]
        base = name if name in collector_of else name.rpartition("_")[0]
        counts[collector_of.get(base, "?")] += 1
        if collector_of.get(base) == "gpu" and 'gpu="' in line:
            gpus[line.partition('gpu="')[2].partition('"')[0]] += 1
    return {"by_collector": dict(counts), "of_a_gpu": max(gpus.values(), default=0)}


def train() -> None:
    """Trains dense layers in one thread, without end, as a load."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        optimizer.zero_grad()
        model(torch.randn(64, 512)).square().mean().backward()
        optimizer.step()


SECTIONS: dict[str, Callable[[list[Target], argparse.Namespace], Any]] = {
    "cost": lambda targets, args: cost(targets, args.rounds, args.scrapes),
    "latency": lambda targets, args: latency(targets, args.scrapes),
    "series": lambda targets, args: series(targets[-1]),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="What the agent costs a node, beside node_exporter in the same run.")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    parser.add_argument("--rounds", type=int, default=10, help="blocks of each agent (default: %(default)s)")
    parser.add_argument("--scrapes", type=int, default=300, help="scrapes of a block (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="leave the others out")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        train()
    if not shutil.which(NODE_EXPORTER):
        print(f"needs {NODE_EXPORTER} on the PATH (Debian's package of that name)", file=sys.stderr)
        return 1
    found: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
        "python": platform.python_version(),
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        scratch = Path(folder)
        targets = [node_exporter(), same(scratch)]
        for target in targets:
            stack.callback(target.close)
        targets.append(stack.enter_context(whole(scratch)))
        for section in args.only:
            print(f"measuring: {section}", file=sys.stderr)
            found[section] = SECTIONS[section](targets, args)
    show(found)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")
    return 0


def show(found: dict[str, Any]) -> None:
    print(f"{found['date']}, {found['machine']}, Python {found['python']}")
    for name, one in found.get("cost", {}).items():
        cpu = one["cpu_ms"]
        print(
            f"  {name:<14} {cpu['median']:6.2f} ms CPU a scrape ({cpu['least']:.2f} .. {cpu['most']:.2f}), "
            f"{one['samples']} samples, {one['rss_mb']:.1f} MB"
        )
    for name, one in found.get("latency", {}).items():
        print(f"  {name:<14} {one['median']:6.1f} ms a scrape under load, p99 {one['p99']:.1f} ms")
    if "series" in found:
        print(f"  series of a GPU: {found['series']['of_a_gpu']}")
        for name, count in sorted(found["series"]["by_collector"].items(), key=lambda item: -item[1]):
            print(f"  series of {name:<12} {count}")


if __name__ == "__main__":
    sys.exit(main())

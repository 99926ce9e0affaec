"""Compares the traffic of training jobs by the formulas of `whyidle traffic`, by the hooks, and by network interfaces.

    python benchmarks/traffic.py [--json FILE] [--steps N] [--only NAME ...]

Each rank runs in its own network namespace, so that its interface carries only its own traffic. gloo's collectives use
TCP there. All ranks pause before and after the measured steps, and everything is read during these pauses. Needs
root and `ip`. This is not a test: nothing passes or fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whyidle.advisor.traffic.measured import measure
from whyidle.advisor.traffic.prediction import predict
from whyidle.advisor.traffic.shape import Model, Parallel
from whyidle.ledger.directory import read_directory
from whyidle.ledger.reader import Ledger

HERE = Path(__file__).resolve()
NET, BRIDGE, PORT = "10.219.0", "whyidle-t", 29517
WARM_UP = 12
"""Steps before the measured ones. Process groups and the side groups of the hooks are created in them."""
PATIENCE_SECONDS, WRITTEN_SECONDS = 300.0, 10.0
WIDTH, BLOCKS, BATCH = 512, 8, 256
FLOAT = 4
MICROBATCHES = 4


@dataclass(frozen=True)
class Case:
    """A job, and its description for the formulas."""

    name: str
    kind: str
    ranks: int
    model: Model
    parallel: Parallel


def _model(batch: int = BATCH, layers: float = 0.0) -> Model:
    parameters = BLOCKS * WIDTH * WIDTH
    return Model(parameters, batches=1, tokens=batch, layers=layers, hidden=WIDTH, element=FLOAT)


CASES = (
    Case("DDP, 2 ranks", "ddp", 2, _model(), Parallel(data=2)),
    Case("DDP, 4 ranks", "ddp", 4, _model(), Parallel(data=4)),
    Case("DDP, 8 ranks", "ddp", 8, _model(), Parallel(data=8)),
    Case("FSDP2, 4 ranks", "fsdp", 4, _model(), Parallel(shard=4)),
    # Two replicas with a batch each. A block has one all-reduce forward and one backward, so two blocks are a layer.
    Case("TP 2 × DP 2", "tp", 4, _model(2 * BATCH, BLOCKS / 4), Parallel(tensor=2, data=2)),
    Case("pipeline, 4 stages", "pp", 4, _model(), Parallel(pipeline=4, microbatches=MICROBATCHES)),
)


# -- the job, in each rank


def _train(kind: str, steps: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    import whyidle

    whyidle.attach()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    step = {"ddp": _ddp, "fsdp": _fsdp, "tp": _tensor, "pp": _pipeline}[kind]()
    for _ in range(WARM_UP):
        step()
    _stand_still(folder, "warm")
    for _ in range(steps):
        step()
    _stand_still(folder, "done")
    dist.destroy_process_group()


def _stand_still(folder: Path, moment: str) -> None:
    (folder / f"{moment}.{os.environ['RANK']}").touch()
    while not (folder / f"{moment}.go").exists():
        time.sleep(0.02)


def _blocks() -> Any:
    from torch import nn

    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BLOCKS)))


def _stepping(net: Any, x: Any, after: Callable[[], None] = lambda: None) -> Callable[[], None]:
    import torch

    optimizer = torch.optim.SGD(net.parameters(), 1e-4)

    def step() -> None:
        net(x).square().mean().backward()
        after()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _ddp() -> Callable[[], None]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    return _stepping(DistributedDataParallel(_blocks()), torch.randn(8, WIDTH))


def _fsdp() -> Callable[[], None]:
    import torch
    from torch.distributed.fsdp import fully_shard

    net = _blocks()
    for block in net:
        fully_shard(block, reshard_after_forward=True)
    fully_shard(net, reshard_after_forward=True)
    return _stepping(net, torch.randn(8, WIDTH))


def _tensor() -> Callable[[], None]:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan = {str(at): RowwiseParallel() if at % 2 else ColwiseParallel() for at in range(BLOCKS)}
    net = parallelize_module(_blocks(), mesh["tp"], plan)  # pyright: ignore[reportArgumentType]
    replicas = mesh.get_group("dp")

    def average() -> None:
        for parameter in net.parameters():
            gradient: Any = parameter.grad
            dist.all_reduce(gradient.to_local(), group=replicas)

    x = torch.randn(BATCH, WIDTH).requires_grad_()  # so that the first block also passes gradients back
    return _stepping(net, x, average)


def _pipeline() -> Callable[[], None]:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, stages = dist.get_rank(), dist.get_world_size()
    share = BLOCKS // stages
    net = _blocks()[rank * share : (rank + 1) * share]
    stage = PipelineStage(net, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=lambda output, target: (output - target).square().mean())
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    x, target = torch.randn(BATCH, WIDTH), torch.zeros(BATCH, WIDTH)

    def step() -> None:
        if rank == 0:
            schedule.step(x)
        elif rank == stages - 1:
            schedule.step(target=target)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()

    return step


# -- namespaces, ranks and the measurement


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


@contextlib.contextmanager
def _namespaces(count: int) -> Iterator[list[str]]:
    """Makes network namespaces on one bridge, each with an interface eth0. Yields their names."""
    names = [f"{BRIDGE}{number}" for number in range(count)]
    with contextlib.ExitStack() as stack:
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        stack.callback(_run, "ip", "link", "del", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        for number, name in enumerate(names):
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
            outside = f"{BRIDGE}-v{number}"
            _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            stack.callback(_run, "ip", "link", "del", outside)  # that of a namespace goes later than its name
            _run("ip", "link", "set", outside, "master", BRIDGE, "up")
            inside = ("ip", "netns", "exec", name, "ip")
            _run(*inside, "addr", "add", f"{NET}.{number + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run(*inside, "link", "set", device, "up")
        yield names


def _start(case: Case, names: list[str], folder: Path, steps: int) -> list[subprocess.Popen[bytes]]:
    words = [sys.executable, str(HERE), "--rank", case.kind, str(folder), "--steps", str(steps)]
    started = []
    for rank, name in enumerate(names):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(case.ranks),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": f"{NET}.1",
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
            "WHYIDLE_DIR": str(folder / "ledgers"),
            "WHYIDLE_RUN": "traffic",
            "WHYIDLE_NODE": name,
        }
        started.append(subprocess.Popen(["ip", "netns", "exec", name, *words], env=env))
    return started


def _wait(folder: Path, moment: str, ranks: list[subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while len(list(folder.glob(f"{moment}.[0-9]*"))) < len(ranks):
        if any(rank.poll() is not None for rank in ranks):
            raise SystemExit("a rank has ended early; its error stands above")
        if time.monotonic() > end:
            raise SystemExit(f"the ranks took longer than {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.05)
    time.sleep(0.5)  # for the last acknowledgements


def _written(folder: Path, steps: int) -> list[Ledger]:
    """The ledgers with this many steps. After short steps, they are brought up to date within seconds."""
    end = time.monotonic() + WRITTEN_SECONDS
    while True:
        found = read_directory(str(folder / "ledgers"), steps=True)[0]
        if all(ledger.steps >= steps for ledger in found) or time.monotonic() > end:
            return found
        time.sleep(0.1)


def _sent(ranks: list[subprocess.Popen[bytes]]) -> list[int]:
    """Bytes that eth0 of each rank's namespace has sent. Preambles and checksums of frames are not included."""
    found = []
    for rank in ranks:
        lines = Path(f"/proc/{rank.pid}/net/dev").read_text().splitlines()
        (eth0,) = (line.split(":")[1].split() for line in lines if line.strip().startswith("eth0:"))
        found.append(int(eth0[8]))
    return found


def measured(case: Case, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, _namespaces(case.ranks) as names:
        folder = Path(name)
        ranks = _start(case, names, folder, steps)
        try:
            _wait(folder, "warm", ranks)
            before, first = _written(folder, WARM_UP), _sent(ranks)
            (folder / "warm.go").touch()
            _wait(folder, "done", ranks)
            after, last = _written(folder, WARM_UP + steps), _sent(ranks)
            (folder / "done.go").touch()
            for rank in ranks:
                rank.wait(PATIENCE_SECONDS)
        finally:
            for rank in ranks:
                rank.kill()
    moved = measure(after, before, "gloo")
    formula = predict(case.model, case.parallel, 1, "gloo").total
    hooks = sum(group.wire for group in moved.groups)
    wire = sum(b - a for a, b in zip(first, last, strict=True)) / steps
    return {
        "name": case.name,
        "steps": moved.steps,
        "groups": {group.label: group.handed for group in moved.groups},
        "formula": formula,
        "hooks": hooks,
        "interfaces": wire,
        "hooks_off": hooks / formula - 1,
        "interfaces_off": wire / formula - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", nargs="*", help="parts of the names of cases")
    parser.add_argument("--rank", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        _train(args.rank[0], args.steps, Path(args.rank[1]))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit normally, so that namespaces and ranks are removed
    found = []
    print("| job | formula, MB a step | hooks | interfaces | error of the hooks | error of the interfaces |")
    print("| --- | --- | --- | --- | --- | --- |")
    for case in CASES:
        if args.only and not any(part in case.name for part in args.only):
            continue
        one = measured(case, args.steps)
        sizes = " | ".join(f"{one[name] / 1e6:.3f}" for name in ("formula", "hooks", "interfaces"))
        print(f"| {case.name} | {sizes} | {one['hooks_off']:+.2%} | {one['interfaces_off']:+.2%} |", flush=True)
        found.append(one)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Measures what whyidle costs a training process, and what the agent costs.

    python benchmarks/overhead.py [--json FILE] [--rounds N] [--peers DIR] [--only SECTION ...]

Steps are timed in pairs: in one process, blocks of steps with and without the hooks take turns (A B A B ...). The
figure is the median, over pairs, of the difference between the median steps. TraceML cannot be switched off again. So
it runs in separate processes, which take turns with processes without a tool and processes with whyidle.
``--peers DIR`` names a folder into which pip installs TraceML if it is not there yet. Without it that comparison is
left out, and the table says so. This is not a test: nothing passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve()
TRACEML = "traceml-ai==0.5.0"


def median(values: list[float]) -> float:
    return statistics.median(values)


def spread(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 10]:.1f} .. {ordered[-1 - len(ordered) // 10]:.1f}"


# -- the timed loops, each in a child process ------------------------------------------------------------------------


class Loop:
    """A plain loop: loader, forward, backward, optimizer."""

    def __init__(self, distributed: bool = False, workers: int = 0):
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        torch.manual_seed(0)
        torch.set_num_threads(1)
        model: Any = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
        if distributed:
            torch.distributed.init_process_group("gloo")
            model = nn.parallel.DistributedDataParallel(model)
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        data = TensorDataset(torch.randn(8 * 200_000, 32), torch.randn(8 * 200_000, 8))
        self.batches = iter(DataLoader(data, batch_size=8, num_workers=workers))

    def step(self) -> None:
        x, y = next(self.batches)
        loss = ((self.model(x) - y) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self, steps: int, step: Callable[[], None] | None = None) -> list[float]:
        """Runs steps. Returns the time of each in µs."""
        step = step or self.step
        times = []
        for _ in range(steps):
            start = time.perf_counter_ns()
            step()
            times.append((time.perf_counter_ns() - start) / 1000)
        return times


def child_steps(arguments: argparse.Namespace) -> None:
    """Times blocks of steps in turn, in one process: plain, with the hooks, with five `record_function`."""
    import torch

    import whyidle

    loop = Loop(arguments.distributed, arguments.workers)
    loop.run(100)
    blocks: dict[str, list[float]] = {"plain": [], "whyidle": [], "record_function": []}

    def recorded() -> None:
        for name in ("data", "forward", "backward", "optimizer", "step"):
            with torch.profiler.record_function(name):
                pass
        loop.step()

    for _ in range(arguments.rounds):
        blocks["plain"].append(median(loop.run(arguments.steps)))
        whyidle.attach()
        loop.run(40)  # for the handshake of the exchange, and everything that happens at first use
        blocks["whyidle"].append(median(loop.run(arguments.steps)))
        whyidle.detach()
        blocks["plain"].append(median(loop.run(arguments.steps)))
        blocks["record_function"].append(median(loop.run(arguments.steps, recorded)))
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(blocks))
    if arguments.distributed:
        torch.distributed.destroy_process_group()


ARMS = {"alone": 1, "ddp": 2, "one": 3, "three": 3}
"""Loop -> its ranks. A step has the collectives of DDP, and in the last two arms two more: in the same group as those
of DDP, or in groups of two of the three ranks, so that each rank waits in three groups."""


def step_of(loop: Loop, arm: str) -> Callable[[], None]:
    """The step of one of ARMS. Call it on all ranks."""
    import torch.distributed as dist
    from torch import zeros

    if arm not in ("one", "three"):
        return loop.step
    rank, pairs = dist.get_rank(), ((0, 1), (0, 2), (1, 2))
    made = [dist.new_group(list(pair)) if arm == "three" else None for pair in pairs]
    groups = [group for pair, group in zip(pairs, made, strict=True) if rank in pair]
    reduced = zeros(64)

    def step() -> None:
        loop.step()
        for group in groups:
            dist.all_reduce(reduced, group=group)

    return step


def child_groups(arguments: argparse.Namespace) -> None:
    """Times blocks of steps with and without the hooks in turn."""
    import torch.distributed as dist

    import whyidle

    loop = Loop(distributed=True)
    step = step_of(loop, arguments.arm)

    def cpu() -> float:
        """The mean CPU time of a step on this thread, in µs. A rank without a CPU does not add to it."""
        begun = time.thread_time_ns()
        loop.run(arguments.steps, step)
        return (time.thread_time_ns() - begun) / 1000 / arguments.steps

    loop.run(50, step)
    whyidle.attach()
    loop.run(600, step)  # until all groups exchange their waits
    functions, bytecodes = executed(step)
    added = []
    for _ in range(arguments.rounds):
        hooked = cpu()
        whyidle.detach()
        added.append(hooked - cpu())
        whyidle.attach()
        loop.run(100, step)
    if dist.get_rank() == 0:
        print(json.dumps({"cpu_us": added, "functions": functions, "bytecodes": bytecodes}))
    dist.barrier()
    time.sleep(0.5)  # until the threads of gloo have dropped their tensors: torch 2.13 can hang otherwise
    dist.destroy_process_group()


def executed(step: Callable[[], None], steps: int = 100) -> tuple[int, int]:
    """The fewest Python functions and bytecodes of whyidle that a step runs on this thread."""
    counts = [0, 0]

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        if event == "call":
            if not frame.f_globals.get("__name__", "").startswith("whyidle."):
                return None
            counts[0] += 1
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            counts[1] += 1
        return trace

    found = []
    for _ in range(steps):
        counts[:] = 0, 0
        sys.settrace(trace)
        step()
        sys.settrace(None)
        found.append(tuple(counts))
    return min(found)


def child_arm(arguments: argparse.Namespace) -> None:
    """Runs the loop in one process with one tool (``arm``), and prints the median step time."""
    if arguments.arm == "whyidle":
        import whyidle

        whyidle.attach()
    loop = Loop()
    step = loop.step
    if arguments.arm == "traceml":
        import traceml_ai as traceml  # pyright: ignore[reportMissingImports] - optional, see --peers

        traceml.init(mode="auto")

        def traced() -> None:
            with traceml.trace_step(loop.model):
                loop.step()

        step = traced

    loop.run(200, step)
    Path(arguments.out).write_text(json.dumps(median(loop.run(arguments.steps, step))))


def child_memory(arguments: argparse.Namespace) -> None:
    """Measures RSS and attach time in a fresh process that has loaded torch and run some steps."""
    loop = Loop()
    loop.run(50)
    before = rss_kb()
    start = time.perf_counter_ns()
    if arguments.arm == "whyidle":
        import whyidle

        whyidle.attach()
    attach = (time.perf_counter_ns() - start) / 1e6
    loop.run(600)
    print(json.dumps({"added_kb": rss_kb() - before, "attach_ms": attach}))


def rss_kb(pid: int | str = "self") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


# -- the sections --------------------------------------------------------------------------------------------------


def start_child(
    *arguments: str, env: dict[str, str] | None = None, launcher: Sequence[str] = (), script: Path = HERE
) -> str:
    command = [*(launcher or (sys.executable,)), str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def switch(arguments: argparse.Namespace) -> dict[str, Any]:
    """The cost of one phase switch in ns: half of an enter and a leave."""
    from whyidle.ledger.causes import PHASE
    from whyidle.ledger.writer import LedgerWriter
    from whyidle.torch_hooks.machine import PhaseMachine

    strings = {"run": "bench", "node": "n", "device": "cpu", "uuid": ""}
    writer = LedgerWriter(tempfile.mkdtemp(dir=in_memory()), strings, {"device_index": -1})
    machine = PhaseMachine(writer.words, time.monotonic_ns())
    machine.begin()
    phase, count = PHASE["data"], 20_000
    times = []
    for _ in range(5 * arguments.rounds):
        start = time.perf_counter_ns()
        for _ in range(count):
            machine.leave(machine.enter(phase))
        times.append((time.perf_counter_ns() - start) / count / 2)
    os.unlink(writer.path)
    os.rmdir(os.path.dirname(writer.path))
    return {"ns": median(times), "spread": spread(times), "budget": "< 1000 ns"}


def steps(arguments: argparse.Namespace) -> dict[str, Any]:
    """The µs that the hooks add to a step: in one process, and with two DDP ranks."""
    result: dict[str, Any] = {}
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    loops: dict[str, tuple[list[str], tuple[str, ...]]] = {
        "one process": ([], ()),
        "two DDP ranks": (["--distributed"], torchrun),
        "two DDP ranks, a loader worker each": (["--distributed", "--workers", "1"], torchrun),
    }
    for name, (flags, launcher) in loops.items():
        with tempfile.TemporaryDirectory(dir=in_memory()) as folder:
            options = ["--child", "steps", "--steps", str(arguments.steps), "--rounds", str(arguments.rounds), *flags]
            blocks = json.loads(start_child(*options, env={"WHYIDLE_DIR": folder}, launcher=launcher))
        plain = blocks["plain"]
        hooked = [b - a for a, b in zip(plain[0::2], blocks["whyidle"], strict=True)]
        recorded = [b - a for a, b in zip(plain[1::2], blocks["record_function"], strict=True)]
        result[name] = {
            "step_us": median(plain),
            "added_us": median(hooked),
            "spread": spread(hooked),
            "record_function_us": median(recorded),
        }
    return result


def groups(arguments: argparse.Namespace) -> dict[str, Any]:
    """The CPU time in µs that the hooks add to a step of the training thread, and how much code they run in a step.

    Three ranks with DDP alone, and with two more collectives in the same group or in two other groups.
    """
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3")
    added: dict[str, list[float]] = {"ddp": [], "one": [], "three": []}
    result: dict[str, Any] = {}
    options = ["--child", "groups", "--steps", str(max(50, arguments.steps // 4)), "--rounds", "5"]
    with tempfile.TemporaryDirectory(dir=in_memory()) as folder:
        for _ in range(max(1, arguments.rounds // 4)):
            for arm, found in added.items():
                said = start_child(*options, "--arm", arm, env={"WHYIDLE_DIR": folder}, launcher=torchrun)
                one = json.loads(said)
                found += one["cpu_us"]
                for name in ("functions", "bytecodes"):
                    result[f"{arm}_{name}"] = min(one[name], result.get(f"{arm}_{name}", one[name]))
    for arm, found in added.items():
        result |= {f"{arm}_cpu_us": median(found), f"{arm}_spread": spread(found)}
    return result


def peers(arguments: argparse.Namespace) -> dict[str, Any]:
    """The µs that a tool adds to a step. Processes with nothing, whyidle and TraceML take turns."""
    if not arguments.peers:
        return {"skipped": "no --peers DIR"}
    folder = Path(arguments.peers)
    if not (folder / "traceml_ai").exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), TRACEML],
            check=True,
            stdout=sys.stderr,
        )
    times: dict[str, list[float]] = {"plain": [], "whyidle": [], "traceml": []}
    with tempfile.TemporaryDirectory(dir=in_memory()) as scratch:
        for _ in range(arguments.rounds):
            for arm in times:
                times[arm].append(_peer(arm, folder, Path(scratch), arguments.steps))
    added = {arm: [b - a for a, b in zip(times["plain"], times[arm], strict=True)] for arm in ("whyidle", "traceml")}
    return {
        "step_us": median(times["plain"]),
        **{f"{arm}_us": median(values) for arm, values in added.items()},
        **{f"{arm}_spread": spread(values) for arm, values in added.items()},
        "peer": TRACEML,
    }


def _peer(arm: str, peers_folder: Path, scratch: Path, steps_timed: int) -> float:
    out = scratch / "out.json"
    out.unlink(missing_ok=True)
    own = ["--child", "arm", "--arm", arm, "--steps", str(5 * steps_timed), "--out", str(out)]
    env = {"WHYIDLE_DIR": str(scratch / "ledgers"), "PYTHONPATH": str(peers_folder)}
    if arm == "traceml":
        run = ("-c", "import sys; from traceml_ai.launcher.cli import main; sys.exit(main())")
        logs = ["--logs-dir", str(scratch / "logs"), "--run-name", f"r{time.monotonic_ns()}"]
        command = [sys.executable, *run, "run", *logs, str(HERE), "--args", *own]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, check=False)
        if not out.exists():
            raise RuntimeError(f"TraceML did not run:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    else:
        start_child(*own, env=env)
    return float(json.loads(out.read_text()))


def memory(arguments: argparse.Namespace) -> dict[str, Any]:
    """The RSS that attach adds to a rank (kB), and how long attach takes (ms). Fresh processes take turns."""
    runs: dict[str, list[dict[str, float]]] = {"plain": [], "whyidle": []}
    with tempfile.TemporaryDirectory(dir=in_memory()) as folder:
        for _ in range(arguments.rounds):
            for arm, measured in runs.items():
                measured.append(json.loads(start_child("--child", "memory", "--arm", arm, env={"WHYIDLE_DIR": folder})))
    added = [b["added_kb"] - a["added_kb"] for a, b in zip(runs["plain"], runs["whyidle"], strict=True)]
    attach = [one["attach_ms"] for one in runs["whyidle"]]
    return {
        "rss_added_kb": median(added),
        "rss_spread": spread(added),
        "rss_budget": "<= 3072 kB",
        "attach_ms": median(attach),
        "attach_spread": spread(attach),
        "attach_budget": "<= 50 ms, the import of whyidle included",
    }


def agent(arguments: argparse.Namespace) -> dict[str, Any]:
    """The agent with eight live ledgers: its RSS after a hundred scrapes, its time per scrape, the read of a ledger."""
    from urllib.request import urlopen

    from whyidle.ledger.reader import read_ledger
    from whyidle.ledger.writer import LedgerWriter
    from whyidle.torch_hooks.machine import PhaseMachine

    with tempfile.TemporaryDirectory(dir=in_memory()) as folder:
        writers = []
        for rank in range(8):
            strings = {"run": "bench", "node": "n", "device": "cpu", "uuid": ""}
            numbers = {"rank": rank, "world_size": 8, "device_index": -1, "start_ns": time.monotonic_ns()}
            writers.append(LedgerWriter(folder, strings, numbers))
            machine = PhaseMachine(writers[-1].words, time.monotonic_ns())
            machine.begin()
            for _ in range(600):
                machine.boundary(1)
        command = [sys.executable, "-m", "whyidle.cli.main", "agent", "--web.listen-address", "127.0.0.1:0"]
        process = subprocess.Popen([*command, "--ledger.dir", folder], stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "address=" in line)
            url = "http://" + line.split("address=")[1].split()[0] + "/metrics"
            scrapes = []
            for _ in range(100):
                start = time.perf_counter_ns()
                with urlopen(url) as answer:
                    answer.read()
                scrapes.append((time.perf_counter_ns() - start) / 1e6)
            rss = rss_kb(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
        # A process must not read a ledger that it writes, so a child process reads it.
        code = (
            "import sys, time; from whyidle.ledger.reader import read_ledger\n"
            "for _ in range(2000):\n s = time.perf_counter_ns(); read_ledger(sys.argv[1])\n"
            " print((time.perf_counter_ns() - s) / 1000)"
        )
        done = subprocess.run([sys.executable, "-c", code, writers[0].path], capture_output=True, text=True, check=True)
        reads = [float(line) for line in done.stdout.split()]
        del read_ledger
    return {
        "rss_kb": rss,
        "rss_budget": "<= 40960 kB with 8 ledgers",
        "scrape_ms": median(scrapes),
        "scrape_spread": spread(scrapes),
        "read_us": median(reads),
        "read_spread": spread(reads),
        "read_budget": "< 50 µs",
    }


SECTIONS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "switch": switch,
    "steps": steps,
    "groups": groups,
    "peers": peers,
    "memory": memory,
    "agent": agent,
}


def in_memory() -> str | None:
    """A directory in memory, or None if there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def machine() -> dict[str, Any]:
    import torch

    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def show(result: dict[str, Any], indent: str = "") -> None:
    for key, value in result.items():
        if isinstance(value, dict):
            print(f"{indent}{key}")
            show(value, indent + "  ")
        else:
            print(f"{indent}{key:<24} {value:.1f}" if isinstance(value, float) else f"{indent}{key:<24} {value}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("--rounds", type=int, default=10, help="pairs per figure (default: 10)")
    parser.add_argument("--steps", type=int, default=400, help="steps per block (default: 400)")
    parser.add_argument("--peers", metavar="DIR", help="compare with TraceML, installed to (or found in) this folder")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections to run")
    parser.add_argument("--child", choices=("steps", "groups", "arm", "memory"), help=argparse.SUPPRESS)
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--distributed", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        children = {"steps": child_steps, "groups": child_groups, "arm": child_arm, "memory": child_memory}
        children[arguments.child](arguments)
        return 0
    result: dict[str, Any] = {"machine": machine()}
    for name in arguments.only:
        print(f"{name} ...", file=sys.stderr)
        try:
            result[name] = SECTIONS[name](arguments)
        except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
            result[name] = {"failed": str(error)}
    show(result)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

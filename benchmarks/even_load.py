"""What `whyidle.share` gives back when one of four ranks becomes 1.5 times as slow, with DDP and with FSDP2.

    python benchmarks/even_load.py                  # about 4 minutes; --json FILE

A microbatch waits for its time to be over instead of computing, so that the cores of this machine do not decide. In
one run, all ranks are healthy at first, then one is slow until shares have followed, then it is healthy again. Between
the last two, blocks of steps with a healthy fleet, with equal shares and with the new shares take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "even_load.py"
RANKS, SLOW, FACTOR = 4, 3, 1.5
TOTAL = 8 * RANKS
HEALTHY_STEPS, MOST_STEPS = 60, 160
TURNS, BLOCK = 5, 8


def job(framework: str, work: float) -> None:
    """One rank. Rank 0 prints what was measured, as JSON."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import whyidle

    example = runpy.run_path(str(EXAMPLE))
    accumulates = example["accumulates"]
    whyidle.attach()
    dist.init_process_group("gloo")
    rank, device = dist.get_rank(), torch.device("cpu")
    torch.manual_seed(0)
    model, pace = example["Model"](0.0), work
    if framework == "fsdp2":
        fully_shard(model, reshard_after_forward=False)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    data = example["microbatch"](0, device)

    def step(count: int, weight: float) -> None:
        begun = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, begun + (number + 1) * pace - time.monotonic()))
            with accumulates(model, last=number == count - 1):
                (weight * torch.nn.functional.mse_loss(model(data[0]), data[1])).backward()
        optimizer.step()
        optimizer.zero_grad()

    def slow(factor: float) -> None:
        nonlocal pace
        pace = work * (factor if rank == SLOW else 1.0)

    def follow(most: int, ends: Callable[[list[int]], bool]) -> list[list[int]]:
        """The counts of steps that use shares, until ``ends`` is true of them, the same on all ranks."""
        seen: list[list[int]] = []
        while len(seen) < most and not (seen and ends(seen[-1])):
            share = whyidle.share(TOTAL)
            step(share.count, share.weight)
            counts = torch.zeros(RANKS, dtype=torch.int64)
            counts[rank] = share.count
            dist.all_reduce(counts)
            seen.append(counts.tolist())
        return seen

    def timed(counts: Sequence[int], factor: float) -> float:
        slow(factor)
        step(counts[rank], RANKS / TOTAL)
        begun = time.monotonic()
        for _ in range(BLOCK):
            step(counts[rank], RANKS / TOTAL)
        return (time.monotonic() - begun) / BLOCK

    equal = [TOTAL // RANKS] * RANKS
    healthy = follow(HEALTHY_STEPS, lambda counts: False)
    slow(FACTOR)
    changing = follow(MOST_STEPS, lambda counts: counts != equal)
    shared = changing[-1]
    ways = {"healthy": (equal, 1.0), "slow, equal": (equal, FACTOR), "slow, shared": (shared, FACTOR)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(TURNS):
        for way, (counts, factor) in ways.items():
            seconds[way].append(timed(counts, factor))
    slow(1.0)
    back = follow(MOST_STEPS, lambda counts: counts == equal)
    begun = time.perf_counter()
    for _ in range(1000):
        whyidle.share(TOTAL)
    call = (time.perf_counter() - begun) / 1000
    if rank == 0:
        found = {
            "shared": shared,
            "healthy_steps_with_other_shares": sum(counts != equal for counts in healthy),
            "steps_until_change": len(changing),
            "steps_until_equal_again": len(back),
            "equal_again": back[-1] == equal,
            "sums_right": all(sum(counts) == TOTAL for counts in (*healthy, *changing, *back)),
            "seconds": seconds,
            "call_us": 1e6 * call,
        }
        print(json.dumps(found), flush=True)
    time.sleep(0.5)
    dist.destroy_process_group()


def train(framework: str, work: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        env = {**os.environ, "WHYIDLE_DIR": folder, "OMP_NUM_THREADS": "1"}
        words = [__file__, "--frameworks", framework, "--work", str(work)]
        said = subprocess.run([*command, *words], env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(said.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=float, default=0.02, help="seconds of a microbatch")
    parser.add_argument("--frameworks", nargs="+", default=["ddp", "fsdp2"], choices=["ddp", "fsdp2"])
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args()
    if "RANK" in os.environ:
        job(args.frameworks[0], args.work)
        return
    results = {}
    for framework in args.frameworks:
        results[framework] = found = train(framework, args.work)
        seconds = {way: statistics.median(each) for way, each in found["seconds"].items()}  # type: ignore[attr-defined]
        for way, each in seconds.items():
            print(f"{framework:6} {way:13} {1000 * each:7.1f} ms a step")
        lost = seconds["slow, equal"] - seconds["healthy"]
        back = (seconds["slow, equal"] - seconds["slow, shared"]) / lost
        print(f"{framework:6} {100 * back:.0f} % of the lost time is back")
        print({name: value for name, value in found.items() if name != "seconds"}, flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

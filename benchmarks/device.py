"""Measures what boundaries of the device clock cost the host in a training step, and how many boundaries FSDP2 makes.

    python benchmarks/device.py [--device cuda|sim] [--rounds N] [--steps N] [--json FILE] [--fsdp2-only]

Blocks of steps without whyidle take turns with blocks that have 0, 20, 300 or 800 boundaries more than the hooks make
anyway (A B A B ...). The figure is the median over pairs. On the simulated device (`tests/support/simdevice`, the
default without CUDA), an event costs a lock and a queue in C++, and the device's threads compete with the host for the
cores. So look at the CPU time of the training thread there. This is not a test: nothing passes or fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "sim"), help="default: cuda where there is one, else sim")
    parser.add_argument("--rounds", type=int, default=9, help="pairs per figure (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=30, help="steps per block (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("--fsdp2-only", action="store_true", help="only count FSDP2's boundaries")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    try:
        import torch
    except ImportError:
        print("torch is not installed, so nothing was measured.")
        return 0
    from gpu_check.rig import has_cuda, machine, rig_of

    kind = arguments.device or ("cuda" if has_cuda() else "sim")
    if kind == "cuda" and not has_cuda():
        print("There is no CUDA GPU here (or this torch has no CUDA), so nothing was measured.")
        return 0
    torch.set_num_threads(1)
    rig = rig_of(kind)
    result: dict[str, Any] = {"benchmark": "device", **rig.describe(), **machine()}
    measure(result, rig, arguments)
    print(table(result))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measure(result: dict[str, Any], rig: Any, arguments: argparse.Namespace) -> None:
    from gpu_check.cost import fsdp2_boundaries, per_boundary, step_costs

    if not arguments.fsdp2_only:
        costs = step_costs(rig, arguments.rounds, arguments.steps)
        result["steps"] = [{**each._asdict(), "plain": each.plain._asdict()} for each in costs]
        result["boundary_host_us"] = per_boundary(costs, "host_us")
        result["boundary_cpu_us"] = per_boundary(costs, "cpu_us")
    few, many = (fsdp2_boundaries(rig, layers) for layers in (4, 8))
    each = (many - few) / 4
    result["fsdp2"] = {"4 layers": few, "8 layers": many, "per layer": each, "80 layers": round(few + 76 * each)}


def table(result: dict[str, Any]) -> str:
    lines = [" · ".join(f"{key} {result[key]}" for key in ("device", "cores", "python", "torch", "date")), ""]
    if "steps" in result:
        lines.append(
            f"{'boundaries a step':<20} {'step, µs':>10} {'added, µs':>10} {'CPU added':>10}   four fifths of pairs"
        )
        for each in result["steps"]:
            cells = (each["plain"]["host_us"], each["host_us"], each["cpu_us"])
            figures = " ".join(f"{cell:>10.0f}" for cell in cells)
            lines.append(f"{each['boundaries']:<20} {figures}   {each['spread']}")
        host, cpu = result["boundary_host_us"], result["boundary_cpu_us"]
        lines += ["", f"a boundary: {host:.2f} µs of host time, {cpu:.2f} µs of the training thread's CPU time"]
    fsdp2 = result["fsdp2"]
    lines.append(
        f"FSDP2, boundaries a step: {fsdp2['4 layers']} with 4 layers, {fsdp2['8 layers']} with 8, so "
        f"{fsdp2['80 layers']} with 80"
    )
    if "steps" in result:
        added = fsdp2["80 layers"] * result["boundary_cpu_us"] / 1e3
        lines.append(f"FSDP2 with 80 layers: {added:.1f} ms of the training thread's CPU time a step")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

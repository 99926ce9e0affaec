"""Runs trainings with other people's data libraries and engines, and compares the verdict with the training's clock.

    VENV/bin/python benchmarks/stacks.py [NAME ...] [--json FILE]

VENV is an environment with whyidle and the libraries. (`pip install torch==2.13.0 torchdata webdataset datasets
mosaicml-streaming nvidia-dali deepspeed pytorch-ignite` installs all of them, and `--list` says which training needs
which.) A training whose library is not installed is left out, and the table says so.

Each training has one fault, and measures with its own clock how long it waits for batches. With several ranks, one of
them reads slowly, and the others wait for that rank. `whyidle report` must say the same. Each training also runs
without whyidle: its losses must be equal to the bit. These are not tests: nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

JOB = Path(__file__).with_name("stacks_job.py")
LIMIT_SECONDS = 300
TOLD = re.compile(r'\{"rank":[^{}]*\}')


class Training(NamedTuple):
    library: str
    """What Python imports; empty for a training without a library."""
    family: str
    """What the verdict should name."""
    ranks: int = 1


TRAININGS: dict[str, Training] = {
    "stateful_loader": Training("torchdata", "storage"),
    "nodes_with_threads": Training("torchdata", "storage"),
    "nodes_with_processes": Training("torchdata", "storage"),
    "webdataset": Training("webdataset", "storage"),
    "datasets_loop": Training("datasets", "storage"),
    "datasets_loader": Training("datasets", "cpu"),
    "mosaic_streaming": Training("streaming", "storage"),
    "dali": Training("nvidia.dali", "storage"),
    "garbage": Training("", "storage"),
    "queue_and_thread": Training("", "storage"),
    "queue_and_process": Training("", "cpu"),
    "futures": Training("", "storage"),
    "zero_1": Training("deepspeed", "storage", 2),
    "zero_2_accumulated": Training("deepspeed", "storage", 2),
    "zero_3": Training("deepspeed", "storage", 2),
    "deepspeed_pipeline": Training("deepspeed", "storage", 2),
    "ignite": Training("ignite", "storage", 2),
}


def installed(library: str) -> bool:
    try:
        return not library or importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:  # the package of a submodule
        return False


def run(name: str, training: Training, *, recorded: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the ranks told, and the report."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        own = {"WHYIDLE_DIR": folder, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment = {**os.environ, **own, **({} if recorded else {"WHYIDLE": "0"})}
        work = Path(folder) / "data"
        work.mkdir()
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(training.ranks)]
        job = [sys.executable, *(launcher if training.ranks > 1 else ()), str(JOB), name, str(work)]
        whyidle = [sys.executable, "-m", "whyidle.cli.main"]
        done = subprocess.run(
            [*whyidle, "run", "--", *job], env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )
        if done.returncode:
            raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-1500:]}")
        # The lines of two ranks may run together.
        told = sorted(map(json.loads, TOLD.findall(done.stdout)), key=lambda one: one["rank"])
        if not recorded:
            return told, {}
        said = subprocess.run(
            [*whyidle, "report", "--json", "--least-steps=0", "--least-seconds=0", "--most-spread=inf"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return told, json.loads(said.stdout)


def row(name: str, training: Training) -> dict[str, Any]:
    told, report = run(name, training, recorded=True)
    plain, _ = run(name, training, recorded=False)
    verdict, wall = report["verdict"], sum(one["wall"] for one in told)
    # If one of several ranks loses time, the others wait for it as long.
    lost = max(one["lost"] for one in told) * len(told)
    losses = [{(one["rank"], one["loss"]) for one in ranks} for ranks in (told, plain)]
    return {
        "training": name,
        "truth": lost / wall,
        "verdict": verdict["family"],
        "share": verdict["share"],
        "right": verdict["family"] == training.family,
        "steps": [one["steps"] for one in told] == [rank["steps"] for rank in report["per_rank"]],
        "losses": losses[0] == losses[1],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="the trainings to run (default: all)")
    parser.add_argument("--list", action="store_true", help="list the trainings and the library that each needs")
    parser.add_argument("--json", metavar="FILE", help="also write the rows there")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - TRAININGS.keys():
        parser.error(f"no training is named {', '.join(sorted(unknown))}; --list shows the names")
    if arguments.list:
        for name, training in TRAININGS.items():
            print(f"{name:<22} {training.library or 'no library'}")
        return 0
    rows = []
    print("| training | lost by its clock | verdict | steps right | losses equal |\n|-|-|-|-|-|")
    for name in arguments.names or TRAININGS:
        training = TRAININGS[name]
        if not installed(training.library):
            print(f"| {name} | {training.library} is not installed | | | |")
            continue
        try:
            rows.append(found := row(name, training))
        except (RuntimeError, subprocess.SubprocessError) as error:
            print(f"| {name} | failed | | | |")
            print(error, file=sys.stderr)
            continue
        said = f"{found['verdict']} {found['share']:.0%}" + ("" if found["right"] else f", not {training.family}")
        yes = [("no", "yes")[found[key]] for key in ("steps", "losses")]
        print(f"| {name} | {found['truth']:.0%} | {said} | {' | '.join(yes)} |", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

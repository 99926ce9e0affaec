"""`whyidle bench storage PATH…`: measures how fast storage serves data loading and checkpoints."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from ....advisor.bench.storage import dlio, mlperf, waits
from ....advisor.bench.storage.dataset import LOOP, REPLAY
from ....advisor.bench.storage.job import WITHOUT_TORCH, run_name
from ....advisor.bench.storage.plan import PARTS, BenchError, Plan
from ....ledger.directory import ledger_dir
from ... import rooms
from ...durations import duration
from ...progress import open_progress
from ...quantities import size, whole
from ...stopping import Stopped, StopSignals
from . import places, text
from .child import Child

_DEFAULT_SIZE = 256_000_000
_SHARDS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a directory on the storage to measure")
    parser.add_argument(
        "--only",
        type=_parts,
        metavar="PARTS",
        help=f"parts to measure, of {','.join(PARTS)} (default: all except replay; not with --mlperf)",
    )
    parser.add_argument("--replay", action="store_true", help="also measure the loop as if storage took no time")
    parser.add_argument(
        "--seconds",
        type=duration,
        default="10s",
        metavar="TIME",
        help="time for each measurement (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--save",
        action="store_true",
        help="keep the rates beside the ledgers, so that `whyidle report` can advise to move files to a faster mount",
    )
    load = parser.add_argument_group("data loading", "Write sizes as 128kB, 64MiB or 1GB.")
    load.add_argument(
        "--workers",
        type=whole,
        metavar="N",
        help="workers of the DataLoader (default: 4, or the number of CPUs if lower)",
    )
    load.add_argument("--batch-size", type=whole, metavar="N", help="samples in a batch (default: 32)")
    load.add_argument(
        "--sample-size", type=size, metavar="SIZE", help="size of a sample, which is one file (default: 128kB)"
    )
    load.add_argument(
        "--size", type=size, metavar="SIZE", help="size of the dataset, and of all shards together (default: 256MB)"
    )
    load.add_argument(
        "--files", type=whole, default="1000", metavar="N", help="number of small files (default: %(default)s)"
    )
    save = parser.add_argument_group("checkpoints")
    save.add_argument(
        "--checkpoint-size",
        type=size,
        default="256MB",
        metavar="SIZE",
        help="size of one checkpoint (default: %(default)s)",
    )
    save.add_argument("--repeat", type=whole, default="3", metavar="N", help="saves of each format (default: 3)")
    rules = parser.add_argument_group("MLPerf Storage's rules")
    rules.add_argument("--mlperf", action="store_true", help="measure AU, how busy storage keeps an accelerator")
    rules.add_argument("--dlio", metavar="FILE", help="take the dataset and the step from a workload of DLIO, in YAML")
    rules.add_argument("--compute", type=duration, metavar="TIME", help="how long a step computes, for --mlperf")
    rules.add_argument("--memory", type=size, metavar="SIZE", help="memory of the host (default: as found)")
    rules.add_argument(
        "--drop-caches", action="store_true", help="first empty all caches of the kernel, which needs root"
    )


def _parts(words: str) -> tuple[str, ...]:
    chosen = {word.strip() for word in words.split(",")}
    if unknown := sorted(chosen - set(PARTS)):
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not a part; the parts are {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in chosen)


def run(args: argparse.Namespace) -> int:
    """Exit status 0; 1 if a path or a part cannot be measured; 2 if the arguments do not fit together."""
    try:
        workload = plan_of(args)
        memory = (args.memory or mlperf.host_memory()) if args.mlperf else 0
        if args.mlperf and not (args.size or args.dlio):
            files = -(-mlperf.MEMORY_FACTOR * memory // workload.plan.sample_bytes)
            workload = replace(workload, plan=replace(workload.plan, files=files))
    except (BenchError, OSError) as error:
        return _refuse(str(error), 2)
    plan = workload.plan
    if set(plan.parts) - WITHOUT_TORCH and importlib.util.find_spec("torch") is None:
        return _refuse("this needs PyTorch, which is not installed here: pip install torch", 2)
    stop = StopSignals()
    try:
        report = _measure(args.paths, plan, stop)
    except Stopped as error:
        _refuse(f"stopped by {error}", 0)
        return error.status
    except BenchError as error:
        return _refuse(str(error), 1)
    for path in report["paths"]:
        _conclude(path, args, workload, memory)
    report["workload"] = {"name": workload.name, "notes": workload.notes} if args.dlio else None
    print(json.dumps(report, indent=2) + "\n" if args.json else text.render(report), end="")
    if args.save:
        try:
            rooms.save(ledger_dir(), report["paths"])
        except OSError as error:
            return _refuse(f"the rates cannot be kept in {ledger_dir()}: {error.strerror}", 1)
    return int(any(path["errors"] for path in report["paths"]))


def _refuse(sentence: str, code: int) -> int:
    print(f"whyidle bench storage: {sentence}", file=sys.stderr)
    return code


def plan_of(args: argparse.Namespace) -> dlio.Workload:
    """The plan from the arguments. Raises BenchError and OSError."""
    if args.drop_caches and not args.mlperf:
        raise BenchError("--drop-caches needs --mlperf, because it slows down everything on this machine")
    if args.drop_caches and os.geteuid() != 0:
        raise BenchError("--drop-caches needs root")
    if args.mlperf and args.only:
        raise BenchError("--mlperf measures only the loop over samples: leave out --only")
    sample = args.sample_size or 128_000
    whole = args.size or _DEFAULT_SIZE
    parts = args.only or tuple(part for part in PARTS if part != "replay")
    if args.mlperf:
        parts = ("samples",)
    if args.replay:
        parts = tuple(part for part in PARTS if part in parts or part in ("samples", "replay"))
    plan = Plan(
        parts=parts,
        seconds=0.0 if args.mlperf else args.seconds,
        workers=args.workers or min(4, os.cpu_count() or 1),
        batch=args.batch_size or 32,
        files=max(1, whole // sample),
        sample_bytes=sample,
        shard_bytes=max(1, whole // _SHARDS),
        shards=_SHARDS,
        small_files=args.files,
        checkpoint_bytes=args.checkpoint_size,
        repeat=args.repeat,
        compute=args.compute or 0.0,
        drop_caches=args.drop_caches,
    )
    found = dlio.Workload("", plan)
    if args.dlio:
        found = dlio.workload(_yaml(args.dlio), plan)
        if args.sample_size or args.batch_size or args.workers or args.compute:
            raise BenchError(
                "the file of --dlio sets samples, batches, workers and steps: leave out the options for them"
            )
        if args.size:
            found = dlio.cut(found, args.size)
    samples = found.plan.files * found.plan.samples_per_file
    as_large_as_memory = args.mlperf and not (args.size or args.dlio)
    if samples < found.plan.batch and "samples" in found.plan.parts and not as_large_as_memory:
        raise BenchError(
            f"the dataset has {samples} samples, and a batch has {found.plan.batch}: choose a larger --size, or a"
            " smaller --sample-size or --batch-size"
        )
    if args.mlperf and not found.plan.compute:
        raise BenchError(
            "--mlperf needs the time that a step computes: give --compute, or a workload of DLIO with --dlio"
        )
    return found


def _yaml(path: str) -> Any:
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            return yaml.safe_load(file)
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} is not YAML: {' '.join(str(error).split())}") from error


def _measure(paths: list[str], plan: Plan, stop: StopSignals) -> dict[str, Any]:
    """Measures the paths one after another. Raises BenchError and Stopped."""
    with ExitStack() as stack:
        for path in paths:
            places.remove_left(path)
            places.check(path, plan.room)
        made = []
        for path in paths:
            made.append(places.make(path))
            stack.callback(places.remove, made[-1].directory)
        own = places.make_own()
        stack.callback(places.remove, own)
        progress = stack.enter_context(open_progress("bench storage"))
        entries = [_entry(place) for place in made]
        child = Child([place.directory for place in made], plan, own)
        stack.callback(child.end)
        for said in child.said(stop):
            if "done" in said:
                number = said["path"] * len(plan.parts) + plan.parts.index(said["part"]) + 1
                title = f"{number}/{len(plan.parts) * len(made)} {paths[said['path']]}: {said['part']}"
                progress.show(title, min(1.0, said["done"]), said["note"])
            else:
                _take(entries[said["path"]], said)
        if child.status:
            raise BenchError(f"the process that measures ended with status {child.status}:\n{child.log()}".rstrip())
        for number, entry in enumerate(entries):
            for part in ("samples", "replay", "shards"):
                if found := waits.split(child.ledgers, run_name(number, part)):
                    entry["waits"][part] = found
        return {"plan": asdict(plan), "paths": entries}


def _entry(place: places.Place) -> dict[str, Any]:
    return {
        "path": place.path,
        "file_system": place.file_system.type,
        "kind": place.file_system.kind,
        "measures": [],
        "notes": [],
        "errors": [],
        "waits": {},
    }


def _take(entry: dict[str, Any], said: dict[str, Any]) -> None:
    """Adds the results of a part to the entry of its path."""
    if "error" in said:
        entry["errors"].append({"part": said["part"], "error": said["error"]})
    else:
        entry["measures"] += said["measures"]
        entry["notes"] += said["notes"]


def _conclude(path: dict[str, Any], args: argparse.Namespace, workload: dlio.Workload, memory: int) -> None:
    """Adds the conclusions from the measures of a path."""
    measures = {measure["name"]: measure for measure in path["measures"]}
    loop, replay = measures.get(LOOP), measures.get(REPLAY)
    speedup = None
    if loop and replay and loop["items_per_second"] and replay["items_per_second"]:
        speedup = replay["items_per_second"] / loop["items_per_second"]
    path["replay_speedup"] = speedup
    path["mlperf"] = None
    if args.mlperf and loop:
        path["mlperf"] = mlperf.judge(
            loop,
            memory=memory,
            own_memory=args.memory is None,
            least_au=workload.least_au,
            dropped_all=workload.plan.drop_caches,
        )

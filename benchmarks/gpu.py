"""Checks whyidle's figures on a GPU against raw events, Kineto and the GPU's own counters.

    python benchmarks/gpu.py [--device cuda|sim] [--only NAME,NAME] [--quick] [--minutes N] [--json] [--out FILE]
                             [--case NAME] [--keep DIR]

Prints a table, or one JSON object with --json. Progress goes to stderr. Each section runs in its own process with a
time limit, so that a section that fails or hangs does not affect the others. With --quick, the sections share one
process. Skipped checks are listed, with the reason.

Exit status: 0 if all figures are within their thresholds, 1 if one is not or a section failed, 2 for bad usage. Without
a GPU, and without --device sim, it says so and exits 0. `--device sim` uses the simulated device of
tests/support/simdevice.

To run it from a checkout, without installing whyidle:

    mkdir -p /tmp/p && ln -sfn "$PWD" /tmp/p/whyidle && PYTHONPATH=/tmp/p python3 benchmarks/gpu.py
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

SECTIONS: dict[str, tuple[float, str]] = {
    "idle": (120, "idle of known length, while the loop waits for batches"),
    "exposed": (
        420,
        "exposed communication of DDP, FSDP1, FSDP2: two ranks in one process, collectives of known length",
    ),
    "late": (150, "two ranks on one device, with gloo and the real exchange, one late by a known time"),
    "cost": (240, "what 0, 20, 300 and 800 boundaries cost a step"),
    "queue": (120, "a full launch queue: torn reads of the ledger, and Python's lock"),
    "captures": (240, "captures, and compiled graphs"),
    "fork": (120, "a fork after 1,000 events"),
    "drift": (120, "device time on the host's clock, for some minutes"),
    "agent": (120, "the agent's /metrics against the ledger"),
    "duty": (300, "NVML, GPM, nvidia-smi and compute_idle against a known duty cycle"),
    "loops": (420, "loops as people write them, against Kineto"),
    "reasons": (420, "loops that are slow for a known reason, against Kineto, and whether the verdict names it"),
    "unchanged": (420, "the same loops with and without whyidle: parameters, and time in pairs"),
    "ends": (180, "ways in which runs end, such as an error of CUDA, and what the report says of them"),
    "spin": (60, "whether a host that waits for its device uses a CPU"),
    "model": (180, "a Hugging Face model for half a minute: its verdict against Kineto's idle share"),
}
"""Section -> (time limit in seconds, description). The limit of `drift` does not include its --minutes."""


def arguments_of(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "sim"), default="cuda", help="default: %(default)s")
    only = "sections, separated by commas (default: all, or with --case those that have it)"
    parser.add_argument("--only", metavar="NAME,NAME", help=only)
    cases = "a case of loops, reasons, unchanged or ends; may be repeated (default: all cases)"
    parser.add_argument("--case", metavar="NAME", action="append", dest="cases", default=[], help=cases)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, and one process for all sections")
    parser.add_argument("--minutes", type=float, help="how long drift is watched (default: 10; simulated: 0.3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--out", metavar="FILE", help="also write the JSON object there")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep all ledgers there")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    named = options.only.split(",") if options.only else [*SECTIONS]
    if unknown := [name for name in named if name not in SECTIONS]:
        parser.error(f"no such section: {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    if options.cases and has_torch():
        try:
            named = sections_of(options.cases, named if options.only else None)
        except ValueError as error:
            parser.error(str(error))
    options.only = named
    if options.minutes is None:
        options.minutes = 0.3 if options.device == "sim" else 10.0
    if not 0 < options.minutes <= 24 * 60:
        parser.error(f"--minutes must be above 0 and at most {24 * 60}: {options.minutes:g}")
    return options


# -- running sections, in child processes


def rows_of(name: str, rig: Any, options: argparse.Namespace) -> Iterator[Any]:
    from gpu_check import cost, counters, ends, robust, truth, unchanged, waits

    if name == "drift":
        return robust.drift(rig, options.quick, options.minutes)
    of_cases = {
        "loops": truth.loops,
        "reasons": truth.reasons,
        "unchanged": unchanged.unchanged,
        "ends": ends.ends,
    }
    if name in of_cases:
        return of_cases[name](rig, options.quick, options.cases or cases()[name])
    sections = {
        "idle": waits.idle,
        "exposed": waits.exposed,
        "late": waits.late,
        "cost": cost.cost,
        "queue": robust.queue,
        "captures": robust.captures,
        "fork": robust.fork,
        "agent": counters.agent,
        "duty": counters.duty,
        "spin": robust.spin,
        "model": counters.model,
    }
    return sections[name](rig, options.quick)


def cases() -> dict[str, Collection[str]]:
    """Section -> its cases. Other sections have none."""
    from gpu_check import ends, programs, reasons

    loops, slow = programs.PROGRAMS, reasons.REASONS
    return {"loops": loops, "reasons": slow, "unchanged": [*loops, *slow], "ends": ends.WAYS}


def sections_of(names: list[str], only: list[str] | None) -> list[str]:
    """The sections that have these cases. With ``only`` each of them must have one, and each case must be in one."""
    found = cases()
    for name in names:
        if not any(name in found[section] for section in found if only is None or section in only):
            there = [each for section in only or found for each in found.get(section, ())]
            where = f" in {', '.join(only)}" if only else ""
            raise ValueError(f"no such case{where}: {name}; there are {'; '.join(dict.fromkeys(there)) or 'none'}")
    having = [section for section in found if any(name in found[section] for name in names)]
    for section in only or ():
        if section in found and section not in having:
            raise ValueError(f"no case of {section} is named; there are {'; '.join(found[section])}")
    return only or [section for section in SECTIONS if section in having]


def child(options: argparse.Namespace) -> int:
    """Runs some sections. Writes each row to ``--out`` at once, so that a hang loses no rows that came before."""
    import torch
    from gpu_check.rig import machine, rig_of

    faulthandler.enable()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rig = rig_of(options.device)
    if options.child == "late_rank":
        from gpu_check import waits

        print(json.dumps(waits.late_rank(rig, options.quick, 1, options.port)))
        return 0
    with open(options.out, "w") as out:

        def tell(**what: Any) -> None:
            out.write(json.dumps(what) + "\n")
            out.flush()

        tell(machine={**rig.describe(), **machine()})
        for name in options.child.split(","):
            begun, failed, count, bad = time.monotonic(), None, 0, 0
            progress(f"{name}: {SECTIONS[name][1]} ...")
            tell(begins=name)
            try:
                for row in rows_of(name, rig, options):
                    count, bad = count + 1, bad + (row.ok is False)
                    tell(row=row.as_dict())
                failed = None if count else "nothing was checked"
            except Exception as error:  # the other sections must still run
                traceback.print_exc()
                failed = f"{type(error).__name__}: {error}"
            seconds = round(time.monotonic() - begun, 1)
            tell(ended=name, failed=failed, seconds=seconds)
            progress(f"    {failed or (f'{bad} out of bounds' if bad else 'ok')}, {seconds:.0f} s")
    return 0


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_child(names: list[str], options: argparse.Namespace, report: dict[str, Any]) -> None:
    """Runs some sections in one process, and puts their rows into the report."""
    limit = sum(SECTIONS[name][0] for name in names) + (60 * options.minutes if "drift" in names else 0)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows"
        command = [sys.executable, str(Path(__file__).resolve()), "--child", ",".join(names), "--out", str(out)]
        command += ["--device", options.device, "--minutes", str(options.minutes), *(["--quick"] * options.quick)]
        command += [word for name in options.cases for word in ("--case", name)]
        process = subprocess.Popen(command, env=clean_env(), stdout=sys.stderr, start_new_session=True)
        try:
            why = f"exit status {process.wait(limit)}, before it ended: see stderr"
        except subprocess.TimeoutExpired:
            why = f"exceeded its limit of {limit:g} s"
            progress(f"    {why}")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # the sections, and the processes that they started
                process.wait()
        told = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    sections = report["sections"]
    for name in names:
        sections[name] = {"seconds": None, "failed": why, "rows": []}
    current: dict[str, Any] = {}
    for line in told:
        if "machine" in line:
            report["machine"] = line["machine"]
        elif "begins" in line:
            current = sections[line["begins"]]
        elif "row" in line:
            current["rows"].append(line["row"])
        else:
            current.update(seconds=line["seconds"], failed=line["failed"])


def clean_env() -> dict[str, str]:
    """This environment, without the variables of a launcher or of another whyidle."""
    foreign = ("WHYIDLE", "MASTER_", "TORCHELASTIC")
    theirs = {"RANK", "WORLD_SIZE", "LOCAL_RANK"}
    return {key: value for key, value in os.environ.items() if not key.startswith(foreign) and key not in theirs}


# -- the report


def run(options: argparse.Namespace) -> dict[str, Any]:
    from gpu_check.rows import KEEP, LIMITS

    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        os.environ[KEEP] = str(options.keep.resolve())
    limits = {name: limit[options.device == "sim"] for name, limit in LIMITS.items()}
    report: dict[str, Any] = {"benchmark": "gpu", "quick": options.quick, "limits": limits, "sections": {}}
    for names in [options.only] if options.quick else [[name] for name in options.only]:
        run_child(names, options, report)
        report["ok"] = all(
            each["failed"] is None and all(row["ok"] is not False for row in each["rows"])
            for each in report["sections"].values()
        )
        if options.out:  # after each section, so that whoever stops this has what was measured
            Path(options.out).write_text(json.dumps(report, indent=1) + "\n")
    return report


def table(report: dict[str, Any]) -> str:
    machine = report.get("machine", {})
    lines = [" · ".join(f"{key} {machine[key]}" for key in machine)]
    for name, done in report["sections"].items():
        lines += ["", f"{name:<66} {'known':>10} {'measured':>10} {'limit':>8}  unit"]
        usual = 0
        for row in done["rows"]:
            if row["routine"] and row["ok"]:
                usual += 1
                continue
            cells = [_cell(row["known"], 10), _cell(row["measured"], 10), _cell(row["limit"], 8)]
            mark = {True: "ok ", False: "BAD", None: "   "}[row["ok"]]
            lines.append(f"{mark} {row['what']:<62} {' '.join(cells)}  {row['unit']}  {row['note']}".rstrip())
        if usual:
            lines.append(f"ok  {usual} checks that causes add up, and of faults, lost boundaries and unattributed time")
        if done["failed"]:
            lines.append(f"BAD {name} failed: {done['failed']}")
    return "\n".join([*lines, "", "all within thresholds" if report["ok"] else "NOT all within thresholds"])


def _cell(value: float | None, width: int) -> str:
    return f"{'-' if value is None else f'{value:.4g}':>{width}}"


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def why_not(device: str) -> str | None:
    """A sentence that says why nothing can be checked here, or None."""
    if not has_torch():
        return "torch is not installed, so nothing was checked."
    if device == "sim":
        return None  # without the seconds that an import of torch takes
    import torch

    if not torch.cuda.is_available():
        return "There is no CUDA GPU here (or this torch has no CUDA), so nothing was checked. Try --device sim."
    return None


def main() -> int:
    options = arguments_of()
    if options.child:
        return child(options)
    if why := why_not(options.device):
        report = {"benchmark": "gpu", "skipped": why}
        print(json.dumps(report) if options.json else why)
        if options.out:
            Path(options.out).write_text(json.dumps(report, indent=1) + "\n")
    else:
        report = run(options)
        print(json.dumps(report, indent=1) if options.json else table(report))
    return 0 if report.get("ok", True) else 1


if __name__ == "__main__":
    sys.exit(main())

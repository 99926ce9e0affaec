"""Real training programs, with and without whyidle, beside an independent clock.

    python benchmarks/programs.py [--only NAME ...] [--again] [--list] [--json FILE] [--page]

The programs are other people's: their frameworks' own commands, or what their documentation tells users to write
(`benchmarks/programs_jobs`). They train in an environment `.venv/programs`, which this command makes. It takes torch
from the environment that it runs in, and installs each program's packages. What cannot be installed is left out, and
the table says so. GitHub is not needed.

Each program trains three times for each fault: without whyidle, with it, and without it beside py-spy. The weights of
the first two must be equal to the bit. py-spy is the clock (`programs_clock.py`). It stops the program for each sample:
if it did not, it would lose many samples of a program that is busy in Python, and whyidle sees these stops as blocked.
Rows are kept in `.venv/programs/rows.json`, so that a run that was interrupted continues. These are not tests: nothing
here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from programs_clock import RATE, Clock, read
from programs_page import line, page
from programs_table import PROGRAMS, Fault, Program

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".venv" / "programs"
ROWS = HOME / "rows.json"
JOBS = Path(__file__).with_name("programs_jobs")
TORCH = "torch==2.13.0"
LIMIT_SECONDS = 600
TOLD = "TOLD "
CAUSES = {
    "data": ("data_read", "data_cpu", "data_queue", "data_handoff", "data_start"),
    "save": ("checkpoint_write", "checkpoint_cpu"),
    "evaluation": ("evaluation",),
    "rollout": ("rollout",),
    "logging": ("logging",),
    "blocked": ("host_blocked",),
}


class Failed(Exception):
    """A sentence that says what cannot be installed, or how the program ended."""


def python() -> str:
    return str(HOME / "bin" / "python")


def environment() -> None:
    """Makes the environment, with the files of this environment's torch as hard links."""
    if (HOME / "bin" / "py-spy").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
    theirs, ours = (
        Path(
            subprocess.check_output(
                [one, "-c", "import sysconfig as s; print(s.get_path('purelib'))"], text=True
            ).strip()
        )
        for one in (sys.executable, python())
    )
    for path in (theirs / "torch", theirs / "torchgen", theirs / "functorch", *theirs.glob("torch-*.dist-info")):
        if path.exists():
            shutil.copytree(path, ours / path.name, copy_function=os.link)
    install("--no-deps", "--editable", str(ROOT))
    install(TORCH, "py-spy")


def install(*what: str) -> None:
    done = subprocess.run([python(), "-m", "pip", "install", "--quiet", *what], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(what)} cannot be installed: {done.stderr.strip().splitlines()[-1]}")


def packages(program: Program) -> None:
    stamp = HOME / "installed.json"
    known: list[str] = json.loads(stamp.read_text()) if stamp.exists() else []
    if not (wanted := [one for one in program.packages if one not in known]):
        return
    install(TORCH, *wanted)
    without_cuda()
    stamp.write_text(json.dumps([*known, *wanted]))


def without_cuda() -> None:
    """torchvision's and torchaudio's operators are built for CUDA, and do not load beside torch's build for CPUs."""
    for path in HOME.glob("lib/python3*/site-packages/torchaudio/lib/*.so"):
        path.unlink()
    for path in HOME.glob("lib/python3*/site-packages/torchvision/_meta_registrations.py"):
        if path.stat().st_size:
            path.unlink()
            path.touch()


def train(program: Program, fault: Fault, folder: Path, how: str) -> tuple[dict[str, Any], int]:
    """What the program told, and its exit status. ``how``: plain, recorded, clock."""
    own = {
        "WHYIDLE_DIR": str(folder / how / "ledgers"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
        "PATH": f"{HOME / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(JOBS),
    }
    if how != "recorded":
        own["WHYIDLE"] = "0"
    work = folder / how / "work"
    work.mkdir(parents=True)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(program.ranks))
    script, *rest = program.command
    job = [python(), *(launcher if program.ranks > 1 else ()), str(JOBS / script), str(work), *rest, *fault.arguments]
    if how == "clock":
        spy = ["py-spy", "record", "--subprocesses", "--idle", "-r", str(RATE), "-f", "speedscope"]
        job = [*spy, "-o", str(folder / "clock.json"), "--", *job]
    if how == "recorded":
        job = [str(HOME / "bin" / "whyidle"), "run", "--", *job]
    done = subprocess.run(
        job,
        env={**os.environ, **own},
        cwd=work,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    (folder / f"{how}.log").write_text(done.stdout + done.stderr)
    lines = [one for one in done.stdout.splitlines() if one.startswith(TOLD)]
    if not lines and fault.family != "too short":
        raise Failed(f"it ended with {done.returncode}: {(done.stderr.strip() or 'no output').splitlines()[-1][:300]}")
    return (json.loads(lines[-1][len(TOLD) :]) if lines else {}), done.returncode


def report(folder: Path, how: str, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [str(HOME / "bin" / "whyidle"), "report", "--json", "--dir", str(folder / how / "ledgers"), *options],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise Failed(done.stderr.strip())
    return json.loads(done.stdout)


def shares(said: dict[str, Any]) -> dict[str, float]:
    total = said["rank_seconds"]
    return {
        name: sum(said["seconds"][cause] for cause in causes) / total if total else 0.0
        for name, causes in CAUSES.items()
    }


def row(name: str, fault_name: str, keep: Path | None) -> dict[str, Any]:
    program = PROGRAMS[name]
    fault = program.faults[fault_name]
    packages(program)
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep / f"{name}-{fault_name}".replace(" ", "_") if keep else Path(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        plain, _ = train(program, fault, folder, "plain")
        told, _ = train(program, fault, folder, "recorded")
        said = report(folder, "recorded", "--most-spread=inf")
        found: dict[str, Any] = {"program": name, "fault": fault_name, "of": program.of, "expected": fault.family}
        found["verdict"] = "too short" if said["too_short"] else said["verdict"]["family"]
        found["share"] = said["verdict"]["share"] if said["verdict"] else 0.0
        found["advice"] = [
            {key: one[key] for key in ("id", "change", "share", "least", "most")} for one in said["advice"]
        ]

        found["equal"] = plain.get("weights") == told.get("weights")
        found["told"] = told
        evaluations = [one for one in said["asides"] if one["cause"] == "evaluation"]
        found["counted"] = {
            "steps": said["steps"],
            "evaluations": evaluations[0]["batches"] if evaluations else None,
            "saves": said["saves"]["count"],
            "bytes": said["saves"]["bytes"],
        }
        if fault.family != "too short":
            train(program, fault, folder, "clock")
            found |= beside_clock(read(folder / "clock.json", program.waits, program.parts), said)
        if fault.taken and any(one["id"] == fault.taken[0] for one in found["advice"]):
            changed, _ = train(program, Fault(fault.taken[1]), folder / "taken", "plain")
            found["taken"] = {"rule": fault.taken[0], "before": plain["seconds"], "after": changed["seconds"]}
        return found


def beside_clock(clocks: list[Clock], said: dict[str, Any]) -> dict[str, Any]:
    if not clocks:
        raise Failed("py-spy saw no training")
    total = sum(one.seconds for one in clocks)
    truth = {name: sum(one.classes.get(name, 0.0) * one.seconds for one in clocks) / total for name in CAUSES}
    return {
        "clock": truth,
        "whyidle": shares(said),
        "startup": [max(one.startup for one in clocks), said["startup_seconds"]],
        "wall": [total / len(clocks), said["wall_seconds"]],
        "outside": clocks[0].outside,
    }


def kept() -> dict[str, dict[str, Any]]:
    return json.loads(ROWS.read_text()) if ROWS.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="programs, or NAME:FAULT")
    parser.add_argument("--again", action="store_true", help="also run what already has a row")
    parser.add_argument("--list", action="store_true", help="list the programs and what they need")
    parser.add_argument("--json", metavar="FILE", help="also write the rows there")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep ledgers, logs and the clock's samples there")
    parser.add_argument("--page", action="store_true", help="write the table of docs/programs.md")
    arguments = parser.parse_args()
    if arguments.list:
        for name, program in PROGRAMS.items():
            print(
                f"{name:<22} {program.of}; {', '.join(program.packages) or 'no package'}; {', '.join(program.faults)}"
            )
        return 0
    if unknown := {one.split(":")[0] for one in arguments.only or ()} - PROGRAMS.keys():
        parser.error(f"no program is named {', '.join(sorted(unknown))}; --list shows the names")
    environment()
    rows = kept()
    for name, program in PROGRAMS.items():
        for fault in program.faults:
            key = f"{name}:{fault}"
            if arguments.only and not {name, key} & set(arguments.only):
                continue
            if key not in rows or arguments.again or "failed" in rows[key]:
                try:
                    rows[key] = row(name, fault, arguments.keep)
                except (Failed, subprocess.TimeoutExpired) as error:
                    rows[key] = {"program": name, "fault": fault, "of": program.of, "failed": str(error)}
                rows = {**kept(), key: rows[key]}
                ROWS.write_text(json.dumps(rows, indent=1) + "\n")
            print(line(rows[key]), flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(list(rows.values()), indent=1) + "\n")
    if arguments.page:
        page(ROOT / "docs" / "programs.md", [rows.get(f"{n}:{f}") for n, p in PROGRAMS.items() for f in p.faults])
    return 0


if __name__ == "__main__":
    sys.exit(main())

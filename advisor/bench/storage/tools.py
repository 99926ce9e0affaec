"""Measures reads past the page cache with fio and elbencho, if they are installed, to compare them with our results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from . import caches
from .plan import QUANTILES, BenchError, Found, Measure, Plan, Tell

_BLOCK = 1 << 20
_PATIENCE_SECONDS = 60.0


class Tool(NamedTuple):
    """A program. Its commands run one after another in an empty directory."""

    name: str
    commands: Callable[[str, Plan], dict[str, list[str]]]
    """Takes a directory and a plan. Returns name of the measurement -> command line. An empty name is a preparation."""
    read: Callable[[str, str, str], Measure]
    """Takes the name of the measurement, the standard output and the directory. Raises BenchError."""


def measure(place: str, plan: Plan, tell: Tell) -> Found:
    """Runs the installed programs. If one fails, its results are replaced by a sentence. Raises OSError."""
    in_memory = caches.file_system(place).kind == "memory"  # cannot be read past the page cache
    found: list[Measure | str] = []
    for tool in (tool for tool in TOOLS if shutil.which(tool.name)):
        directory = os.path.join(place, tool.name)
        os.mkdir(directory)
        commands = tool.commands(directory, plan)
        for at, (what, command) in enumerate(commands.items()):
            tell(at / len(commands), f"{tool.name} {what}".strip())
            try:
                output = _output(command, plan)
                if what:
                    measured = tool.read(what, output, directory)
                    found.append(replace(measured, cached=1.0) if in_memory else measured)
            except BenchError as error:
                found.append(f"{tool.name} {what}: {error}")
                break
        shutil.rmtree(directory)
    return found


def _output(command: list[str], plan: Plan) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=plan.seconds + _PATIENCE_SECONDS if plan.seconds else None,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"has not ended after {error.timeout:.0f} s") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise BenchError(f"ended with status {done.returncode}: {''.join(last)}")
    return done.stdout


def _fio_commands(place: str, plan: Plan) -> dict[str, list[str]]:
    common = [
        "fio", "--name=whyidle", f"--directory={place}", f"--size={_aligned(plan.shard_bytes, _BLOCK)}",
        "--thread",  # fio's processes would leave our process group and outlive it
        "--direct=1", "--ioengine=psync", "--fallocate=none", f"--numjobs={max(1, plan.workers)}", "--group_reporting",
        "--filename=fio.bin", "--output-format=json",
        *([f"--runtime={max(1, round(plan.seconds))}"] if plan.seconds else []),
    ]  # fmt: skip
    sample = _aligned(min(plan.sample_bytes, plan.shard_bytes), 4096)
    return {
        "read in order": [*common, "--rw=read", f"--bs={_BLOCK}"],
        "read at random": [*common, "--rw=randread", f"--bs={sample}"],
    }


def read_fio(what: str, text: str, place: str = "") -> Measure:
    """Reads fio's JSON (fio(1), --output-format=json). Raises BenchError."""
    try:
        job = _objects(text)[0]["jobs"][0]
        if job["error"]:
            raise BenchError(f"fio: {os.strerror(job['error'])}")
        read = job["read"]
        percentiles = read["clat_ns"]["percentile"]
        return Measure(
            f"fio: {what}",
            read["io_bytes"],
            0,
            "",
            read["io_bytes"] / read["bw_bytes"],
            percentiles={q: percentiles[f"{q}.000000"] / 1e9 for q in QUANTILES},
        )
    except (LookupError, TypeError, ZeroDivisionError) as error:
        raise BenchError(f"fio reported no reads: {text.strip()[-200:]}") from error


def _elbencho_commands(place: str, plan: Plan) -> dict[str, list[str]]:
    file, size = os.path.join(place, "elbencho.bin"), str(_aligned(plan.shard_bytes, _BLOCK))
    common = ["elbencho", "--direct", "--lat", "--threads", str(max(1, plan.workers)), "--size", size]
    limit = ["--timelimit", str(max(1, round(plan.seconds)))] if plan.seconds else []
    result = ["--jsonfile", os.path.join(place, "elbencho.json")]
    return {
        "": [*common, "--write", "--block", str(_BLOCK), file],
        "read in order": [*common, "--read", "--block", str(_BLOCK), *limit, *result, file],
    }


def read_elbencho(what: str, text: str, place: str) -> Measure:
    """Reads elbencho's JSON: one object per phase, with numbers as strings (source/Statistics.cpp). Raises
    BenchError."""
    try:
        with open(os.path.join(place, "elbencho.json")) as file:
            last = _objects(file.read())[-1]["last_done"]
        size, rate = int(last["bytes"]), float(last["bytes/s"])
        return Measure(f"elbencho: {what}", size, 0, "", size / rate)
    except (OSError, LookupError, TypeError, ValueError, ZeroDivisionError) as error:
        raise BenchError(f"elbencho reported no reads: {text.strip()[-200:]}") from error


def _objects(text: str) -> list[Any]:
    """The JSON objects in a text, one after another. Text before the first one is a warning and is skipped."""
    decoder, found, at = json.JSONDecoder(), [], text.find("{")
    while at >= 0:
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise LookupError(str(error)) from error
        found.append(value)
        at = text.find("{", at)
    return found


TOOLS: tuple[Tool, ...] = (
    Tool("fio", _fio_commands, read_fio),
    Tool("elbencho", _elbencho_commands, read_elbencho),
)


def _aligned(size: int, block: int) -> int:
    """Rounds a size down to whole blocks, because reads past the page cache must have whole blocks. At least one
    block."""
    return max(block, size // block * block)

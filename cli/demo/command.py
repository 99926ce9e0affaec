"""`whyidle demo`: trains a small model on this machine, watches it with an agent, and explains where its time went."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from ..stopping import Stopped, StopSignals
from ..terminal import shows_colours
from .injection import KINDS, Injection, choose, outcome_text

JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "job.py")
STUCK_SECONDS = 180.0
"""The demo stops if the job makes no step for this long."""
_SCRAPE_EVERY_SECONDS = 1.0
_LOOK_EVERY_SECONDS = 0.1
_AGENT_SECONDS = 30.0
"""The demo stops if the agent does not answer for this long."""
_FOREIGN = ("PET_", "TORCHELASTIC_", "MASTER_", "WHYIDLE")
_FOREIGN_NAMES = frozenset({"RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PYTHONSAFEPATH"})
"""Environment variables that would make our torchrun part of a surrounding job, or keep job.py from importing modules
beside it."""


class DemoError(Exception):
    """The demo cannot go on. It has a sentence for the user, and the log of the process that failed."""

    def __init__(self, sentence: str, log: str = ""):
        super().__init__(sentence)
        self.log = log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=_number_of("seconds", 86400), default=30.0, help="training time (default: %(default)g)"
    )
    parser.add_argument("--ranks", type=_ranks, default=2, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--inject", choices=KINDS, default="none", help="what to slow down (default: %(default)s)")
    parser.add_argument(
        "--inject-rank",
        metavar="all|N",
        help="on which rank (default: all; for a straggler the last one)",
    )
    parser.add_argument(
        "--inject-delay",
        type=_number_of("milliseconds", 60000),
        metavar="MS",
        help="how long each delay is (default: 150 to 1000, depending on the fault)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of text")


def _number_of(what: str, most: int) -> Callable[[str], float]:
    """Returns a function that reads a number from 1 to ``most``."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 1 <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: give a number of {what}, from 1 to {most}")
        return number

    return read


def _ranks(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of processes, from 1 to 64")
    return int(text)


def run(args: argparse.Namespace) -> int:
    try:
        injection = choose(args.inject, args.inject_rank, args.ranks, args.inject_delay)
    except ValueError as error:
        return _refuse(str(error), 2)
    if importlib.util.find_spec("torch") is None:
        return _refuse("the demo trains with PyTorch, which is not installed here: pip install torch", 2)
    if os.environ.get("WHYIDLE") == "0":
        return _refuse("WHYIDLE=0 is set, which switches recording off: unset it", 2)
    from .places import NoRoom, make

    stop = StopSignals()
    try:
        places = make(args.ranks)
    except NoRoom as error:
        return _refuse(str(error), 1)
    demo = Demo(args.seconds, injection, places, stop)
    try:
        report = demo.run()
    except Stopped as error:
        _refuse(f"stopped by {error}", 0)
        return error.status
    except DemoError as error:
        if error.log:
            print(error.log.rstrip("\n"), file=sys.stderr)
        return _refuse(str(error), 1)
    finally:
        demo.close()
    _print(report, injection, args.json)
    return 0


def _refuse(sentence: str, code: int) -> int:
    print(f"whyidle demo: {sentence}", file=sys.stderr)
    return code


def _print(report: dict[str, Any], injection: Injection, as_json: bool) -> None:
    from ..report import render_json, render_text

    if as_json:
        print(render_json(report))
        return
    colour = shows_colours()
    print(render_text(report, colour=colour), end="")
    if text := outcome_text(injection, report["injected"]):
        print(f"\n{text}", end="")


class Demo:
    """One run of the job, with an agent."""

    def __init__(self, seconds: float, injection: Injection, places: Any, stop: StopSignals):
        self._seconds = seconds
        self._injection = injection
        self._places = places
        self._stop = stop
        self._agent: subprocess.Popen[bytes]
        self._job: subprocess.Popen[bytes]
        self._run = "demo" if not injection.label else f"demo-injected-{injection.kind.name}"

    def run(self) -> dict[str, Any]:
        """Runs job and agent until the job ends. Returns the report. Raises DemoError or Stopped.

        Call close() in any case.
        """
        from .processes import adopt_orphans, start
        from .view import Scene, open_view

        adopt_orphans()
        places, env = self._places, self._environment()
        python = [sys.executable, "-m", "whyidle.cli.main"]
        agent = [*python, "agent", "--web.listen-address", "127.0.0.1:0", "--ledger.dir", places.ledgers]
        job = [*python, "run", "--dir", places.ledgers, "--run", self._run, "--", *self._torchrun()]
        scene = Scene(self._title(), self._injection.label, self._seconds)
        view = open_view(scene)
        try:
            self._agent = start(agent, places.log("agent"), env, places.temporary)
            self._job = start(job, places.log("job"), env, places.temporary)
            self._watch(scene, view)
        except OSError as error:
            raise DemoError(f"cannot start {error.filename}: {error.strerror}") from error
        finally:
            view.close()
        return self._report()

    def close(self) -> None:
        """Kills all processes and removes all files of the demo."""
        try:
            from .processes import kill_all

            kill_all("WHYIDLE_DIR", self._places.ledgers)
        finally:  # psutil may be missing
            self._places.remove()

    def _title(self) -> str:
        ranks = self._injection.world
        return f"a small transformer learns Python on {ranks} rank{'' if ranks == 1 else 's'} for {self._seconds:g} s"

    def _environment(self) -> dict[str, str]:
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_FOREIGN) and name not in _FOREIGN_NAMES
        }
        env["WHYIDLE_DIR"] = self._places.ledgers
        env["TMPDIR"] = self._places.temporary
        env["OMP_NUM_THREADS"] = "1"
        env["PYTHONUNBUFFERED"] = "1"
        # All ranks are on this machine, whatever its name resolves to.
        env["GLOO_SOCKET_IFNAME"] = "lo"
        return env

    def _torchrun(self) -> list[str]:
        places = self._places
        return [
            sys.executable, "-m", "torch.distributed.run",
            "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(self._injection.world),
            JOB,
            "--seconds", str(self._seconds),
            "--checkpoints", places.disk,
            "--trace", places.trace,
            *self._injection.job_arguments(),
        ]  # fmt: skip

    # -- while it runs

    def _watch(self, scene: Any, view: Any) -> None:
        from .scrape import scrape

        started = moved = answered = time.monotonic()
        steps, address, due = 0, "", 0.0
        while self._job.poll() is None:
            self._stop.check()
            now = time.monotonic()
            scene.startup = now - started
            address = address or self._agent_address()
            if now >= due:
                due = now + _SCRAPE_EVERY_SECONDS
                try:
                    if address:
                        scene.ranks = scrape(address)
                        answered = now
                except (OSError, ValueError):
                    pass  # a single failure does not matter
                view.draw(scene)
            if now - answered > _AGENT_SECONDS:
                raise DemoError("the agent does not answer; the end of its log is above", self._tail("agent"))
            self._check_agent()
            if scene.steps != steps:
                steps, moved = scene.steps, now
            if now - moved > STUCK_SECONDS:
                raise DemoError(f"the job has made no step for {STUCK_SECONDS:.0f} s", self._tail("job"))
            time.sleep(_LOOK_EVERY_SECONDS)
        self._stop.check()
        code = self._job.returncode
        if code:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit status {code}"
            raise DemoError(f"the training job {how}; the end of its log is above", self._tail("job"))

    def _agent_address(self) -> str:
        match = re.search(r"\baddress=(\S+)", self._tail("agent"))
        return match[1] if match else ""

    def _check_agent(self) -> None:
        if (code := self._agent.poll()) is not None:
            raise DemoError(f"the agent ended with {code}; the end of its log is above", self._tail("agent"))

    def _tail(self, name: str) -> str:
        from .processes import tail

        return tail(self._places.log(name))

    # -- afterwards

    def _report(self) -> dict[str, Any]:
        from ...ledger.directory import read_directory, run_of
        from ...verdict.enough import NO_LIMITS
        from ...verdict.report import build_report
        from .truth import Trace

        self._agent.send_signal(signal.SIGTERM)
        try:
            self._agent.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            pass  # close() kills it
        ledgers, problems = read_directory(self._places.ledgers, steps=True)
        run = next((run_of(ledger) for ledger in ledgers if ledger.run == self._run), ("", self._run))
        report: dict[str, Any] = build_report(run, ledgers, time.monotonic_ns(), problems, least=NO_LIMITS)
        if report["ranks"] != self._injection.world or report["verdict"] is None:
            sentence = f"{report['ranks']} of {self._injection.world} ranks have left a ledger with steps"
            raise DemoError(f"{sentence}; the end of the job's log is above", self._tail("job"))
        windows = {ledger.rank: ledger.window_ns for ledger in ledgers}
        return {**report, "injected": self._injection.outcome(report, Trace(self._places.trace, windows))}

"""Runs a case in its own namespaces, and asks whyidle about it.

The mounts, the network and the processes of a case are its own. They end with it, also if it is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[1:1] = [str(Path(__file__).resolve().parents[1] / "support")]

from support_bottlenecks_nodes import Group
from support_sites import WHYIDLE, clean_env
from support_suite_of_cases import CannotRun, ask_report
from where_rows import Case, Lab

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT_SECONDS = 120.0
WATCHER_SHARE = "0.003"
"""Three times the usual share of a core: the looks of a run that is three times as long."""
GROUP = "whyidle-where-"
"""The pid of the program that makes it follows."""
OWN = ("setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
_CANNOT = 3
"""The exit status of a lab that cannot run a case."""
_JOIN = 'for group in $GROUPS; do echo 0 > "$group/cgroup.procs" || exit 126; done; unset GROUPS; exec "$@"'
_NAMED = 'hostname "$1" && shift && exec "$@"'


@dataclass(frozen=True)
class Ran:
    """One run of a job."""

    status: list[int | None]
    """Of each rank. None: it was ended after LIMIT_SECONDS."""
    truths: list[dict[str, Any]]
    output: str

    @property
    def wall(self) -> float:
        return max((truth["wall"] for truth in self.truths), default=0.0)


@dataclass(frozen=True)
class Observed:
    """A recorded run of a case, and what whyidle said about it."""

    ran: Ran
    report: dict[str, Any]
    text: str
    places: dict[str, str]
    arguments: dict[str, str] = field(default_factory=dict)
    changed: Ran | None = None
    """The run with what was advised."""


def observe(case: Case, folder: Path) -> Observed:
    """Raises CannotRun."""
    if os.geteuid() or not shutil.which("unshare"):
        raise CannotRun("needs root, and unshare")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    _remove_left()
    group = Group(f"{GROUP}{os.getpid()}")
    words = [*OWN, sys.executable, __file__, case.name, str(folder), group.name]
    group.make()
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, start_new_session=True)
    finally:
        group.remove()
    if done.returncode == _CANNOT:
        raise CannotRun(done.stderr.strip())
    if done.returncode:
        raise RuntimeError(f"{case.name}: {done.stderr.strip()}")
    found = json.loads((folder / "observed.json").read_text())
    return Observed(
        **found | {"ran": Ran(**found["ran"]), "changed": Ran(**found["changed"]) if found["changed"] else None}
    )


def _remove_left() -> None:
    """Removes the groups of programs that were killed."""
    for left in {path.name for folder in Group("").folders for path in folder.glob(f"{GROUP}*")}:
        if not Path("/proc", left.removeprefix(GROUP)).exists():
            Group(left).remove()


def _inside(case: Case, scratch: Path, group: str) -> Observed:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "netns", "/run"], check=True)  # for the names of network namespaces
    with contextlib.ExitStack() as stack:
        recorded = scratch / "recorded"
        lab = Lab(scratch, stack, Group(group), recorded / "ledgers")
        for setup in case.setup:
            setup(lab)
        ran = run(lab, case, recorded)
        report = json.loads(ask_report(lab.recorded, "--json", seconds=LIMIT_SECONDS))
        text = ask_report(lab.recorded, seconds=LIMIT_SECONDS)
        changed = None
        if case.change is not None:
            settings = dict(case.change.settings)
            settings |= next((one["settings"] for one in report["advice"] if one["id"] == case.change.rule), {})
            with contextlib.suppress(KeyError):  # a setting that is only known with the advice
                more = [word.format(**settings) for word in case.change.arguments]
                job = tuple(word.format(**settings) for word in case.change.job) or case.job
                changed = run(lab, replace(case, job=job), scratch / "changed", more, case.change.env)
        return Observed(ran, report, text, lab.places, lab.arguments, changed)


def run(lab: Lab, case: Case, folder: Path, more: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Ran:
    (folder / "ledgers").mkdir(parents=True, exist_ok=True)  # a bench may have saved its rates there
    for made in (folder, folder / "ledgers"):
        made.chmod(0o777)
    running = []
    for rank in range(case.ranks):
        script, *arguments = [word.format(**lab.arguments) for word in case.rank_job.get(rank, case.job)]
        words = [*WHYIDLE, "run", "--", sys.executable, str(SCRIPTS / script), *arguments, *more]
        with open(folder / f"output-{rank}", "wb") as output:
            running.append(
                subprocess.Popen(
                    [*_prefix(lab, rank), *words],
                    env={**_env(lab, case, rank, folder), **(env or {})},
                    stdout=output,
                    stderr=output,
                    cwd=folder,
                )
            )
    deadline = time.monotonic() + LIMIT_SECONDS
    status: list[int | None] = []
    for process in running:
        try:
            status.append(process.wait(max(0.1, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            status.append(None)
    truths = [json.loads(path.read_text()) for path in sorted(folder.glob("truth-*.json"))]
    output = "\n".join((folder / f"output-{rank}").read_text(errors="replace")[-2000:] for rank in range(case.ranks))
    return Ran(status, truths, output)


def _prefix(lab: Lab, rank: int) -> list[str]:
    groups = " ".join(map(str, lab.group.folders))
    words = ["env", f"GROUPS={groups}", "sh", "-c", _JOIN, "sh"]
    if lab.nodes:
        node = lab.nodes[min(rank, len(lab.nodes) - 1)]
        words += [*node.inside(), "unshare", "--uts", "sh", "-c", _NAMED, "sh", f"node{node.number}"]
    if lab.user:
        words += ["setpriv", f"--reuid={lab.user}", f"--regid={lab.user}", "--clear-groups", "--inh-caps=-all"]
    return words


def _env(lab: Lab, case: Case, rank: int, folder: Path) -> dict[str, str]:
    env = clean_env(WHERE_DIR=str(folder), WHYIDLE_DIR=str(folder / "ledgers"), OMP_NUM_THREADS="1")
    env["WHYIDLE_WATCHER_SHARE"] = WATCHER_SHARE
    if lab.nodes:
        env |= lab.nodes[min(rank, len(lab.nodes) - 1)].environment(lab.nodes[0], case.ranks)
    elif case.ranks > 1:
        env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(case.ranks), "GLOO_SOCKET_IFNAME": "lo"}
        env |= {"LOCAL_WORLD_SIZE": str(case.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    return {**env, **case.env, **case.rank_env.get(rank, {})}


def main() -> int:
    from where_table import CASES

    name, folder, group = sys.argv[1:]
    case = next(case for case in CASES if case.name == name)
    try:
        seen = _inside(case, Path(folder), group)
    except CannotRun as error:
        print(error, file=sys.stderr)
        return _CANNOT
    Path(folder, "observed.json").write_text(json.dumps(asdict(seen)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

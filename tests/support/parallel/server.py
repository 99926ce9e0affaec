"""Forks the ranks of one run after another from a process that has already imported torch.

Importing torch and its parallel modules takes four processes on two cores ten seconds. Forking them takes no time. This
is safe while this process has one thread, no process group and no whyidle hooks: each rank sets up its own.

It reads one run per line from stdin (spec.Spec as JSON), and answers each with a line {"seconds": …, "statuses": […]}.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from support_sites import clean_env

from parallel.spec import RANKS, Spec

LIMIT_SECONDS = 60.0
FOLDER = Path(__file__).parents[1]


class Server:
    """The process that forks, as seen from a test."""

    def __init__(self) -> None:
        env = clean_env(PYTHONPATH=str(FOLDER), OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "parallel.server"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, spec: Spec) -> float:
        """Trains to the end, and returns the seconds that it took. Raises RuntimeError with the ranks' errors if one
        fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        Path(spec.folder).mkdir(parents=True)
        print(spec.dump(), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if any(answer["statuses"]):
            errors = "\n".join(f"rank {rank}: {spec.errors(rank).read_text()[-2000:]}" for rank in range(RANKS))
            raise RuntimeError(f"{spec.name}: the ranks ended with {answer['statuses']}\n{errors}")
        return answer["seconds"]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()  # it has no run now
        self._process.wait()


def serve() -> None:
    from parallel import job  # imports torch and whyidle, which is not attached: each rank does that itself

    gc.freeze()  # the ranks share these pages
    for line in sys.stdin:
        spec, begun = Spec.load(line), time.monotonic()
        threads = os.listdir("/proc/self/task")
        assert len(threads) == 1, f"forking with {len(threads)} threads is not sound"
        port = _free_port()
        children = [_fork(job, spec, rank, port) for rank in range(RANKS)]
        statuses = _wait(children)
        print(json.dumps({"seconds": time.monotonic() - begun, "statuses": statuses}), flush=True)


def _fork(job: Any, spec: Spec, rank: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _redirect(spec.errors(rank))
        job.prepare(spec, rank, port)
        job.train(spec, rank)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # skip the destructors of C++: in one of about 25 runs, torch aborts in those of gloo


def _redirect(path: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    errors = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for source, target in ((nothing, 0), (errors, 1), (errors, 2)):
        os.dup2(source, target)


def _wait(children: list[int]) -> list[int]:
    """Their exit statuses. Ranks that take too long are killed, and if one fails, the others too."""
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(statuses) < len(children):
        for pid in [pid for pid in children if pid not in statuses]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline or any(statuses.values()):
            deadline = time.monotonic() + LIMIT_SECONDS
            for pid in [pid for pid in children if pid not in statuses]:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [statuses[pid] for pid in children]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    serve()

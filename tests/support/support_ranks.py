"""Ranks whose processes are observed: collectors as in a round of the agent, and a rank with real workers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from support_ledgers import Child, Spec, write

from whyidle.agent.collector import Collector, Options
from whyidle.agent.files import Roots
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.reading import Reading


class Scrapes:
    """A collector that reads the ledgers before each scrape, as in each round of the agent."""

    def __init__(self, create: Callable[[Options], Collector], directory: str | Path, roots: Roots | None = None):
        self.options = Options(LedgerStore(str(directory), 60.0), roots or Roots())
        self.collector = create(self.options)

    def collect(self, reading: Reading) -> None:
        self.options.ledgers.look()
        self.collector.collect(reading)


def tell(child: Child, order: str) -> int:
    """Lets a rank do something, and returns the pid of its newest worker."""
    assert child.process.stdin is not None
    assert child.process.stdout is not None
    child.process.stdin.write(order + "\n")
    child.process.stdin.flush()
    return int(child.process.stdout.readline())


def _main(directory: str, raw: str) -> None:
    """A rank that follows its standard input: `start <code>` and `thread <code>` start a worker that runs the code, the
    latter from a thread other than the main one. `run <code>` runs it itself. `end <n>` ends the n-th worker."""
    ledger = write(directory, Spec(**json.loads(raw)[0]))
    print(ledger.path, flush=True)
    names: dict[str, object] = {"sys": sys}
    workers: list[subprocess.Popen[str]] = []

    def start(code: str) -> None:
        workers.append(
            subprocess.Popen(
                [sys.executable, "-c", f"{code}\nprint(1, flush=True)\nimport sys\nsys.stdin.read()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )

    def start_and_stay(code: str, ready: threading.Event) -> None:
        start(code)
        ready.set()
        threading.Event().wait()  # the children of a thread that ends get another parent

    for line in sys.stdin:
        what, _, rest = line.strip().partition(" ")
        if what == "start":
            start(rest)
        elif what == "thread":
            ready = threading.Event()
            threading.Thread(target=start_and_stay, args=(rest, ready), daemon=True).start()
            ready.wait()
        elif what == "run":
            exec(rest, names)
        elif what == "end":
            worker = workers[int(rest)]
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait()
        if what in ("start", "thread"):
            stdout = workers[-1].stdout
            assert stdout is not None
            stdout.readline()  # it has finished its task
        print(workers[-1].pid if workers else 0, flush=True)
    for worker in workers:
        worker.kill()
        worker.wait()
    ledger.close()


if __name__ == "__main__":
    _main(*sys.argv[1:3])

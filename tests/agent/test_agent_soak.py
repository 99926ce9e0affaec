"""A short version of a day of an agent: hundreds of scrapes, fifty at once, slow clients, disconnects, and hundreds of
ranks that come and go. Nothing may remain: no memory, descriptors, threads, series or errors.

`WHYIDLE_TEST_SCRAPES=6000` sets the number of scrapes, to find smaller leaks per scrape. `make test-all` makes 3000.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import support_ledgers
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from support_agent import Agent, agent, host_port
from support_ledgers import DEADLINE_SECONDS, Spec, until

SCRAPES = int(os.environ.get("WHYIDLE_TEST_SCRAPES", "300"))
AT_ONCE = 50
RANKS = 100
WARM_UP = 2
WAVES = 4
DAWDLERS = 4
"""Of each kind. Together with the scrapers they fit into the limit of connections, so none loses its place."""
GROWTH_BYTES = 8 << 20
"""Growth from the end of the warm-up to the end of the last wave. An allocator may keep this much, and the threads of
collectors that missed their deadline may remain. With 300 scrapes, it is 28 kB each."""
STEADY = {"compute": 0.1, "data_read": 0.05}

REQUEST = (
    b"GET /metrics HTTP/1.1\r\nHost: node\r\nAccept: application/openmetrics-text;version=1.0.0\r\n"
    b"Accept-Encoding: gzip\r\n\r\n"
)


@contextlib.contextmanager
def ranks(directory: Path, wave: int) -> Iterator[None]:
    """A hundred live ranks in one process. At the end, every other wave closes its ledgers; the others are killed."""
    run = f"run-{wave}"
    specs = [Spec(rank=rank, run=run, world_size=RANKS, steps=10, step=STEADY) for rank in range(RANKS)]
    process = subprocess.Popen(
        [sys.executable, support_ledgers.__file__, str(directory), json.dumps([vars(spec) for spec in specs]), "hold"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    try:
        for _ in specs:
            assert process.stdout.readline()
        yield
        if wave % 2:
            process.kill()
    finally:
        process.stdin.close()
        process.wait(DEADLINE_SECONDS)
        process.stdout.close()


class Scraper:
    """One persistent connection, which must get complete answers."""

    def __init__(self, address: str):
        self._socket = socket.create_connection(host_port(address), timeout=DEADLINE_SECONDS)
        self._reader = self._socket.makefile("rb")

    def scrape(self) -> str:
        self._socket.sendall(REQUEST)
        assert self._reader.readline() == b"HTTP/1.1 200 OK\r\n"
        length = 0
        while (line := self._reader.readline()) != b"\r\n":
            if line.startswith(b"Content-Length: "):
                length = int(line.partition(b" ")[2])
        text = zlib.decompress(self._reader.read(length), 31).decode()
        assert text.endswith("\n# EOF\n")
        return text

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


@contextlib.contextmanager
def dawdlers(address: str) -> Iterator[None]:
    """Clients that send nothing, send a byte a second, or send a request and then read a byte a second."""
    over = threading.Event()
    with contextlib.ExitStack() as stack:
        groups: list[list[socket.socket]] = []
        for said in (b"", b"GET /met", REQUEST.replace(b"gzip", b"none")):
            groups.append([stack.enter_context(socket.socket()) for _ in range(DAWDLERS)])
            for client in groups[-1]:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
                client.settimeout(DEADLINE_SECONDS)
                client.connect(host_port(address))
                client.sendall(said)

        def dawdle() -> None:
            while not over.wait(1.0):
                for speaker, listener in zip(groups[1], groups[2], strict=True):
                    with contextlib.suppress(OSError):
                        speaker.send(b"r")
                    with contextlib.suppress(OSError):
                        listener.recv(1)

        thread = threading.Thread(target=dawdle)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@dataclass
class Left:
    """What an agent holds while it is idle."""

    bytes: int
    descriptors: int
    threads: int
    series: set[tuple[str, str]]


def left(running: Agent) -> Left:
    """After all ranks have ended. It uses a new connection: an old one would be idle for longest, and the agent may
    have closed it in favour of a client of the wave."""
    with contextlib.closing(Scraper(running.address)) as scraper:

        def series() -> set[tuple[str, str]]:
            families = list(parse(scraper.scrape()))
            return {(one.name, str(sorted(one.labels.items()))) for family in families for one in family.samples}

        until(lambda: not any("run-" in labels for _, labels in series()))
        process = psutil.Process(running.process.pid)
        return Left(process.memory_info().rss, process.num_fds(), process.num_threads(), series())


def wave(running: Agent, directory: Path, number: int) -> int:
    """Half of the scrapes come at once while there are ranks, and half one after the other while the ranks end. Returns
    the largest number of this wave's ranks in one answer. Ranks of the wave before may still be in it."""
    scrapes = SCRAPES // (WARM_UP + WAVES) // 2
    label = f'run="run-{number}"'
    with contextlib.ExitStack() as stack:
        scrapers = [stack.enter_context(contextlib.closing(Scraper(running.address))) for _ in range(AT_ONCE)]
        with ranks(directory, number), dawdlers(running.address), ThreadPoolExecutor(AT_ONCE) as pool:

            def scrape(scraper: Scraper) -> int:
                running.process.send_signal(signal.SIGHUP)
                answers = [scraper.scrape().splitlines() for _ in range(1 + scrapes // AT_ONCE)]
                return max(sum("whyidle_rank_up{" in line and label in line for line in lines) for lines in answers)

            seen = max(pool.map(scrape, scrapers))
        for _ in range(scrapes):
            scrapers[0].scrape()
    return seen


@pytest.mark.long
def test_memory_descriptors_and_threads_do_not_grow(tmp_path: Path) -> None:
    flags = ("--ledger.retention=1s", "--ledger.delete-after=2s")
    with agent(tmp_path, *flags) as running:
        assert [wave(running, tmp_path, number) for number in range(WARM_UP)] == [RANKS] * WARM_UP
        before = left(running)
        assert [wave(running, tmp_path, WARM_UP + number) for number in range(WAVES)] == [RANKS] * WAVES
        after = left(running)
        assert after.series == before.series
        assert after.bytes < before.bytes + GROWTH_BYTES
        process = psutil.Process(running.process.pid)
        until(lambda: process.num_fds() <= before.descriptors and process.num_threads() <= before.threads)
        until(lambda: not list(tmp_path.iterdir()))
        with dawdlers(running.address):
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(DEADLINE_SECONDS) == 0
        assert {line.split()[0] for line in running.log()} <= {"level=info", "level=warn"}, running.log()

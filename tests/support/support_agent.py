"""A real `whyidle agent` for tests: its process, pages and log, and its samples as read by Prometheus's own parser."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families as parse
from support_ledgers import DEADLINE_SECONDS, until

WHYIDLE = [sys.executable, "-m", "whyidle.cli.main"]
Sample = tuple[str, dict[str, str], float]


class Agent:
    """A running agent on a free port."""

    def __init__(self, command: Sequence[str]):
        number, name = tempfile.mkstemp(prefix="agent-", suffix=".log")
        self._log = Path(name)
        with open(number, "wb") as log:
            self.process = subprocess.Popen(command, stderr=log)
        self.first_line = until(lambda: self.log()[:1] or self._ended())[0]
        address = re.search(r'"?address"?[=:] ?"?([0-9.:]+)', self.first_line)
        assert address, self.first_line
        self.address = address[1]

    def log(self) -> list[str]:
        """The lines that it has logged so far."""
        lines = self._log.read_text().splitlines(keepends=True)
        return [line for line in lines if line.endswith("\n")]

    def get(self, path: str = "/metrics", **headers: str) -> tuple[int, dict[str, str], bytes]:
        request = Request(f"http://{self.address}{path}", headers={k.replace("_", "-"): v for k, v in headers.items()})
        try:
            with urlopen(request, timeout=DEADLINE_SECONDS) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    def samples(self) -> list[Sample]:
        text = self.get()[2].decode()
        return [(sample.name, sample.labels, sample.value) for family in parse(text) for sample in family.samples]

    def values(self, name: str, **labels: str) -> list[float]:
        return [value for n, have, value in self.samples() if n == name and labels.items() <= have.items()]

    def value(self, name: str, **labels: str) -> float:
        [value] = self.values(name, **labels)
        return value

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)
        self._log.unlink()

    def _ended(self) -> list[str]:
        assert self.process.poll() is None, self.log()
        return []


@contextlib.contextmanager
def agent(directory: Path, *flags: str) -> Iterator[Agent]:
    own = (f"--ledger.dir={directory}", "--web.listen-address=127.0.0.1:0")
    with contextlib.closing(Agent([*WHYIDLE, "agent", *own, *flags])) as running:
        yield running


def fails(*words: str) -> tuple[int, str]:
    """The exit status of `whyidle` with these arguments, and the last line of its output."""
    done = subprocess.run([*WHYIDLE, *words], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert not done.stdout
    return done.returncode, done.stderr.strip().splitlines()[-1]


def host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)

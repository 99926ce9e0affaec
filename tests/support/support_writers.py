"""Forks processes from one that has already imported what they need, because to start Python takes longer than to write
a ledger. That process starts with the first request of a pytest process, and ends with it. The forks have its
environment, whatever a test has set since."""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

LARGEST = 1 << 20
"""Bytes of a request."""
_ENVIRONMENT = dict(os.environ)
"""Without what a test changes."""


class Forked:
    """A process that a server has forked, with the parts of `subprocess.Popen` that tests need."""

    def __init__(self, server: Server, words: Sequence[str]):
        (their_stdin, stdin), (stdout, their_stdout) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(stdin, "w"), os.fdopen(stdout)
        try:
            self.pid = server.ask({"words": words}, (their_stdin, their_stdout))
        finally:
            os.close(their_stdin)
            os.close(their_stdout)
        self.returncode: int | None = None
        self._server, self._descriptor = server, os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        return self._reaped(0.0)

    def wait(self, timeout: float) -> int:
        """Its exit status, negative for a signal. Raises subprocess.TimeoutExpired."""
        code = self._reaped(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _reaped(self, timeout: float) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            if poll.poll(timeout * 1000):
                self.returncode = self._server.ask({"reap": self.pid})
                os.close(self._descriptor)
        return self.returncode


class Server:
    """The process that forks, as seen from a test."""

    def __init__(self, script: Path):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
        self._one_at_a_time = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, str(script), "serve", str(theirs.fileno())],
            cwd=script.parent,
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        atexit.register(self._end)

    def ask(self, order: dict[str, object], descriptors: Sequence[int] = ()) -> int:
        with self._one_at_a_time:
            socket.send_fds(self._socket, [json.dumps(order).encode()], descriptors)
            return int(self._socket.recv(64))

    def _end(self) -> None:
        self._socket.close()
        self._process.wait(60)


server = cache(Server)
"""The one that runs this script."""


def serve(descriptor: int, main: Callable[..., None]) -> None:
    """Forks a process for each request. It calls `main` with the words of the request, and ends as Python does."""
    gc.freeze()  # the forks share these pages
    with socket.socket(fileno=descriptor) as requests:
        while True:
            raw, descriptors, _, _ = socket.recv_fds(requests, LARGEST, 2)
            if not raw:
                return
            order = json.loads(raw)
            if "reap" in order:
                answer = os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])
            else:
                answer = os.fork()
                if not answer:
                    break
            for given in descriptors:
                os.close(given)
            requests.send(str(answer).encode())
    for number, given in enumerate(descriptors):
        os.dup2(given, number)
        os.close(given)
    main(*order["words"])

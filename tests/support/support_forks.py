"""Runs training scripts in forks of one process that has already imported torch, because an import takes seconds.

`make test` starts that process once, for all processes of pytest. Otherwise each process of pytest has its own. It
imports torch when the first test needs it.

Each fork is the main thread of a process with its own environment, session and start time, and ends as a Python process
does: exit handlers, then finalization. Only torch itself frees nothing, unless WHYIDLE_TEST_WHOLE_EXITS is set, as in
`make test-all` and `make test-matrix`. Tests of how whyidle gets into a process start real processes instead
(support_training.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from support_sites import clean_env
from support_training import LIMIT_SECONDS, SCRIPTS, Outcome, environment, gather, meeting, pids_of_sessions

SHARED = "WHYIDLE_TEST_FORKS"
"""The address of the process that forks for all processes of pytest."""
LARGEST = 1 << 20
"""Bytes of an order."""
STACKS = signal.SIGRTMAX - 1
"""Makes a script write the stacks of all its threads to its stderr."""
LONGEST_STACKS = 20_000
"""Characters."""
WHOLE = "--whole-exits"
WHOLE_EXITS = [WHOLE] if os.environ.get("WHYIDLE_TEST_WHOLE_EXITS") else []
PRELOADED = (
    "functorch.compile",
    "torch",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.distributed._functional_collectives",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.utils.data",
)


class Forked:
    """A running script, with the parts of `subprocess.Popen` that tests need."""

    def __init__(self, forks: Forks, pid: int):
        self.pid = pid
        self._forks = forks
        self._descriptor = os.pidfd_open(pid)
        self._returncode: int | None = None

    def wait(self, seconds: float = LIMIT_SECONDS) -> int:
        """Its exit status, negative for a signal. Raises TimeoutError."""
        if self._returncode is None:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            if not poll.poll(max(0.0, seconds) * 1000):
                raise TimeoutError(f"process {self.pid} has not ended after {seconds:.0f} s")
            self._returncode = self._forks.ask({"reap": self.pid})
            os.close(self._descriptor)
        return self._returncode

    def send_signal(self, number: int) -> None:
        signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        """Ends it, and everything that it has started."""
        if self._returncode is None:
            self.send_signal(signal.SIGKILL)  # it may not be in a session of its own yet
        for pid in pids_of_sessions({self.pid}):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait()


class Forks:
    """The process that forks, as seen from a test.

    With the ``python`` of another environment it is a separate process. It imports the torch of that environment, and
    has these ``extra`` variables.
    """

    def __init__(self, python: Path | None = None, **extra: str) -> None:
        with contextlib.ExitStack() as stack:
            shared = None if python else os.environ.get(SHARED)
            address = shared or stack.enter_context(serving(python or Path(sys.executable), **extra))
            self._socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            self._socket.connect(address)
            self._stack = stack.pop_all()

    def ask(self, order: Mapping[str, Any]) -> int:
        self._socket.send(json.dumps(order).encode())
        return int(self._socket.recv(64))

    def start(
        self, words: Sequence[str], folder: Path, env: Mapping[str, str] | None = None, *, recorded: bool = True
    ) -> Forked:
        """Runs a script of tests/support/scripts with arguments. ``env`` adds to the environment.

        It is recorded as under `whyidle run`. Its output is in ``folder``/stdout and ``folder``/stderr.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("stdout", "stderr"):
            folder.joinpath(name).touch()  # a test may read them before the script has begun
        whole = environment(folder, **({"WHYIDLE": "1"} if recorded else {}) | dict(env or {}))
        order = {"words": [str(SCRIPTS / words[0]), *words[1:]], "env": whole, "folder": str(folder)}
        return Forked(self, self.ask(order))

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        ranks: int = 0,
        env: Mapping[str, str] | None = None,
        *,
        recorded: bool = True,
        each: Mapping[int, Mapping[str, str]] | None = None,
        meanwhile: Callable[[list[Forked]], None] | None = None,
    ) -> tuple[Outcome, list[int]]:
        """Runs a script once, or once per rank -> the outcome, and each exit status.

        ``env`` adds to the environment of all ranks, ``each`` to that of some ranks. ``meanwhile`` is called with the
        processes once they run.
        """
        begun = time.monotonic()
        started: list[Forked] = []
        try:
            together = {**(meeting(ranks) if ranks else {}), **(env or {})}
            for rank in range(max(1, ranks)):
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks else {}
                own = {**together, **place, **(each or {}).get(rank, {})}
                started.append(self.start(words, folder, own, recorded=recorded))
            if meanwhile is not None:
                meanwhile(started)
            codes = [one.wait(LIMIT_SECONDS - time.monotonic() + begun) for one in started]
        except BaseException as error:
            said = stacks(started, folder) if isinstance(error, TimeoutError) else ""
            for one in started:
                one.kill()
            if said:
                raise TimeoutError(f"{error}:\n{said}") from error
            raise
        stdout, stderr = (folder.joinpath(name).read_text() for name in ("stdout", "stderr"))
        seconds = time.monotonic() - begun
        sessions = {one.pid for one in started}
        return gather(folder, max(map(abs, codes)), stdout, stderr, seconds, sessions), codes

    @contextlib.contextmanager
    def training(self, words: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Forked]:
        """A recorded script that runs while the test observes it, and ends with the block."""
        started = self.start(words, folder, env)
        try:
            yield started
        finally:
            started.kill()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()


def stacks(running: Sequence[Forked], folder: Path) -> str:
    """The stacks of all threads of scripts that do not end, as the end of their stderr."""
    for one in running:
        with contextlib.suppress(OSError):  # it has ended
            one.send_signal(STACKS)
            time.sleep(0.5)  # they share the file
    return Path(folder, "stderr").read_text(errors="replace")[-LONGEST_STACKS:]


@contextlib.contextmanager
def serving(python: Path = Path(sys.executable), **extra: str) -> Iterator[str]:
    """A process that forks as long as the block lasts -> its address."""
    # TORCH_WARM_POOL: torch 2.4 starts a pool of compilers, with a thread, as torch._inductor is imported.
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    env = clean_env(**one, TORCH_WARM_POOL="0", **extra)
    with tempfile.TemporaryDirectory(prefix="forks-") as folder:
        address = f"{folder}/socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen()
            process = subprocess.Popen(
                [str(python), __file__, str(listener.fileno()), *WHOLE_EXITS],
                env=env,
                stdin=subprocess.PIPE,
                pass_fds=(listener.fileno(),),
                start_new_session=True,  # a terminal does not interrupt it
            )
        assert process.stdin is not None
        try:
            yield address
        finally:
            process.stdin.close()
            process.wait(60)


def _serve(listener: socket.socket) -> None:
    """Forks a process for each order, until stdin is closed."""
    _usual_signals()
    clients: dict[int, socket.socket] = {}
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN)
    poll.register(listener, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == sys.stdin.fileno():
                return
            if descriptor == listener.fileno():
                _import_torch()
                client, _ = listener.accept()
                clients[client.fileno()] = client
                poll.register(client, select.POLLIN)
                continue
            raw = clients[descriptor].recv(LARGEST)
            if not raw:
                poll.unregister(descriptor)
                clients.pop(descriptor).close()
                continue
            order: dict[str, Any] = json.loads(raw)
            if "reap" in order:
                answer = os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])
            else:
                threads = os.listdir("/proc/self/task")
                assert len(threads) == 1, f"forking with {len(threads)} threads is not sound"
                answer = os.fork()
                if not answer:
                    for each in (listener, *clients.values()):
                        each.close()
                    return _become(**order)
            clients[descriptor].send(str(answer).encode())


def _usual_signals() -> None:
    """What a shell starts in the background ignores some, and so would the forks."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@functools.cache
def _import_torch() -> None:
    for name in PRELOADED:
        __import__(name)
    if WHOLE not in sys.argv:
        _leave_torch_alone_at_exit()
    gc.freeze()  # the forks share these pages


def _leave_torch_alone_at_exit() -> None:
    """What is imported now outlives the finalization of a fork. To free it, and to take back each operator that torch
    has registered, would copy most pages and take longer than most scripts."""
    others = [module for name, module in sys.modules.items() if name.partition(".")[0] != "whyidle"]
    kept = [value for module in others for value in list(vars(module).values())]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    for finalizer in list(weakref.finalize._registry):  # pyright: ignore[reportAttributeAccessIssue]
        finalizer.atexit = False
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # instead of destructors in C++, which were registered before


def _become(words: list[str], env: dict[str, str], folder: str) -> None:
    """Turns this process into the one that runs a script."""
    os.setsid()
    writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for target, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, f"{folder}/stdout", writing),
        (2, f"{folder}/stderr", writing),
    ):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, target)
        os.close(opened)
    faulthandler.register(STACKS)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = words
    sys.path[0] = os.path.dirname(words[0])
    if env.get("WHYIDLE") == "1":
        from whyidle.torch_hooks.autoload import _whyidle_autoload

        _whyidle_autoload.start()
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))

"""How a process ends: an uncaught exception and a status other than 0 are failures, whatever started the process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from support_forks import Forks
from support_sites import clean_env
from support_training import environment, recorded

from whyidle.ledger.directory import read_directory
from whyidle.ledger.layout import CLEAN, FAILED
from whyidle.torch_hooks.ending import failed, watch_exit, watch_hard_exit

ASK = """
import atexit, sys
from whyidle.torch_hooks.ending import failed, watch_exit
atexit.register(lambda: print(failed()))
watch_exit()
"""
CAUGHT = "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass\n"
PRINTED = """
import ctypes
@ctypes.PYFUNCTYPE(None)
def callback():
    try:
        1 / 0
    except ZeroDivisionError as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
def main():
    callback()
main()
"""
"""A library that embeds Python prints the exception of a callback (PyErr_Print), and the program goes on."""

HYDRA = """
def main():
    try:
        1 / 0
    except ZeroDivisionError as error:
        trace = error.__traceback__
        sys.exit(1)
main()
"""
"""Hydra prints an exception of the training itself, and then exits."""
ARGPARSE = "import argparse\nargparse.ArgumentParser().parse_args(['--unknown'])"
EXIT_CAUGHT = "try:\n    sys.exit(3)\nexcept SystemExit:\n    pass\n"
EXIT_IN_THREAD = """
import _thread, threading, time
threading.Thread(target=sys.exit, args=(3,)).start()
_thread.start_new_thread(sys.exit, (3,))
time.sleep(0.1)
"""
EXIT_IN_CHILD = "import os\nif os.fork() == 0:\n    sys.stdout = sys.stderr\n    sys.exit(3)\nos.wait()"
INTERRUPTED = "try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    sys.exit(130)"
WRAPPED_LATER = "import functools\nsys.exit = functools.partial(sys.exit)\nsys.exit(3)"
"""As Weights & Biases does."""

CHILDREN = """
import multiprocessing, sys
from multiprocessing import util
from whyidle.torch_hooks.ending import failed, watch_exit

def child(how):
    watch_exit()
    util.Finalize(None, lambda: print(how, failed(), flush=True), exitpriority=-100)
    if how == "raise":
        raise ValueError
    if how.startswith("exit"):
        sys.exit(int(how[-1]))

if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    for how in "return", "exit 0", "exit 3", "raise":
        process = context.Process(target=child, args=(how,))
        process.start()
        process.join()
    print("here", failed())
"""
TRAINS = """
import multiprocessing
import torch

def train(rank):
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2 + rank):
        net(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    if rank != 1:
        raise ValueError("a bad sample")

if __name__ == "__main__":
    for rank, method in (0, "fork"), (1, "spawn"), (3, "spawn"):
        process = multiprocessing.get_context(method).Process(target=train, args=(rank,))
        process.start()
        process.join()
    train(2)
"""
TRAINS_AND_EXITS = TRAINS.partition("    if rank")[0] + "train(0)\nimport sys\nsys.exit({status})\n"


ENDS = {
    "end": ("", False),
    "exit": ("sys.exit()", False),
    "exit 3": ("sys.exit(3)", True),
    "exception": ("raise ValueError", True),
    "in a function": ("def main():\n    raise ValueError\nmain()", True),
    "ctrl-c": ("raise KeyboardInterrupt", False),
    "caught": (CAUGHT, False),
    "printed": (PRINTED, False),
    "prompt": ("sys.ps1 = '>>> '\nraise ValueError", False),
}
EXITS = {
    "exit 0": ("sys.exit(0)", False),
    "exit with a text": ("sys.exit('no data')", True),
    "hydra": (HYDRA, True),
    "argparse": (ARGPARSE, True),
    "wrapped later": (WRAPPED_LATER, True),
    "exit caught": (EXIT_CAUGHT, False),
    "exit in a thread": (EXIT_IN_THREAD, False),
    "exit in a child": (EXIT_IN_CHILD, False),
    "exit after ctrl-c": (INTERRUPTED, False),
}


@pytest.mark.parametrize(
    ("end", "told"),
    [("raise KeyboardInterrupt", True), (INTERRUPTED, False), ("sys.exit(3)", False), ("raise ValueError", False)],
)
def test_knows_ctrl_c(end: str, told: bool, tmp_path: Path) -> None:
    asks = "import atexit, sys\nfrom whyidle.torch_hooks.ending import interrupted\n"
    (tmp_path / "program.py").write_text(f"{asks}atexit.register(lambda: print(interrupted()))\n{end}")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.stdout == f"{told}\n"


def failure_of(way: str, end: str, folder: Path) -> str:
    """What `failed` answers in the exit handler of a program that ends in this way."""
    text = ASK + end
    (folder / "program.py").write_text(text)
    words = {"script": ["program.py"], "module": ["-m", "program"], "code": ["-c", text], "stdin": ["-"]}[way]
    done = subprocess.run(
        [sys.executable, *words],
        input=text,
        cwd=folder,
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout


@pytest.mark.parametrize(("end", "expected"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("way", ["script", "module", "code", "stdin"])
def test_an_uncaught_exception_is_a_failure(way: str, end: str, expected: bool, tmp_path: Path) -> None:
    assert failure_of(way, end, tmp_path) == f"{expected}\n"


@pytest.mark.parametrize(("end", "expected"), EXITS.values(), ids=EXITS)
def test_an_exit_with_a_bad_status_is_a_failure(end: str, expected: bool, tmp_path: Path) -> None:
    assert failure_of("script", end, tmp_path) == f"{expected}\n"


def test_the_ledgers_of_a_program_and_its_children_say_how_each_ended(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRAINS)
    done = subprocess.run(
        recorded([sys.executable, str(tmp_path / "program.py")]),
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("ValueError: a bad sample") == 3
    ledgers, problems = read_directory(str(tmp_path / "ledgers"))
    assert not problems
    # The number of steps tells which process wrote the ledger.
    assert sorted((ledger.steps, ledger.ended) for ledger in ledgers) == [
        (2, FAILED),
        (3, CLEAN),
        (4, FAILED),
        (5, FAILED),
    ]


STAYS = """
import os, signal, threading, time, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
threading.Thread(target=lambda: (time.sleep(2.5), os.kill(os.getpid(), signal.SIGKILL))).start()
{end}
"""


@pytest.mark.parametrize(("end", "failure"), [("raise ValueError", "ValueError - program.py:"), ("", "")])
def test_a_main_program_that_has_ended_before_its_threads_is_not_in_the_loop(
    end: str, failure: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(STAYS.format(end=end))
    words = recorded([sys.executable, str(tmp_path / "program.py")])
    subprocess.run(words, env=environment(tmp_path), capture_output=True, timeout=240, check=False)
    [ledger], problems = read_directory(str(tmp_path / "ledgers"))
    assert not problems
    assert (ledger.steps, ledger.ended, ledger.position.phase) == (3, 0, "shutdown")
    assert ledger.strings["failure"].startswith(failure)
    assert bool(ledger.strings["failure"]) == bool(failure)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_forked_child_of_multiprocessing_fails_with_its_status(method: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CHILDREN.format(method=method))
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=clean_env(), capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["return False", "exit 0 False", "exit 3 True", "raise True", "here False"]


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("attached", [True, False], ids=["attach", "at the import of torch"])
def test_a_ledger_says_whether_its_process_exited_with_a_bad_status(
    attached: bool, status: int, forks: Forks, tmp_path: Path
) -> None:
    """The test above has a process that `whyidle run` starts."""
    lines = "import whyidle\nwhyidle.attach()\n" if attached else ""
    (tmp_path / "program.py").write_text(lines + TRAINS_AND_EXITS.format(status=status))
    done, _ = forks.run((str(tmp_path / "program.py"),), tmp_path, recorded=not attached)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
    (ledger,) = done.ledgers
    assert (ledger.steps, ledger.ended) == (2, FAILED if status else CLEAN)


def _raised_by(*words: object, **named: object) -> tuple[type[BaseException], str]:
    with pytest.raises((SystemExit, TypeError)) as caught:
        sys.exit(*words, **named)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return type(caught.value), str(caught.value)


def test_sys_exit_behaves_as_before_while_it_is_watched() -> None:
    def behaviour() -> list[object]:
        ends = [_raised_by(), _raised_by(0), _raised_by(3), _raised_by("no data"), _raised_by((1, 2))]
        ends += [_raised_by(1, 2), _raised_by(status=3)]
        return [*ends, pickle.loads(pickle.dumps(sys.exit)) is sys.exit, sys.exit.__name__, sys.exit.__doc__]

    original, before = sys.exit, behaviour()
    undo = watch_exit()
    try:
        assert sys.exit is not original
        assert behaviour() == before
    finally:
        undo()
    assert sys.exit is original
    assert not failed()


def test_a_watched_exit_can_be_sent_to_a_process_without_whyidle() -> None:
    undo = watch_exit()
    try:
        with pytest.raises(SystemExit) as caught:
            sys.exit(3)
    finally:
        undo()
    read = f"import pickle, sys; print(repr(pickle.loads({pickle.dumps(caught.value)!r})), 'whyidle' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", read], cwd=os.sep, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "SystemExit(3) False\n", done.stderr


HARD_EXIT = """
import os, pickle, threading
from whyidle.torch_hooks.ending import watch_hard_exit
watch_hard_exit(lambda status: print(status, flush=True))
assert pickle.loads(pickle.dumps(os._exit)) is os._exit
threading.Thread(target=os._exit, args=(3,)).start()
"""


def test_a_hard_exit_in_any_thread_is_noticed_and_has_its_status() -> None:
    done = subprocess.run([sys.executable, "-c", HARD_EXIT], capture_output=True, text=True, env=clean_env())
    assert (done.returncode, done.stdout) == (3, "3\n"), done.stderr


def test_a_hard_exit_is_as_before_after_the_end() -> None:
    before = os._exit
    undo = watch_hard_exit(lambda status: None)
    assert os._exit is not before
    undo()
    assert os._exit is before

"""How a process ends: an exception that nothing caught is a failure, whatever started the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support_sites import clean_env
from support_training import environment, recorded

from whyidle.ledger.directory import read_directory
from whyidle.ledger.layout import CLEAN, FAILED

ASK = "import atexit, sys\nfrom whyidle.torch_hooks.ending import failed\natexit.register(lambda: print(failed()))\n"
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
    for rank, method in enumerate(("fork", "spawn")):
        process = multiprocessing.get_context(method).Process(target=train, args=(rank,))
        process.start()
        process.join()
    train(2)
"""


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("", False),
        ("sys.exit()", False),
        ("raise ValueError", True),
        ("def main():\n    raise ValueError\nmain()", True),
        ("raise KeyboardInterrupt", False),
        (CAUGHT, False),
        (PRINTED, False),
        ("sys.ps1 = '>>> '\nraise ValueError", False),
    ],
    ids=["end", "exit", "exception", "in a function", "ctrl-c", "caught", "printed", "prompt"],
)
@pytest.mark.parametrize("way", ["script", "module", "code", "stdin"])
def test_an_uncaught_exception_is_a_failure(way: str, end: str, expected: bool, tmp_path: Path) -> None:
    text = ASK + end
    (tmp_path / "program.py").write_text(text)
    words = {"script": ["program.py"], "module": ["-m", "program"], "code": ["-c", text], "stdin": ["-"]}[way]
    done = subprocess.run(
        [sys.executable, *words],
        input=text,
        cwd=tmp_path,
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == f"{expected}\n", done.stderr


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
    assert done.stderr.count("ValueError: a bad sample") == 2
    ledgers, problems = read_directory(str(tmp_path / "ledgers"))
    assert not problems
    # The number of steps tells which process wrote the ledger.
    assert sorted((ledger.steps, ledger.ended) for ledger in ledgers) == [(2, FAILED), (3, CLEAN), (4, FAILED)]

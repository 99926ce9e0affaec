"""Works now and then beside a training, as another process of the node.

injector.py FOLDER [--spin PROCESSES] [--copy MB] [--write FOLDER] [--send ADDRESS | --receive] [--on S] [--off S]

It begins when the training has begun, and writes each stretch of work to ``FOLDER/injected.json``, on CLOCK_MONOTONIC.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PORT = 29900
now = time.monotonic


def spin(count: int, until: float) -> None:
    words = [sys.executable, "-c", f"import time\nwhile time.monotonic() < {until}: pass"]
    for child in [subprocess.Popen(words) for _ in range(count)]:
        child.wait()


def copy(megabytes: int, until: float) -> None:
    import numpy

    source = numpy.ones(megabytes << 17)
    target = numpy.empty_like(source)
    while now() < until:
        numpy.copyto(target, source)


def write(folder: str, until: float) -> None:
    """Four threads, because the kernel serves reads and writes in turns."""

    def one(number: int) -> None:
        data = os.urandom(1 << 20)
        file = os.open(os.path.join(folder, f"written-{number}"), os.O_WRONLY | os.O_CREAT, 0o600)
        while now() < until:
            os.pwrite(file, data, 0)
            os.fsync(file)
        os.close(file)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))


def send(address: str, until: float) -> None:
    data = bytes(1 << 16)
    with socket.create_connection((address, PORT), timeout=10) as there:
        while now() < until:
            there.sendall(data)


def receive() -> None:
    with socket.create_server(("0.0.0.0", PORT)) as server:
        while True:
            there, _ = server.accept()
            with there:
                while there.recv(1 << 16):
                    pass


WORKS: dict[str, Callable[[Any, float], None]] = {"spin": spin, "copy": copy, "write": write, "send": send}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--spin", type=int, default=0)
    parser.add_argument("--copy", type=int, default=0)
    parser.add_argument("--write", default="")
    parser.add_argument("--send", default="")
    parser.add_argument("--receive", action="store_true")
    parser.add_argument("--on", type=float, default=2.5)
    parser.add_argument("--off", type=float, default=5.0)
    args = parser.parse_args()
    if args.receive:
        receive()
    name = next(name for name in WORKS if getattr(args, name))
    work, what = WORKS[name], getattr(args, name)
    while not (args.folder / "begun").exists():
        time.sleep(0.05)
    stretches = []
    time.sleep(args.off)  # until whyidle knows what is usual on this node
    while True:
        time.sleep(args.off)
        begun = now()
        work(what, begun + args.on)
        stretches.append((begun, now()))
        (args.folder / "injected.new").write_text(json.dumps(stretches))
        (args.folder / "injected.new").rename(args.folder / "injected.json")


if __name__ == "__main__":
    main()

"""Measures a pair of nodes with iperf3 (TCP) and ib_write_bw (RDMA), if they are installed."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..children import die_with_parent

if TYPE_CHECKING:
    from .world import World

IPERF, WRITE = "iperf3", "ib_write_bw"
TOOLS = (IPERF, WRITE)
SECONDS = 2
_LIMIT_SECONDS = 20.0
_LISTENING_SECONDS = 5.0
_GIGABIT = 1e9 / 8


def installed() -> tuple[str, ...]:
    return tuple(tool for tool in TOOLS if shutil.which(tool))


def server_command(tool: str, port: int) -> list[str]:
    """The command of a server that serves one client and ends."""
    if tool == IPERF:
        return [IPERF, "--server", "--one-off", "--port", str(port)]
    return [WRITE, "--port", str(port), "--duration", str(SECONDS), "--report_gbits"]


def client_command(tool: str, address: str, port: int) -> list[str]:
    if tool == IPERF:
        return [IPERF, "--client", address, "--port", str(port), "--time", str(SECONDS), "--json"]
    return [*server_command(tool, port), address]


def rate_of(tool: str, text: str) -> float:
    """The bytes/s in the output of the client. Raises ValueError with a reason."""
    return (_iperf_rate if tool == IPERF else _write_rate)(text)


def _iperf_rate(text: str) -> float:
    """The rate at which the server has received. iperf3 --json prints ``error`` if it fails."""
    try:
        answer: Any = json.loads(text)
        if "error" in answer:
            raise ValueError(str(answer["error"]))
        bits = float(answer["end"]["sum_received"]["bits_per_second"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"iperf3's answer has no {error}") from error
    if not 0 < bits < math.inf:
        raise ValueError(f"iperf3 says {bits} bit/s")
    return bits / 8


def _write_rate(text: str) -> float:
    """The average in perftest's table. Its columns are bytes, iterations, peak, average (Gbit/s) and messages/s."""
    rows = re.findall(r"^\s*\d+\s+\d+\s+([\d.]+)\s+([\d.]+)\s+[\d.]+\s*$", text, re.MULTILINE)
    if not rows:
        raise ValueError("ib_write_bw printed no result")
    return float(rows[-1][1]) * _GIGABIT


def measure(world: World, tool: str, server: int, client: int, address: str) -> dict[str, Any]:
    """Runs a tool between two ranks. All ranks must call this. The result has the rate, or an error."""
    mine: dict[str, Any] = {}
    process = None
    port = 0
    try:
        if world.rank == server:
            port = _free_port()
            try:
                process = _start(server_command(tool, port))
                _until_it_listens(process, port)
            except OSError as error:
                mine = {"error": str(error)}
        port = int(world.largest(port))
        if world.rank == client:
            mine = _ask(tool, address, port)
        told = world.objects(mine)
    finally:
        if process is not None:
            process.kill()
            process.communicate()
    return {"tool": tool, "from_rank": client, "to_rank": server, **(told[client] or told[server])}


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=die_with_parent,
    )


def _until_it_listens(process: subprocess.Popen[str], port: int) -> None:
    """Waits until the server listens, by the kernel's table. A test connection would count as the client."""
    wanted = f":{port:04X} "
    end = time.monotonic() + _LISTENING_SECONDS
    while time.monotonic() < end and process.poll() is None:
        for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
            try:
                with open(table, encoding="ascii") as file:
                    if any(wanted in line.split(maxsplit=2)[1] + " " and " 0A " in line for line in file):
                        return
            except OSError:
                continue
        time.sleep(0.05)


def _ask(tool: str, address: str, port: int) -> dict[str, Any]:
    try:
        done = subprocess.run(
            client_command(tool, address, port),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
            preexec_fn=die_with_parent,
        )
        return {"bytes_per_second": rate_of(tool, done.stdout)}
    except subprocess.TimeoutExpired:
        return {"error": f"did not end within {_LIMIT_SECONDS:g} s"}
    except (OSError, ValueError) as error:
        return {"error": str(error)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])

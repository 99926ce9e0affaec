"""The sources of a dossier: processes, connections, counters of the node, stacks and the flight recorder."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_ledgers import until

from whyidle.agent.hang import dossier, node, recorder, stacks, strays
from whyidle.agent.hang.later import Later
from whyidle.agent.hang.processes import Watch
from whyidle.agent.hang.recorder import Recorder
from whyidle.linux import syscalls, tcp
from whyidle.verdict.diagnosis import Diagnosis
from whyidle.verdict.facts import Process

PROC = "/proc"


@contextlib.contextmanager
def running(code: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program that writes a line once it has started."""
    words = [sys.executable, "-c", f"import os, sys, time, threading\nprint(flush=True)\n{code}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, **env}) as started:
        assert started.stdout is not None
        try:
            started.stdout.readline()
            yield started
        finally:
            started.kill()


def observed(pid: int) -> Process:
    watch = Watch(PROC, [pid])
    time.sleep(0.3)
    return watch.processes()[pid]


SLEEPS = "time.sleep(60)"
NAMED_PIPE = """
import tempfile
with tempfile.TemporaryDirectory() as folder:
    os.mkfifo(f"{folder}/pipe")
    reading = os.open(f"{folder}/pipe", os.O_RDWR)
os.read(reading, 1)
"""
# what a program does -> function of the kernel, system call
BLOCKED: dict[str, tuple[str, str]] = {
    SLEEPS: ("nanosleep", "nanosleep"),
    "lock = threading.Lock(); lock.acquire(); lock.acquire()": ("futex", "futex"),
    "reading, writing = os.pipe(); os.read(reading, 1)": ("pipe_read", "read on a pipe"),
    NAMED_PIPE: ("pipe_read", "read on a pipe"),
}


@pytest.mark.parametrize(("code", "expected"), BLOCKED.items(), ids=["sleeps", "lock", "pipe", "named pipe"])
def test_says_where_a_thread_waits(code: str, expected: tuple[str, str]) -> None:
    with running(code) as program:
        assert until(lambda: observed(program.pid).state == "S")
        found = observed(program.pid)
    main = found.main
    assert main is not None
    if not main.wchan:
        pytest.skip("this kernel does not say where a thread waits")
    assert expected[0] in main.wchan
    assert expected[1] in main.syscall
    assert found.works is False


def test_a_program_that_computes_works() -> None:
    with running("while True: pass") as program:
        found = observed(program.pid)
    assert found.works
    assert found.state == "R"


def test_tells_stopped_ended_and_unknown_processes_apart() -> None:
    with running(SLEEPS) as program:
        program.send_signal(signal.SIGSTOP)
        assert until(lambda: observed(program.pid).stopped)
        program.kill()
        assert until(lambda: observed(program.pid).ended)  # a zombie, until it is waited for
    found = observed(program.pid)
    assert found.ended
    assert found.threads == ()


def test_finds_ranks_by_their_environment_but_not_their_workers() -> None:
    place = {"MASTER_ADDR": "here", "MASTER_PORT": str(os.getpid()), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
    place |= {"TORCHELASTIC_RUN_ID": "mine", "WHYIDLE_RUN": ""}
    forks = "os.fork() or time.sleep(60); time.sleep(60)"
    with running(forks, RANK="0", **place) as first, running(SLEEPS, RANK="2", **place) as last:
        mine = [one for one in strays.find(PROC) if one.meeting == f"here:{os.getpid()}"]
    assert [(one.rank, one.pid) for one in mine] == [(0, first.pid), (2, last.pid)]
    assert mine[0].run == "mine"
    assert strays.gone(mine) == [1]


NOT_SET = {"WHYIDLE_RUN": "", "MASTER_ADDR": "", "MASTER_PORT": ""}
SRUN = {"SLURM_PROCID": "{rank}", "SLURM_NTASKS": "2", "SLURM_LOCALID": "{rank}", "SLURM_STEP_ID": "0"}
PLACES: dict[str, dict[str, str]] = {
    "srun": SRUN,
    "flux": {"FLUX_TASK_RANK": "{rank}", "FLUX_JOB_SIZE": "2", "FLUX_TASK_LOCAL_ID": "{rank}"},
    "mpirun in a batch script": {
        "OMPI_COMM_WORLD_RANK": "{rank}",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "1",
    },
    "mpiexec": {"PMI_RANK": "{rank}", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"},
}


@pytest.mark.parametrize("launcher", PLACES)
def test_finds_ranks_that_other_launchers_have_numbered(launcher: str) -> None:
    job = f"job{os.getpid()}"
    first, second = ({name: value.format(rank=rank) for name, value in PLACES[launcher].items()} for rank in (0, 1))
    place = {**NOT_SET, "SLURM_JOB_ID": job}
    with running(SLEEPS, **place, **first) as one, running(SLEEPS, **place, **second) as two:
        mine = strays.job_of([found for found in strays.find(PROC) if job in found.meeting])
    assert [(found.rank, found.pid, found.world_size) for found in mine] == [(0, one.pid, 2), (1, two.pid, 2)]
    assert mine[0].run == job


@pytest.mark.parametrize(
    "place",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"},  # a batch script
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"},
        {"PMI_RANK": "2", "PMI_SIZE": "2"},
        {"PMI_RANK": "\u00b2", "PMI_SIZE": "2"},
        {"PMIX_RANK": "0"},
        {"RANK": "0"},
    ],
)
def test_a_program_without_a_place_among_ranks_is_left_out(place: dict[str, str]) -> None:
    with running(SLEEPS, **NOT_SET, **place) as program:
        assert program.pid not in [found.pid for found in strays.find(PROC)]


@pytest.mark.parametrize("torchrun", [True, False])
def test_torchrun_that_srun_has_started_is_left_out(torchrun: bool) -> None:
    """Each node has one rank, so it has the same number and the same world as torchrun. A rank of srun may also set
    RANK itself, and start another process."""
    starts = "import subprocess\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], env=ENV)\n"
    rank = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    rank |= {"TORCHELASTIC_RUN_ID": "none"} if torchrun else {}
    code = f"ENV = {{**os.environ, **{rank}}}\n{starts}{SLEEPS}"
    place = {"MASTER_ADDR": "srun", "MASTER_PORT": str(os.getpid()), "WHYIDLE_RUN": ""}
    with running(code, **place, **{name: value.format(rank=1) for name, value in SRUN.items()}) as task:
        below: list[int] = []

        def started() -> bool:
            below[:] = [child.pid for child in psutil.Process(task.pid).children()]
            return bool(below)

        assert until(started, 20)
        found: list[strays.Stray] = []

        def known() -> bool:
            found[:] = [one for one in strays.find(PROC) if one.meeting == f"srun:{os.getpid()}"]
            return [one.pid for one in found] == [below[0] if torchrun else task.pid]

        assert until(known, 20)
        os.kill(below[0], signal.SIGKILL)
    assert (found[0].rank, found[0].world_size) == (1, 2)


# ranks that are here, ranks per node -> which are gone, of 8
GONE: list[tuple[list[int], int, list[int]]] = [
    ([0, 1, 2, 3], 4, []),
    ([4, 6, 7], 4, [5]),
    ([0, 1, 2, 4, 5, 6, 7], 0, [3]),
    ([0, 4], 4, []),  # in turns over the nodes
    ([0, 1], 0, []),  # the others may be on other nodes
    ([], 0, []),
]


@pytest.mark.parametrize(("here", "local", "expected"), GONE)
def test_says_which_ranks_have_no_process(here: list[int], local: int, expected: list[int]) -> None:
    assert strays.gone([strays.Stray(100 + rank, rank, 8, local, "a:1", 1) for rank in here]) == expected


# -- connections

TCP = b"""  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4001 1 0000000000000000 100 0
   1: 0101DB0A:8AE2 0301DB0A:1388 01 00001000:00000000 01:00000031 00000005     0        0 4002 2 0000000000000000 41 4
   2: 0101DB0A:8AE4 0201DB0A:1388 01 00000000:00000010 02:00000031 00000000     0        0 4003 2 0000000000000000 20 4
"""
TCP6 = (
    b"   0: 0000000000000000FFFF00000101DB0A:8AE2 0000000000000000FFFF00000301DB0A:1388 01 00000020:00000000 "
    b"01:00000031 00000002     0        0 4004 2 0000000000000000 41 4\n"
)


@pytest.mark.skipif(sys.byteorder != "little", reason="the addresses are those of a little-endian machine")
def test_parses_connections() -> None:
    listens, stuck, idle = tcp.parse(TCP)
    assert (listens.established, listens.stuck, listens.inode) == (False, False, 4001)
    assert stuck == tcp.TcpSocket("10.219.1.1", "10.219.1.3", True, 4096, 0, 5, 4002)
    assert stuck.stuck
    assert (idle.unread, idle.stuck) == (16, False)
    [mapped] = tcp.parse(TCP6)
    assert (mapped.local, mapped.remote, mapped.stuck) == ("10.219.1.1", "10.219.1.3", True)


@given(st.binary())
def test_arbitrary_bytes_are_connections_or_nothing(data: bytes) -> None:
    tcp.parse(data)
    syscalls.parse(data)


@pytest.mark.parametrize(
    ("line", "machine", "expected"),
    [
        (b"0 0x3 0x7feb 0x1 0x0 0x0 0x0 0x7fff 0x7feb\n", "x86_64", ("read", 3)),
        (b"202 0x556c 0x189 0x0 0x0 0x0 0x0 0x7fff 0x7feb\n", "x86_64", ("futex", -1)),
        (b"98 0x556c 0x189 0x0 0x0 0x0 0x0 0x7fff 0x7feb\n", "aarch64", ("futex", -1)),
        (b"400 0x1 0x0 0x0 0x0 0x0 0x0 0x7fff 0x7feb\n", "x86_64", ("system call 400", -1)),
        (b"running\n", "x86_64", ("", -1)),
        (b"-1 0x7fff 0x7feb\n", "x86_64", ("", -1)),
    ],
)
def test_parses_system_calls(line: bytes, machine: str, expected: tuple[str, int]) -> None:
    call = syscalls.parse(line, machine)
    assert ((call.name, call.file) if call else ("", -1)) == expected


# -- counters


def exposition(busy: float, seconds: float, xids: int) -> str:
    gpu = 'gpu="0",uuid="GPU-a"'
    return f"""# HELP whyidle_gpu_busy_seconds_total Time
whyidle_gpu_info{{{gpu},pci_bus_id="0",model="H\\"100",architecture="",driver="",mig=""}} 1
whyidle_gpu_busy_seconds_total{{{gpu},source="nvml"}} {busy}
whyidle_gpu_observed_seconds_total{{{gpu},source="nvml"}} {seconds}
whyidle_gpu_power_watts{{{gpu}}} 88.5
whyidle_gpu_xid_events_total{{{gpu},xid="79"}} {xids}
whyidle_nic_errors_total{{device="eth0",direction="receive"}} 0
whyidle_gpu_power_watts{{broken
"""


def test_reads_gpus_and_errors_of_the_node() -> None:
    found = node.between(node.look(exposition(10, 100, 1)), node.look(exposition(10.5, 101, 2)))
    assert found.gpus == (node.Gpu("0", "GPU-a", 0.5, 88.5),)
    [error] = found.errors
    assert (error.name, error.labels["xid"], error.total, error.grown) == ("whyidle_gpu_xid_events_total", "79", 2, 1)


def test_counters_that_were_read_once_have_not_grown() -> None:
    once = node.between(node.Look(), node.look(exposition(10, 100, 1)))
    assert once.gpus == (node.Gpu("0", "GPU-a", None, 88.5),)
    assert [error.grown for error in once.errors] == [0]


# -- a source that hangs or fails


def test_a_source_that_hangs_or_fails_is_named() -> None:
    absent: list[str] = []
    assert Later("the slow one", lambda: time.sleep(30)).result(0.1, absent) is None

    def fails() -> None:
        raise OSError("no such thing")

    assert Later("the broken one", fails).result(10, absent) is None
    assert Later("the good one", lambda: 1).result(10, absent) == 1
    assert absent == ["the slow one: no answer in 0 s", "the broken one: no such thing"]


# -- stacks


def program(folder: Path, body: str) -> str:
    """A program that stands in for py-spy."""
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_takes_the_stacks_that_py_spy_prints(tmp_path: Path) -> None:
    said = program(tmp_path, 'echo "$@"; printf "    work (train.py:7)\\033[2J\\n"')
    assert stacks.of(4711, 10, said) == (["dump --nonblocking --pid 4711", "    work (train.py:7) [2J"], "")


@pytest.mark.parametrize(
    ("body", "seconds", "why"),
    [
        ("echo denied >&2; exit 1", 10, "py-spy failed: denied"),
        ("exit 3", 10, "py-spy failed: exit status 3"),
        ("exec sleep 30", 0.2, "py-spy did not finish in 0 s"),
    ],
    ids=["denied", "silent", "slow"],
)
def test_says_why_there_are_no_stacks(body: str, seconds: float, why: str, tmp_path: Path) -> None:
    assert stacks.of(1, seconds, program(tmp_path, body)) == ([], why)


def test_says_that_py_spy_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert stacks.of(1, 1) == ([], stacks.ABSENT)
    assert stacks.of(1, 1, "/nowhere/py-spy")[1].startswith("py-spy cannot be started")


# -- torch's flight recorder


def test_asks_the_flight_recorder_through_its_pipe(tmp_path: Path) -> None:
    """The program reads the pipe as torch's DumpPipe does, and writes a dump."""
    pipe, dump = tmp_path / "pipe3.pipe", tmp_path / "dump3"
    os.mkfifo(pipe)
    reads = f"""
fd = os.open({str(pipe)!r}, os.O_RDONLY | os.O_NONBLOCK)
print(flush=True)
while not os.read(fd, 128): time.sleep(0.02)
open({str(dump)!r}, 'wb').write(b'x' * 10)
time.sleep(60)"""
    env = {"TORCH_FR_BUFFER_SIZE": "100", recorder.PIPE: str(tmp_path / "pipe")}
    with running(reads, **env, TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "dump")) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()
        found = recorder.of(PROC, rank.pid, 3)
        assert found is not None
        assert found.on
        assert recorder.dump(found) is None
        assert recorder.ask(found) == recorder.ASKED
        dumped = until(lambda: recorder.dump(found))
        assert dumped is not None
        size, age = dumped
        assert (size, age < 60) == (10, True)
        assert recorder.shown(found.dump) == str(dump)


def test_a_flight_recorder_that_is_off_is_not_asked() -> None:
    with running(SLEEPS) as rank:
        found = recorder.of(PROC, rank.pid, 3)
        assert found is not None
        assert recorder.ask(found) == recorder.OFF
        assert recorder.of(PROC, rank.pid, 3) == found
    assert recorder.of(PROC, rank.pid, 3) is None


def test_a_rank_that_does_not_answer_keeps_no_other_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory cannot be read while the kernel changes it."""
    monkeypatch.setattr(dossier, "FIND_SECONDS", 1.0)
    of = recorder.of
    monkeypatch.setattr(
        recorder, "of", lambda procfs, pid, rank: time.sleep(30) if rank == 0 else of(procfs, pid, rank)
    )
    with running(SLEEPS, TORCH_FR_BUFFER_SIZE="100") as rank:
        seen = dossier._Seen({0: 1, 1: rank.pid})
        told = [{"rank": 0}, {"rank": 1}]
        dossier._add_recorders(told, Diagnosis(False, ""), seen, dossier.Wanted())
    assert [one["flight_recorder"] is None for one in told] == [True, False]
    assert seen.absent == ["flight recorder of rank 0: no answer in 1 s"]


def test_a_dump_is_listed_and_not_loaded(tmp_path: Path) -> None:
    dump = tmp_path / "dump3"
    dump.write_bytes(pickle.dumps(_Harmful(str(tmp_path / "harm"))))
    assert recorder.dump(Recorder(True, "", str(dump), os.getuid())) is not None
    assert not (tmp_path / "harm").exists()


class _Harmful:
    """Makes a directory if its pickle is loaded."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.path,)


def _nobody_reads(path: Path) -> None:
    os.mkfifo(path)


def _linked(path: Path) -> None:
    os.mkfifo(path.with_suffix(".target"))
    path.symlink_to(path.with_suffix(".target"))


# what is at the path of the pipe -> what is said
NO_PIPES: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda path: None, "cannot be written"),
    "a file": (lambda path: path.write_text("data"), "nothing was written"),
    "a directory": (lambda path: path.mkdir(), "nothing was written"),
    "a pipe without a reader": (_nobody_reads, "cannot be written"),
    "a link": (_linked, "nothing was written"),
}


@pytest.mark.parametrize(("make", "said"), NO_PIPES.values(), ids=NO_PIPES)
def test_writes_to_nothing_but_a_pipe_of_the_training(
    make: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "pipe3.pipe"
    make(path)
    assert said in recorder.ask(Recorder(True, str(path), "", os.getuid()))
    if path.is_file():
        assert path.read_text() == "data"


def test_a_pipe_of_another_user_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert "nothing was written" in recorder.ask(Recorder(True, str(path), "", os.getuid() + 1))


def test_connections_are_those_of_the_process() -> None:
    from whyidle.agent.hang import connections

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert connections.of(PROC, os.getpid()) == ((), ())  # nothing is stuck, and the loopback does not count
    assert connections.of(PROC, 1 << 22) == ((), ())


# -- the kernel's log


def test_an_xid_says_how_long_ago_it_was(tmp_path: Path) -> None:
    now = time.monotonic_ns() // 1000
    log = tmp_path / "kmsg"
    lines = [f"4,901,{now - 3_000_000},-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"]
    lines += [f"4,{902 + number},{now - 1000},-;NVRM: Xid (PCI:0000:3b:00): 45, pid=1, Ch 0\n" for number in range(40)]
    log.write_text("".join(line.ljust(8192) for line in lines))  # a read of the kernel's log returns one record
    newest, found = node.xids(str(log))
    assert newest.xid == 45
    assert (found.pci, found.xid) == ("0000:3b:00", 79)
    assert found.seconds_ago >= 3


def test_a_log_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="as root"):
        node.xids(str(tmp_path / "absent"))

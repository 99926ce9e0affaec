"""The processes of the simulated node's ranks under /proc, and their control groups under /sys/fs/cgroup.

Two ranks of one pod, started by torchrun. Each has three workers, one of which was started by a thread other than the
main one. They read from NFS, write to Lustre, and have an index on the local disk mapped. The file systems are those of
`storage`. Their ledgers come from real processes: `specs` connects them to the simulated ones.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from support_ledgers import Spec

from whyidle.agent.files import Roots

LAUNCHER = 4000
RANKS = (4100, 4200)
START_TICKS = 1200
"""Start time of the first rank: soon after the machine's start, so that it is in the past on a real clock too."""

POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f2e3d4c_0000_4000_8000_00000000abcd.slice"
CONTAINER = f"{POD}/cri-containerd-{'5c' * 32}.scope"


@dataclass(frozen=True)
class Process:
    """One process. The numbers in its files are computed from its pid, so that each is different."""

    pid: int
    parent: int
    start: int
    inner_pid: int
    threads: tuple[int, ...] = ()
    children: tuple[tuple[int, tuple[int, ...]], ...] = ()  # by thread
    state: str = "S"


def processes() -> list[Process]:
    found = [Process(LAUNCHER, 1, START_TICKS - 100, 1, (LAUNCHER,), ((LAUNCHER, RANKS),))]
    for rank, pid in enumerate(RANKS):
        start, other = START_TICKS + rank, pid + 50
        children = ((pid, (pid + 1, pid + 2)), (other, (pid + 3,)))
        found.append(Process(pid, LAUNCHER, start, 17 + rank, (pid, other), children, "R"))
        for number in (1, 2, 3):
            worker = pid + number
            state = "D" if number == 2 else "S"
            found.append(Process(worker, pid, start + number, 20 + worker % 100, (worker,), (), state))
    return found


def specs() -> list[Spec]:
    """The ledgers of the two ranks, for tests/support/support_ledgers.py."""
    return [
        Spec(rank=rank, words={"pid": 17 + rank, "pid_start_ticks": START_TICKS + rank}) for rank in range(len(RANKS))
    ]


def _stat(process: Process) -> str:
    """As Linux 6.8 writes it. A name may contain blanks and parentheses."""
    pid = process.pid
    start = (
        f"{pid} (pt_data (worker) 0) {process.state} {process.parent} {pid} {pid} 0 -1 4194560 "
        f"91{pid} 7{pid} 1{pid} 2{pid} 3{pid} 4{pid} 5{pid} 6{pid} 20 0 {len(process.threads) * 7} 0 {process.start} "
    )
    return (
        start
        + f"98765432100 {pid}0 18446744073709551615 1 1 0 0 0 0 0 16781312 17642 0 0 0 17 3 0 0 {pid % 10 + 1} 0"
        + (" 0 0 0 0 0 0 0 0 0 0\n")
    )


def _status(process: Process) -> str:
    uid, pid = os.getuid(), process.pid
    return (
        f"Name:\tpt_data (worker) 0\nUmask:\t0022\nState:\t{process.state} (as it may be)\nTgid:\t{pid}\n"
        f"Ngid:\t0\nPid:\t{pid}\nPPid:\t{process.parent}\nTracerPid:\t0\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        f"Gid:\t0\t0\t0\t0\nFDSize:\t256\nGroups:\t \nNStgid:\t{pid}\t{process.inner_pid}\n"
        f"NSpid:\t{pid}\t{process.inner_pid}\nNSpgid:\t{pid}\t{process.inner_pid}\nVmRSS:\t  123456 kB\n"
    )


def _io(pid: int) -> str:
    return (
        f"rchar: 1{pid}000\nwchar: 2{pid}000\nsyscr: 31\nsyscw: 32\n"
        f"read_bytes: 3{pid}000\nwrite_bytes: 4{pid}000\ncancelled_write_bytes: 0\n"
    )


CGROUP = f"0::{CONTAINER}\n"
MOUNTINFO = """\
1001 900 0:101 / / rw,relatime master:500 - overlay overlay rw,lowerdir=/l1:/l2,upperdir=/u,workdir=/w
1002 1001 0:102 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
1003 1001 0:103 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
1004 1003 0:104 / /dev/shm rw,relatime - tmpfs shm rw,size=67108864k
1005 1001 0:51 / /mnt/data\\040sets rw,relatime shared:32 - nfs nfs1.cluster:/export/data\\040sets rw,vers=3,proto=tcp
1006 1001 0:71 / /lustre/scratch rw,relatime shared:34 - lustre 10.0.0.1@o2ib:10.0.0.2@o2ib:/lscratch rw,flock
1007 1001 259:1 /kubelet/local /mnt/local rw,relatime - ext4 /dev/nvme0n1p1 rw
"""
MAPS = """\
55d291905000-55d291907000 r--p 00000000 00:65 260131                     /usr/bin/python3.11
55d291907000-55d29190c000 r-xp 00002000 00:65 260131                     /usr/bin/python3.11
55d2a1907000-55d2a190c000 rw-p 00000000 00:00 0                          [heap]
7f2100000000-7f2500000000 r--s 00000000 103:01 7340033                   /mnt/local/index 0.bin
7f2a00000000-7f2a00200000 r--p 00000000 00:65 131                        /venv/lib/python3.11/site-packages/torch/t.bin
7f2b00000000-7f2b00021000 r--p 00000000 00:65 141                        /opt/lib/libcuda.so.1
7f2b00021000-7f2b00041000 r-xp 00021000 00:65 141                        /opt/lib/libcuda.so.1
7f2c00000000-7f2c00001000 rw-s 00000000 00:68 151                        /dev/shm/torch_77_1_0 (deleted)
7ffd8a9f8000-7ffd8aa19000 rw-p 00000000 00:00 0                          [stack]
"""

_NULL = (0, "/dev/null", 0o100002, 1003)
MAIN_FILES: tuple[tuple[int, str, int, int], ...] = (
    _NULL,
    (1, "/lustre/scratch/logs/rank.log", 0o102001, 1006),
    (3, "socket:[7340]", 0o2004002, 10),
    (4, "anon_inode:[eventpoll]", 0o2000002, 15),
    (5, "/dev/nvidia0", 0o2100002, 1003),
    (6, "/dev/shm/whyidle/0-17-aabbccddeeff.ledger", 0o2100002, 1004),
    (7, "/lustre/scratch/step 400/model.pt", 0o2102001, 1006),
    (8, "/mnt/local", 0o100000 | os.O_DIRECTORY, 1007),
)
"""Descriptor, target, flags, mount."""
WORKER_FILES = (_NULL, (3, "pipe:[7341]", 0o2000000, 14), (12, "/mnt/data sets/shard-0007.tar", 0o2100000, 1005))

GROUPS: dict[str, dict[str, str]] = {
    POD: {
        "cgroup.type": "domain\n",
        "cgroup.procs": "",
        "cpu.max": "800000 100000\n",
        "cpu.stat": "usage_usec 9001002\nuser_usec 8000000\nsystem_usec 1001002\nnr_periods 7001\nnr_throttled 701\n"
        "throttled_usec 71000001\nnr_bursts 0\nburst_usec 0\n",
        "cpu.pressure": "some avg10=1.00 avg60=2.00 avg300=3.00 total=1100001\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=1200001\n",
        "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1300001\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=1400001\n",
        "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500001\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=1600001\n",
        "memory.current": "100000000001\n",
        "memory.max": "max\n",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
    },
    CONTAINER: {
        "cgroup.type": "domain\n",
        "cgroup.procs": "".join(f"{pid}\n" for pid in (LAUNCHER, *RANKS)),
        "cpu.max": "max 100000\n",
        # Some kernels leave the throttling out for a group without its own limit.
        "cpu.stat": "usage_usec 8001002\nuser_usec 7000000\nsystem_usec 1001002\n",
        "cpu.pressure": "some avg10=1.00 avg60=2.00 avg300=3.00 total=2100001\n",
        "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2300001\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=2400001\n",
        "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500001\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=2600001\n",
        "memory.current": "90000000001\n",
        "memory.max": "137438953472\n",
        "memory.events": "low 0\nhigh 11\nmax 12\noom 13\noom_kill 14\noom_group_kill 0\n",
    },
    # Another pod, and the groups between the root and the pods: none of them sets a limit.
    "/kubepods.slice": {"cgroup.type": "domain\n", "cpu.max": "max 100000\n", "memory.max": "max\n"},
    "/kubepods.slice/kubepods-burstable.slice": {"cpu.max": "max 100000\n", "memory.max": "max\n"},
    "/kubepods.slice/kubepods-besteffort.slice": {"cpu.max": "max 100000\n", "memory.max": "max\n"},
}


def write_process(roots: Roots, process: Process) -> None:
    """What the kernel shows of a process itself."""
    folder = Path(roots.procfs, str(process.pid))
    _write(folder / "stat", _stat(process))
    _write(folder / "status", _status(process))
    _write(folder / "io", _io(process.pid))
    _write(folder / "schedstat", f"5{process.pid}000 6{process.pid}0000 771\n")
    _write(folder / "cgroup", CGROUP)
    children = dict(process.children)
    for thread in process.threads:
        pids = children.get(thread, ())
        _write(folder / "task" / str(thread) / "children", "".join(f"{pid} " for pid in pids))


def write_files(roots: Roots, process: Process, files: tuple[tuple[int, str, int, int], ...], maps: str) -> None:
    """What the kernel shows of a process's files and mounts."""
    folder = Path(roots.procfs, str(process.pid))
    _write(folder / "mountinfo", MOUNTINFO)
    _write(folder / "maps", maps)
    _link(folder / "ns/mnt", "mnt:[4026532871]")
    _link(folder / "root", str(Path(roots.rootfs, "run/container").absolute()))
    (folder / "fd").mkdir()
    for number, target, flags, mount in files:
        _link(folder / "fd" / str(number), target)
        _write(
            folder / "fdinfo" / str(number), f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t{mount}\nino:\t{mount}{number}\n"
        )


def build(roots: Roots) -> None:
    for process in processes():
        write_process(roots, process)
        files = MAIN_FILES if process.pid in RANKS else WORKER_FILES
        write_files(roots, process, files, MAPS if process.pid in RANKS else "")
    for path, group in GROUPS.items():
        for name, text in group.items():
            _write(Path(f"{roots.sysfs}/fs/cgroup{path}", name), text)
    _write(Path(roots.procfs, "sys/kernel/task_delayacct"), "1\n")
    _write(Path(roots.sysfs, "fs/cgroup/cgroup.controllers"), "cpuset cpu io memory pids\n")
    _write(Path(roots.sysfs, "block/nvme0n1/nvme0n1p1/partition"), "1\n")
    _link(Path(roots.sysfs, "dev/block/259:1"), "../../block/nvme0n1/nvme0n1p1")
    for point in ("mnt/data sets", "lustre/scratch", "mnt/local"):
        Path(roots.rootfs, "run/container", point).mkdir(parents=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)

"""What the kernel's log says of processes that were killed because memory ran out, in lines of several kernels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whyidle.linux.kernel_log import OomVictim, XidError, oom_victims, records, xid_errors
from whyidle.linux.unreadable import Unreadable

V1 = """\
4,508,1401673752,-;python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
4,516,1401673931,-; mem_cgroup_out_of_memory+0xc0/0x110
6,537,1401673999,-;memory: usage 921600kB, limit 921600kB, failcnt 442
6,538,1401674005,-;memory+swap: usage 921600kB, limit 9007199254740988kB, failcnt 0
6,583,1401674118,-;Tasks state (memory values in pages):
6,586,1401674125,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/t46,\
task_memcg=/t46,task=python,pid=15464,uid=0
3,587,1401674140,-;Memory cgroup out of memory: Killed process 15464 (python) total-vm:4325864kB, anon-rss:873728kB, \
file-rss:146688kB, shmem-rss:0kB, UID:0 pgtables:2460kB oom_score_adj:0
"""
"""Linux 6.18, version 1 of control groups."""
POD = """\
4,2001,99000000,-;pt_data_worker invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=968
6,2020,99000100,-;memory: usage 67108864kB, limit 67108864kB, failcnt 12098
6,2021,99000101,-;swap: usage 0kB, limit 0kB, failcnt 0
6,2030,99000140,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-containerd-0f3.scope,mems_allowed=0-1,\
oom_memcg=/kubepods.slice/kubepods-pod7.slice,task_memcg=/kubepods.slice/kubepods-pod7.slice/cri-containerd-0f3.scope,\
task=python3,pid=4242,uid=1000
3,2031,99000150,-;Memory cgroup out of memory: Killed process 4242 (python3) total-vm:90000000kB, anon-rss:60000000kB, \
file-rss:0kB, shmem-rss:8192kB, UID:1000 pgtables:140000kB oom_score_adj:968
6,2032,99000160,-;Tasks in /kubepods.slice/kubepods-pod7.slice/cri-containerd-0f3.scope are going to be killed due to \
memory.oom.group set
3,2033,99000170,-;Memory cgroup out of memory: Killed process 4243 (pt_data_worker) total-vm:9kB, anon-rss:9kB, \
file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1kB oom_score_adj:968
"""
"""Version 2, a pod whose container is killed as a whole."""
NODE = """\
4,77,5000,-;sshd invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0
 SUBSYSTEM=x
6,79,5002,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
task_memcg=/user.slice/session-2.scope,task=a,b (c),pid=7,uid=0
3,80,5003,-;Out of memory: Killed process 7 (a,b (c)) total-vm:9kB, anon-rss:9kB, file-rss:0kB, shmem-rss:0kB, UID:0 \
pgtables:1kB oom_score_adj:0
"""


XIDS = """\
4,901,5000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
6,902,5000001,-;nvidia: Xid (PCI:0000:3b:00): 79, said by another
4,903,6000000,-;NVRM: Xid (PCI:0000:86:00.0): 31, pid=4242, name=python, Ch 00000008, intr 10000000. MMU Fault
4,904,6000001,-;NVRM: Xid (PCI:0000:86:00.0): 99999, pid=4242
"""


def test_errors_of_gpus_have_their_time_and_their_gpu() -> None:
    found = xid_errors(f"{line}\n".encode() for line in XIDS.splitlines())
    assert found == [XidError(5_000_000_000, "0000:3b:00", 79), XidError(6_000_000_000, "0000:86:00.0", 31)]


def victims(*texts: str) -> list[OomVictim]:
    return oom_victims(f"{line}\n".encode() for text in texts for line in text.splitlines())


def test_a_control_group_at_its_limit() -> None:
    assert victims(V1) == [OomVictim(1401674140000, 15464, "python", "/t46", 900 << 20)]


def test_all_processes_of_a_container_and_the_limit_of_its_pod() -> None:
    group = "/kubepods.slice/kubepods-pod7.slice/cri-containerd-0f3.scope"
    assert victims(POD) == [
        OomVictim(99000150000, 4242, "python3", group, 64 << 30),
        OomVictim(99000170000, 4243, "pt_data_worker", group, 64 << 30),
    ]


def test_a_node_out_of_memory_has_no_limit_and_takes_none_from_an_earlier_kill() -> None:
    assert victims(V1, NODE)[-1] == OomVictim(5003000, 7, "a,b (c)", "/user.slice/session-2.scope", 0)


def test_what_is_not_a_record_is_left_out() -> None:
    texts = (
        "",
        "6,1,2",
        "Out of memory: Killed process 7 (a) total-vm:1kB",
        "3,1,1,-;a program said: Out of memory: x",
    )
    assert victims(*texts) == []


def test_the_log_of_this_machine() -> None:
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("needs the right to read /dev/kmsg")
    assert oom_victims(records("/dev/kmsg")) is not None


def test_a_log_that_may_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(Unreadable):
        list(records(str(tmp_path / "kmsg")))
    (tmp_path / "kmsg").write_bytes(V1.splitlines()[0].encode())
    assert len(list(records(str(tmp_path / "kmsg")))) == 1

"""A whole node, set up as the pages say: Debian in a container, the agent by docs/hosts.md, Slurm by docs/slurm.md, and
a job.

It takes minutes, root, a Debian mirror and packages from the index, and runs only with WHYIDLE_TEST_NODE=1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ("debootstrap", "systemd-nspawn", "chroot")
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,iproute2,slurmd,slurmctld,slurm-client,munge"
PYTHON = "/opt/training"
WAITS_SECONDS = 600

pytestmark = [
    pytest.mark.skipif(not os.environ.get("WHYIDLE_TEST_NODE"), reason="takes minutes: only with WHYIDLE_TEST_NODE=1"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a container"),
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason=f"needs {', '.join(PROGRAMS)}"),
    pytest.mark.timeout(3 * WAITS_SECONDS),
]

SLURM = """
ClusterName=lab
SlurmctldHost=gpu1(10.9.9.1)
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/lib/slurm/slurmctld.log
SlurmdLogFile=/var/lib/slurm/slurmd.log
SlurmUser=slurm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=gpu1 NodeAddr=10.9.9.1 CPUs=2 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES
"""
TRAIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(20):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ALONE = """
import time, torch
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(80):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
"""
PROOF = r"""#!/bin/bash
exec >/proof.out 2>&1
say() { echo "$1: ${*:2}"; }
of() { systemctl show -p "$1" --value whyidle-agent; }
folder() { stat -c '%A %U' /dev/shm/whyidle; }
ask='import urllib.request as u; print(u.urlopen("http://127.0.0.1:9838/metrics").read().decode())'
metrics() { python3 -c "$ask"; }
up() { for _ in {1..60}; do metrics >/dev/null 2>&1 && return; sleep 0.5; done; }
up
say active "$(of ActiveState)"; say folder "$(folder)"
say rights $(grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' "/proc/$(of MainPID)/status" | cut -f2)
say down $(metrics | grep -E '^whyidle_collector_up.* 0')
say clock $(metrics | grep -cE '^whyidle_clock_(synchronised|offset_seconds) ')
systemctl stop whyidle-agent; say stopped "$(of Result) $(of ExecMainStatus)"; say kept "$(folder)"
systemctl start whyidle-agent; up; kill -9 "$(of MainPID)"; sleep 1; up
say restarted "$(of ActiveState) $(of NRestarts)"

ip link add eth0 type veth peer name eth1; ip addr add 10.9.9.1/24 dev eth0; ip link set eth0 up; ip link set eth1 up
rmdir /dev/shm/whyidle
systemctl restart munge; systemctl restart slurmctld slurmd
idle() { for _ in {1..30}; do sinfo -h -o %t | grep -q idle && break; sleep 1; done; }
idle
job=$(su alice -c 'cd; PATH=$PATH:/opt/whyidle/bin sbatch --parsable srun.sbatch train.py'); say job "$job"
for _ in {1..120}; do sleep 1; squeue -h | grep -q . || break; done
say prolog "$(folder)"
say report $(grep -E '^run ' "/home/alice/slurm-$job.out"); cat "/home/alice/slurm-$job.out"
say ledgers $(find /dev/shm/whyidle -name '*.ledger' | wc -l)
for _ in {1..60}; do sleep 1; find /dev/shm/whyidle -name '*.ledger' | grep -q . || break; done
say forgotten $(find /dev/shm/whyidle -name '*.ledger' | wc -l)
given() { su alice -c "cd; srun --quiet --ntasks=1 $* bash -c '$train alone.py; $report | grep ^given'" | grep CPUs; }
train=PYTHON/bin/python; report='/opt/whyidle/bin/whyidle report --run $SLURM_JOB_ID'
say one $(given); say two $(given --cpus-per-task=2)
idle; say node "$(sinfo -h -o %t)"
systemctl poweroff --force
"""


def commands(page: str, start: str, end: str) -> str:
    """The commands of a part of a page, from one line to another."""
    part = (ROOT / "docs" / page).read_text().partition(start)[2].partition(end)[0] + end
    return "\n".join(re.findall(r"^    (.*)$", part, re.MULTILINE))


def inside(root: Path, script: str) -> None:
    script = f"set -eux; mount -t proc proc /proc; trap 'umount /proc' EXIT; cd /srv/whyidle; {script}"
    done = subprocess.run(
        ["unshare", "--mount", "--net", "chroot", root, "sh", "-c", script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a node that was set up by the pages reports about itself."""
    root = tmp_path_factory.mktemp("node") / "root"
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", root], check=True, capture_output=True
    )
    skip = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "node_modules")
    shutil.copytree(ROOT, root / "srv/whyidle", ignore=skip)
    wheels = root / "srv/wheels"
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", wheels, "setuptools"]
    extra = re.search(r"^agent = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert extra
    subprocess.run([*fetch, "wheel", *re.findall(r'"(.*?)"', extra[1])], check=True)
    # The virtual environment uses this machine's Python. Debian's Python has its own, for the agent.
    (root / "etc/hostname").write_text("gpu1\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n10.9.9.1 gpu1\n")
    agent = commands("hosts.md", "## The agent as a service", "systemctl daemon-reload")
    inside(root, "export PIP_NO_INDEX=1 PIP_FIND_LINKS=/srv/wheels\n" + agent.replace("systemctl daemon-reload", ""))
    inside(root, "systemctl enable whyidle-agent\n" + commands("slurm.md", "## On the nodes", "/opt/whyidle-hooks"))
    hooks = commands("slurm.md", "Add this to `slurm.conf`", "PrologFlags=Alloc")
    (root / "etc/slurm/slurm.conf").write_text(SLURM + hooks + "\n")
    with open(root / "etc/whyidle/slurm/slurm.env", "a") as file:
        file.write("EVERY_JOB=1\nKEEP_SECONDS=10\n")
    inside(root, "useradd -m alice; install -d -o slurm /var/lib/slurm /var/lib/slurm/slurmctld /var/lib/slurm/slurmd")
    (root / "home/alice/train.py").write_text(TRAIN)
    batch = (ROOT / "deploy/slurm/srun.sbatch").read_text().replace("--nodes=2", "--nodes=1")
    batch = batch.replace("#SBATCH --gpus-per-node=8\n", "").replace("--ntasks-per-node=8", "--ntasks-per-node=2")
    (root / "home/alice/srun.sbatch").write_text(batch.replace("    python3 ", f"    {PYTHON}/bin/python "))
    (root / "home/alice/alone.py").write_text(ALONE)
    (root / "proof").write_text(PROOF.replace("PYTHON", PYTHON))
    (root / "proof").chmod(0o755)
    unit = root / "etc/systemd/system/proof.service"
    unit.write_text("[Service]\nType=oneshot\nExecStart=/proof\n")
    (unit.parent / "multi-user.target.wants" / unit.name).symlink_to(f"../{unit.name}")
    (root / "root").chmod(0o755)  # every user can use a Python in this directory
    boot = ["systemd-nspawn", "-D", root, "--hostname=gpu1", "--register=no", "--keep-unit", "--private-network"]
    binds = [f"--bind-ro={sys.prefix}:{PYTHON}", f"--bind-ro={sys.base_prefix}"]
    # Its own list of system calls lacks adjtimex, which the unit allows.
    boot += [*binds, "--system-call-filter=adjtimex clock_adjtime", "--boot"]
    subprocess.run(boot, stdin=subprocess.DEVNULL, capture_output=True, timeout=WAITS_SECONDS)
    text = (root / "proof.out").read_text()
    print(text)
    shutil.rmtree(root)  # half a gigabyte
    return dict(line.split(": ", 1) for line in text.splitlines() if re.match(r"[a-z]+: ", line))


FOLDER = "drwxrwxrwt whyidle"


def test_the_agent_serves_without_privileges(node: dict[str, str]) -> None:
    assert (node["active"], node["folder"]) == ("active", FOLDER)
    nothing = "0" * 16
    assert node["rights"].split() == [nothing, nothing, "1", "2"]  # effective, bounding, no new ones, filtered
    assert node["down"].strip() == ""
    assert node["clock"] == "2"


def test_the_agent_stops_cleanly_and_starts_again(node: dict[str, str]) -> None:
    assert node["stopped"] == "success 0"
    assert node["kept"] == FOLDER
    assert node["restarted"] == "active 1"


def test_a_job_is_recorded_and_removed(node: dict[str, str]) -> None:
    assert node["prolog"] == FOLDER
    assert node["report"].startswith(f"run alice/{node['job']} · 2 ranks, ended · 20 steps")
    assert (node["ledgers"], node["forgotten"], node["node"]) == ("2", "0", "idle")


def test_a_report_says_how_many_cpus_srun_has_given(node: dict[str, str]) -> None:
    """Without `--cpus-per-task`, that is one."""
    assert re.match(r"given +may use 1 of \d+ CPUs \(affinity\).*; Slurm gave 1$", node["one"])
    assert re.match(r"given +may use 2 of \d+ CPUs.*; Slurm gave 2$", node["two"])

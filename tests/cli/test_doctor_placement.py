"""What `whyidle doctor` says about NUMA nodes, on simulated nodes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

from fake_node import numa, nvml, processes
from fake_node.nvml_values import own
from support_agent import WHYIDLE
from support_ledgers import DEADLINE_SECONDS, children

from whyidle.agent.collectors.placement import Binding
from whyidle.agent.files import Roots
from whyidle.cli.placement import lines, sentences

OFF = ("nic", "tcp", "qdisc", "rdma", "disk", "nfs", "lustre", "fuse", "filesystem", "pressure", "cgroup", "cpu")
OFF += ("memory", "process", "clock", "identity", "advice")


def doctor(folder: Path, tree: numa.Tree, *flags: str) -> str:
    """A real doctor on a node with this tree. Its ranks use the GPUs 0 and 1."""
    roots = Roots(*(str(folder / name) for name in ("proc", "sys", "root")))
    processes.build(roots)
    numa.build(roots, tree)
    paths = [f"--path.{name}={getattr(roots, name)}" for name in ("procfs", "sysfs", "rootfs")]
    words = [*WHYIDLE, "doctor", f"--ledger.dir={folder}/ledgers", *paths, *(f"--no-collector.{name}" for name in OFF)]
    given = [f"{name}={value}" for name, value in nvml.Node(folder, 2, mig=None).environment().items()]
    Path(folder, "ledgers").mkdir()
    specs = (replace(spec, run="llama", uuid=str(own(spec.rank)["uuid"])) for spec in processes.specs())
    with children(folder / "ledgers", *specs):
        done = subprocess.run(["env", *given, *words, *flags], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_doctor_has_a_table_of_numa_nodes(tmp_path: Path) -> None:
    report = json.loads(doctor(tmp_path, numa.TWO_SOCKETS, "--json"))
    one, other = report["placement"]
    assert (one["run"], one["rank"], one["gpu_node"], one["ran_on"], one["far"]) == ("llama", 0, 0, {"0": 2}, [])
    assert (other["rank"], other["gpu_node"], other["far"]) == (1, 1, ["gpu"])


def test_the_doctor_says_which_ranks_run_far_from_their_gpus(tmp_path: Path) -> None:
    text = doctor(tmp_path, numa.TWO_SOCKETS)
    table, _, _ = text.partition("What to do")
    assert "lab/llama/1   0-15   0-1          0 (2 of 2)   0-1 (prefer=relative:1)   1        ?" in table
    assert "  rank 1 of lab/llama runs on node 0, its GPU is on node 1\n" in table


def test_the_doctor_says_nothing_of_one_numa_node(tmp_path: Path) -> None:
    assert "NUMA nodes" not in doctor(tmp_path, numa.ONE_SOCKET)


def test_ranks_that_are_alike_share_a_sentence() -> None:
    far = [asdict(Binding("lab", "llama", rank, ran_on={0: 3}, gpu_node=1, far=("gpu",))) for rank in (4, 5, 6, 7)]
    other = asdict(Binding("lab", "gpt", 0, ran_on={1: 2, 0: 1}, adapter="mlx5_0", adapter_node=0, far=("adapter",)))
    assert list(sentences([*far, other])) == [
        "ranks 4-7 of lab/llama run on node 0, their GPUs are on node 1",
        "rank 0 of lab/gpt runs on node 1, its adapter is on node 0",
    ]


def test_unknown_values_are_marked() -> None:
    *_, row = lines([asdict(Binding("lab", "llama", 0, "0-3", (0,), "0", ran_on={0: 1}))])
    cells = [cell for cell in map(str.strip, row.split("   ")) if cell]
    assert cells == ["lab/llama/0", "0-3", "0", "0 (1 of 1)", "0 (policy unknown)", "?", "?"]

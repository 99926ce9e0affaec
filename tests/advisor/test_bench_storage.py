"""`whyidle bench storage`: its pure parts, and real runs on a slow mount, on a full disk, and ended by signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support_bottlenecks_disks import missing, slow_folder
from support_ledgers import DEADLINE_SECONDS, until

from whyidle.advisor.bench.storage import caches, dlio, mlperf, tools
from whyidle.advisor.bench.storage.files import Writer
from whyidle.advisor.bench.storage.plan import BenchError, Measure, Plan
from whyidle.cli.bench.storage import command, places, text
from whyidle.cli.main import main

WHYIDLE = [sys.executable, "-m", "whyidle.cli.main", "bench", "storage"]
READ_MS = 20


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restores signal handlers, because the command sets them in this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# -- what is cached


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/tmp/x", ("ext4", "local")),
        ("/mnt/data sets/x", ("nfs4", "remote")),
        ("/mnt/objects", ("fuse.s3fs", "remote")),
        ("/mnt/objects-2", ("ext4", "local")),
        ("/dev/shm/x", ("tmpfs", "memory")),
        ("/mnt/usb", ("fuseblk", "local")),
    ],
)
def test_knows_which_file_systems_have_caches_elsewhere(path: str, found: tuple[str, str], tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "25 22 0:22 / /dev/shm rw - tmpfs tmpfs rw\n"
        "40 22 0:50 / /mnt/data\\040sets rw - nfs4 server:/export rw\n"
        "41 22 0:51 / /mnt/objects rw master:1 - fuse.s3fs s3fs rw\n"
        "42 22 8:1 / /mnt/usb rw - fuseblk /dev/sda1 rw\n"
    )
    assert caches.file_system(path, str(mounts)) == found


def test_drops_a_file_from_the_page_cache_unless_it_is_in_memory(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    Writer().write(path, 3_000_000)
    if caches.file_system(path).kind == "memory":
        pytest.skip("the temporary directory is in memory")
    assert caches.drop([path]) == 0.0
    Path(path).read_bytes()
    descriptor = os.open(path, os.O_RDONLY)
    assert caches._resident(descriptor, 3_000_000) == pytest.approx(3_000_000, abs=4096)
    os.close(descriptor)
    assert caches.drop([path]) == 0.0
    if os.path.isdir("/dev/shm"):
        with open(f"/dev/shm/whyidle-test-{os.getpid()}", "wb") as file:
            os.unlink(file.name)
            file.write(bytes(8192))
            file.flush()
            assert caches.drop([f"/proc/self/fd/{file.fileno()}"]) == 1.0


def test_cached_reads_have_no_speed() -> None:
    measure = Measure("dataset: load", 1000, 10, "files", 2.0, [0.2] * 10, cached=0.5)
    entry = measure.entry()
    assert entry["from_cache"]
    for name in ("seconds", "bytes_per_second", "items_per_second", "p50_seconds", "p95_seconds", "p99_seconds"):
        assert entry[name] is None
    measure.cached = None  # Not known: the value is shown, with a note.
    entry = measure.entry()
    assert (entry["bytes_per_second"], entry["items_per_second"], entry["p99_seconds"]) == (500.0, 5.0, 0.2)


# -- the rules of MLPerf, workloads of DLIO, other programs


def loop(**changes: Any) -> dict[str, Any]:
    entry = {"au": 0.95, "dataset_bytes": 500, "cached_share": 0.0, "from_cache": False, "whole": True}
    return {**entry, **changes}


@pytest.mark.parametrize(
    ("changes", "own_memory", "broken"),
    [
        ({}, True, None),
        ({"au": 0.89}, True, "AU is at least 90 %"),
        ({"au": None}, True, "AU is at least 90 %"),
        ({"dataset_bytes": 499}, True, "the dataset is 5 times as large as memory"),
        ({}, False, "the dataset is 5 times as large as memory"),
        ({"cached_share": None}, True, "caches were dropped"),
        ({"whole": False}, True, "the whole dataset was read"),
    ],
)
def test_says_which_rule_of_mlperf_is_not_met(changes: dict[str, Any], own_memory: bool, broken: str | None) -> None:
    judged = mlperf.judge(loop(**changes), memory=100, own_memory=own_memory, least_au=0.9, dropped_all=False)
    assert [rule["name"] for rule in judged["rules"] if not rule["met"]] == ([broken] if broken else [])
    assert judged["met"] is (broken is None)


def test_utilisation_leaves_out_the_first_step() -> None:
    assert mlperf.utilisation([10.0, 11.0, 12.0, 14.0], 1.0) == 0.75
    assert mlperf.utilisation([10.0], 1.0) is None
    assert mlperf.utilisation([10.0, 11.0], 0.0) is None


def test_a_cached_dataset_has_no_utilisation() -> None:
    judged = mlperf.judge(loop(from_cache=True), memory=100, own_memory=True, least_au=0.9, dropped_all=False)
    assert judged["au"] is None
    assert not judged["met"]


def test_host_memory_is_the_limit_of_the_control_group(tmp_path: Path) -> None:
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text("MemTotal:        1000 kB\nMemFree: 1 kB\n")
    for words, found in (("500000\n", 500_000), ("max\n", 1_024_000)):
        limit.write_text(words)
        assert mlperf.host_memory(str(meminfo), str(limit)) == found


NEW = {
    "model": {"name": "unet3d"},
    "dataset": {
        "format": "npz",
        "num_files_train": 168,
        "num_samples_per_file": 1,
        "record_length_bytes": 146600628,
        "record_length_bytes_stdev": 68341808,
        "record_length_bytes_resize": 2097152,
    },
    "reader": {"batch_size": 7, "read_threads": 4},
    "train": {"epochs": 5, "computation_time": 0.323},
    "checkpoint": {"model_size": 499153191},
    "metric": {"au": 0.7},
}
OLD = {
    "model": "resnet50",
    "dataset": {"num_files_train": 10, "num_samples_per_file": 4, "record_length": 114660.07},
    "reader": {"batch_size": 64, "read_threads": 8},
    "train": {"computation_time": {"mean": 0.1, "stdev": 0.01}, "epoch": 1},
}


def test_reads_workloads_of_dlio() -> None:
    found = dlio.workload(NEW, Plan())
    plan = found.plan
    assert (found.name, found.least_au) == ("unet3d", 0.7)
    assert (plan.files, plan.sample_bytes, plan.sample_deviation) == (168, 146600628, 68341808)
    assert (plan.handed_bytes, plan.batch, plan.workers, plan.compute) == (2097152, 7, 4, 0.323)
    assert [note.split(":")[0] for note in found.notes] == ["format npz", "5 epochs", "checkpoint"]
    smaller = dlio.cut(found, 1e9)
    assert smaller.plan.files == 6
    assert "168 files: cut to 6" in smaller.notes[-1]
    found = dlio.workload(OLD, Plan())
    assert (found.name, found.least_au, found.notes) == ("resnet50", 0.9, [])
    assert (found.plan.samples_per_file, found.plan.sample_bytes, found.plan.compute) == (4, 114660, 0.1)
    assert dlio.cut(found, 1e9) is found


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("text", "a mapping"),
        ({"dataset": {}}, "`dataset` or `reader` is missing"),
        ({"dataset": {"num_files_train": 1}, "reader": {"batch_size": 1}}, "`record_length_bytes` is missing"),
        ({**OLD, "reader": {"batch_size": "many"}}, "`batch_size` must be a number from 0, not 'many'"),
        ({**OLD, "reader": {"batch_size": 0.4}}, "must be above 0"),
        ({**OLD, "train": [1]}, "`train` must be a mapping"),
        ({**OLD, "train": {"computation_time": -1}}, "`computation_time` must be a number from 0"),
    ],
)
def test_rejects_invalid_workloads(document: object, sentence: str) -> None:
    with pytest.raises(BenchError, match=sentence):
        dlio.workload(document, Plan())


def test_reads_the_output_of_elbencho(tmp_path: Path) -> None:
    phases = [
        {"phase_type": phase, "last_done": {"elapsed_time_ms": "500", "bytes/s": rate, "bytes": "1048576"}}
        for phase, rate in (("WRITE", "1"), ("READ", "2097152"))
    ]
    (tmp_path / "elbencho.json").write_text("\n".join(map(json.dumps, phases)))
    measure = tools.read_elbencho("read in order", "", str(tmp_path))
    assert (measure.name, measure.bytes, measure.seconds) == ("elbencho: read in order", 1048576, 0.5)
    with pytest.raises(BenchError, match="elbencho reported no reads: what it said"):
        tools.read_elbencho("read in order", "what it said", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("", "fio reported no reads"),
        ('fio: a warning\n{"jobs": [{"error": 22}]}', "fio: Invalid argument"),
        ('{"jobs": []}', "fio reported no reads"),
        ("{cut off", "fio reported no reads: {cut off"),
    ],
)
def test_says_why_fio_measured_nothing(output: str, sentence: str) -> None:
    with pytest.raises(BenchError, match=sentence):
        tools.read_fio("read in order", output)


# -- what is rejected


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["{}/none"], 1, "{}/none: No such file or directory"),
        (["{}/file"], 1, "{}/file is not a directory"),
        (["{}", "--size", "900TB"], 1, "{} is too full: 945 TB are needed and"),
        (["{}", "/proc"], 1, "/proc cannot be written to"),
        (["{}", "--mlperf"], 2, "--mlperf needs the time that a step computes"),
        (["{}", "--mlperf", "--compute", "1s", "--only", "load"], 2, "leave out --only"),
        (["{}", "--drop-caches"], 2, "--drop-caches needs --mlperf"),
        (["{}", "--size", "1MB"], 2, "the dataset has 7 samples, and a batch has 32: choose a larger --size"),
        (["{}", "--dlio", "{}/none"], 2, "{}/none: No such file or directory"),
        (["{}", "--dlio", "{}/file"], 2, "not a workload: it must be a mapping"),
        (["{}", "--dlio", "{}/binary"], 2, "{}/binary is not YAML"),
        (["{}", "--dlio", "{}/workload", "--workers", "3"], 2, "leave out the options"),
    ],
)
def test_refuses_bad_input_with_a_sentence_and_a_status(
    words: list[str], status: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("some text")
    (tmp_path / "binary").write_bytes(b"\x00\xff")
    (tmp_path / "workload").write_text(json.dumps(OLD))
    before = sorted(os.listdir(tmp_path))
    assert main(["bench", "storage", *(word.replace("{}", str(tmp_path)) for word in words)]) == status
    said = capsys.readouterr()
    assert sentence.replace("{}", str(tmp_path)) in said.err
    assert said.out == ""
    assert sorted(os.listdir(tmp_path)) == before


def test_says_that_torch_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert main(["bench", "storage", str(tmp_path)]) == 2
    assert "PyTorch, which is not installed here: pip install torch" in capsys.readouterr().err


# -- real runs, most of them without torch


def scratch(path: Path) -> list[str]:
    return [name for name in os.listdir(path) if name.startswith("whyidle-bench-")]


def test_what_other_code_prints_into_the_measuring_process_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello'); print('{}', flush=True)")
    (tmp_path / "place").mkdir()
    words = [*WHYIDLE, str(tmp_path / "place"), "--only", "metadata", "--files", "10", "--json"]
    env = os.environ | {"PYTHONPATH": str(tmp_path), "WHYIDLE": "0"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_SECONDS, env=env, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.removeprefix("hello\n{}\n"))
    assert [measure["items"] for measure in report["paths"][0]["measures"]] == [10, 10, 10]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    # 40,000 files need 173 MB of space, and creating them takes seconds.
    words = [*WHYIDLE, str(tmp_path), "--only", "metadata", "--files", "40000", "--seconds", "1h"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        own = f"whyidle-bench-{bench.pid}-"
        try:
            until(lambda: any(tmp_path.glob("whyidle-bench-*/metadata/*/*")) or bench.poll() is not None)
            assert bench.poll() is None, bench.communicate()
            family = psutil.Process(bench.pid).children(recursive=True)
            bench.send_signal(number)
            out, said = bench.communicate(timeout=120)
        finally:
            bench.kill()
    assert bench.returncode == 128 + number
    assert said.endswith(f"whyidle bench storage: stopped by {number.name}\n")
    assert out == ""
    assert len(family) == 2
    until(lambda: not any(child.is_running() and child.status() != "zombie" for child in family))
    assert not scratch(tmp_path)
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(own)]


def test_the_next_bench_removes_what_a_killed_one_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    child = os.fork()
    if not child:
        place = places.make(str(tmp_path))
        (Path(place.directory) / "data").write_text("of a bench that SIGKILL ends")
        os._exit(0)
    os.waitpid(child, 0)
    (left,) = scratch(tmp_path)
    kept = [places.make(str(tmp_path)).directory]  # of a live process
    for name in (f"whyidle-bench-{child}-abcd", left.replace(f"-{left.split('-')[3]}-", "-00000000-")):
        kept.append(str(tmp_path / name))  # of another node, or an older whyidle
        os.mkdir(kept[-1])
    (tmp_path / left.replace("bench-", "bench-0")).symlink_to(tmp_path)
    places.remove_left(str(tmp_path))
    assert sorted(scratch(tmp_path)) == sorted([*map(os.path.basename, kept), left.replace("bench-", "bench-0")])
    assert f"removed {tmp_path / left}, which a killed bench had left" in capsys.readouterr().err
    places.remove_left(str(tmp_path / "none"))


def test_reports_a_full_or_read_only_path_in_a_sentence(tmp_path: Path) -> None:
    script = """
        mount -t tmpfs -o size=64m,nr_inodes=40 none "$1" || exit 77
        "$2" -m whyidle.cli.main bench storage "$1" --only metadata --files 200; echo "status $?"
        ls -A "$1"
        mount -o remount,ro "$1"
        "$2" -m whyidle.cli.main bench storage "$1" --only metadata; echo "status $?"
    """
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    words = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    if done.returncode == 77:
        pytest.skip("cannot mount a tmpfs here")
    problem, *rest = [line for line in done.stdout.splitlines() if line and "memory" not in line.split("note")[-1:][0]]
    assert problem.startswith(f"problem  {tmp_path}: metadata")
    assert problem.endswith("No space left on device")
    assert rest == ["status 1", "status 1"]
    assert f"{tmp_path} cannot be written to: Read-only file system" in done.stderr


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Path]]:
    """The reports on a local directory and on a mount whose reads take READ_MS longer, and the path of that mount."""
    if why := missing():
        pytest.skip(why)
    root = tmp_path_factory.mktemp("bench")
    (root / "below").mkdir()
    (root / "local").mkdir()
    if caches.file_system(str(root)).kind == "memory":
        pytest.skip("the temporary directory is in memory")
    with slow_folder(root / "below", root / "slow", read_ms=READ_MS, cached=True) as slow:
        words = [*WHYIDLE, str(root / "local"), str(slow), "--json", "--replay"]
        sizes = ["--sample-size", "32kB", "--size", "640kB", "--checkpoint-size", "64kB", "--files", "20"]
        shape = ["--workers", "1", "--batch-size", "4", "--repeat", "1"]
        done = subprocess.run([*words, *sizes, *shape], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        yield json.loads(done.stdout), root


@pytest.mark.xdist_group("bench-storage")
def test_a_slow_mount_is_slower_by_its_delay(both: tuple[dict[str, Any], Path]) -> None:
    report, _ = both
    local, slow = ({measure["name"]: measure for measure in path["measures"]} for path in report["paths"])
    for name in ("dataset: load", "samples: one read", "small files: open and read"):
        assert not local[name]["from_cache"]
        assert not slow[name]["from_cache"]
        # The mount gets one read for a sample of 32 kB.
        assert slow[name]["p50_seconds"] >= READ_MS / 1000
        assert slow[name]["p50_seconds"] > local[name]["p50_seconds"]
    for name, measure in slow.items():
        if name.endswith("restore"):
            assert measure["seconds"] >= READ_MS / 1000
    assert slow["samples: loop"]["items"] == 20
    assert slow["samples: loop"]["seconds"] >= 20 * READ_MS / 1000  # by one worker
    rates = [slow[f"samples: {name}"]["items_per_second"] for name in ("loop", "loop from memory")]
    assert report["paths"][1]["replay_speedup"] == pytest.approx(rates[1] / rates[0])


@pytest.mark.xdist_group("bench-storage")
def test_the_waits_are_split_by_the_ledger_of_the_loop(both: tuple[dict[str, Any], Path]) -> None:
    report, _ = both
    local, slow = report["paths"]
    # The loop waits for most of the 20 reads of one worker, because it computes nothing.
    assert slow["waits"]["samples"]["data_read"] > 20 * READ_MS / 1000 / 2
    assert slow["waits"]["samples"]["data_read"] > local["waits"]["samples"]["data_read"]
    for path in (local, slow):
        loop = next(measure for measure in path["measures"] if measure["name"] == "samples: loop")
        # The workers start in `iter()` and still do in the first wait, so only all three together can be compared.
        clocked = loop["start_seconds"] + loop["wait_seconds"] + loop["closing_seconds"]
        # Other programs may take the CPU after the hook has read its clock and before the loop reads its own.
        assert sum(path["waits"]["samples"].values()) == pytest.approx(clocked, rel=0.1, abs=0.05)
        assert path["waits"]["samples"]["data_start"] > loop["start_seconds"] / 2


@pytest.mark.xdist_group("bench-storage")
def test_measures_every_part_and_leaves_nothing_behind(both: tuple[dict[str, Any], Path]) -> None:
    report, root = both
    local, slow = report["paths"]
    assert (slow["file_system"], slow["kind"]) == ("fuse.slow_fs", "remote") or slow["file_system"].startswith("fuse")
    names = [measure["name"] for measure in local["measures"]]
    for form in ("torch.save", "safetensors", "DCP"):
        assert f"{form}: save and fsync" in names
        assert f"{form}: restore" in names
    assert "DCP async: save blocks" in names
    assert names[:4] == ["dataset: write files", "dataset: load", "samples: loop", "samples: one read"]
    assert not scratch(root / "local")
    assert not scratch(root / "slow")
    shown = text.render(report)
    assert "small files: open and read" in shown
    assert "has a server or daemon with its own caches" in shown


@pytest.mark.xdist_group("bench-storage")
def test_fio_measures_the_same_path(both: tuple[dict[str, Any], Path]) -> None:
    if not shutil.which("fio"):
        pytest.skip("needs fio")
    report, _ = both
    local = {measure["name"]: measure for measure in report["paths"][0]["measures"]}
    for name in ("fio: read in order", "fio: read at random"):
        assert local[name]["bytes_per_second"] > 0
        assert local[name]["p50_seconds"] <= local[name]["p95_seconds"] <= local[name]["p99_seconds"]


def test_mlperf_measures_the_utilisation_that_storage_allows(tmp_path: Path) -> None:
    workload = tmp_path / "workload.yaml"
    workload.write_text(json.dumps({**OLD, "reader": {"batch_size": 4, "read_threads": 1}}))
    words = [*WHYIDLE, str(tmp_path), "--dlio", str(workload), "--mlperf", "--memory", "1MB", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = json.loads(done.stdout)["paths"]
    found = {rule["name"]: rule["met"] for rule in path["mlperf"]["rules"]}
    assert found["the whole dataset was read"]
    assert found["the first step does not count"]
    assert not found["the dataset is 5 times as large as memory"]  # the size of memory was given
    measure = path["measures"][0]
    assert measure["items"] == 40
    if not measure["from_cache"]:
        # Ten steps that sleep for 100 ms each: the loop cannot be shorter, and AU cannot exceed 1.
        assert measure["seconds"] >= 10 * 0.1
        assert 0 < path["mlperf"]["au"] <= 1.0
        assert path["mlperf"]["au"] >= 0.9 / measure["seconds"]

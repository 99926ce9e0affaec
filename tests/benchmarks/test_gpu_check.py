"""`benchmarks/gpu.py` runs on the simulated device, and its exit status shows whether the figures are right."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from simdevice import build
from support_sites import clean_env

ROOT = Path(__file__).parents[2]
CHECK = ROOT / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(CHECK.parent))
    spec = importlib.util.spec_from_file_location("gpu_benchmark", CHECK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECK), *words]
    return subprocess.run(command, env=clean_env(), capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.alone
@pytest.mark.skipif(build.lacks() is not None, reason=f"no simulated device: {build.lacks()}")
def test_all_sections_pass_on_the_simulated_device(gpu: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = check("--device", "sim", "--quick", "--minutes", "0.02", "--out", str(out))
    assert done.returncode in (0, 1), done.stdout + done.stderr[-3000:]
    report = json.loads(out.read_text())
    assert list(report["sections"]) == list(gpu.SECTIONS)
    checked = {name for name, done in report["sections"].items() if any(row["ok"] for row in done["rows"])}
    needs_gpu = {"duty", "loops", "reasons", "ends", "unchanged", "model"}
    assert checked == set(gpu.SECTIONS) - needs_gpu - {"spin"}  # which checks nothing
    for name in needs_gpu:
        assert all(row["note"].startswith("skipped: ") for row in report["sections"][name]["rows"])
    assert done.returncode == 0, done.stdout


def test_says_that_there_is_no_gpu() -> None:
    done = check("--json", "--only", "idle", "--quick")
    report = json.loads(done.stdout)
    if "skipped" not in report:
        pytest.skip("there is a GPU here")
    assert done.returncode == 0
    assert "no CUDA GPU" in report["skipped"]


@pytest.mark.parametrize("words", [("--only", "idle,nonsense"), ("--minutes", "0"), ("--device", "tpu"), ("more",)])
def test_rejects_bad_usage(words: tuple[str, ...]) -> None:
    assert check(*words).returncode == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--case", "slow loadr"), "no such case: slow loadr; there are 200 tiny layers; "),
        (("--only", "ends", "--case", "slow loader"), "no such case in ends: slow loader; there are out of memory; "),
        (("--only", "idle", "--case", "slow loader"), "no such case in idle: slow loader; there are none"),
        (("--only", "loops,ends", "--case", "slow loader"), "no case of ends is named; there are out of memory; "),
    ],
)
def test_rejects_cases_that_no_section_would_run(
    gpu: ModuleType, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as raised:
        gpu.arguments_of([*words])
    assert raised.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sections"),
    [
        (["--case", "killed"], ["ends"]),
        (["--case", "slow loader"], ["loops", "unchanged"]),
        (["--only", "idle,loops", "--case", "slow loader"], ["idle", "loops"]),
    ],
)
def test_runs_the_sections_that_have_the_cases(gpu: ModuleType, words: list[str], sections: list[str]) -> None:
    assert gpu.arguments_of(words).only == sections


def test_a_section_without_rows_has_failed(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    monkeypatch.setattr(gpu, "rows_of", lambda *_: iter(()))
    gpu.child(gpu.arguments_of(["--device", "sim", "--child", "idle", "--out", str(out)]))
    assert json.loads(out.read_text().splitlines()[-1])["failed"] == "nothing was checked"


@pytest.mark.parametrize(
    ("rows", "failed", "ok"),
    [
        ([True, None], None, True),
        ([True, False], None, False),
        ([True], "exceeded its limit of 120 s", False),
    ],
)
def test_exit_status_shows_a_figure_out_of_bounds_or_a_failed_section(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, rows: list[bool | None], failed: str | None, ok: bool
) -> None:
    def run_child(names: list[str], options: Any, report: dict[str, Any]) -> None:
        row = {"what": "a", "known": 1.0, "measured": 2.0, "unit": "ms", "limit": 1.0, "note": "", "routine": False}
        told = {"seconds": 1.0, "failed": failed, "rows": [{**row, "ok": each} for each in rows]}
        report["sections"].update(dict.fromkeys(names, told))

    monkeypatch.setattr(gpu, "run_child", run_child)
    monkeypatch.setattr(gpu, "why_not", lambda device: None)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "sim", "--only", "idle"])
    assert gpu.main() == (0 if ok else 1)


def test_a_section_that_ends_early_has_failed(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    report: dict[str, Any] = {"sections": {}}
    gpu.run_child(["idle"], gpu.arguments_of(["--device", "sim"]), report)
    assert "exit status 1" in report["sections"]["idle"]["failed"]


def test_the_page_has_all_thresholds(gpu: ModuleType) -> None:
    from gpu_check.rows import LIMITS  # pyright: ignore[reportMissingImports]

    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (\S+) \| (.+) \|$", (ROOT / "docs" / "gpu.md").read_text(), re.M)
    shown = {name: (on_gpu, on_sim, what) for name, on_gpu, on_sim, what in rows}
    assert shown == {name: (_figure(on_gpu), _figure(on_sim), what) for name, (on_gpu, on_sim, what) in LIMITS.items()}


def _figure(limit: float | None) -> str:
    return "-" if limit is None else f"{limit:g}"


def test_a_launched_kernel_is_work_before_it_starts(gpu: ModuleType) -> None:
    from gpu_check.kineto import Trace, _read, share_idle  # pyright: ignore[reportMissingImports]

    def event(kind: str, name: str, begin: int, end: int, number: int) -> dict[str, Any]:
        return {"ph": "X", "cat": kind, "name": name, "ts": begin, "dur": end - begin, "args": {"correlation": number}}

    events = [
        event("cuda_runtime", "cudaLaunchKernel", 5, 10, 1),
        event("kernel", "gemm", 14, 20, 1),
        event("cuda_runtime", "cudaGraphLaunch", 25, 30, 2),
        event("kernel", "gemm", 33, 40, 2),
        event("kernel", "gemm", 42, 50, 2),
        event("cuda_runtime", "cudaMemcpyAsync", 60, 70, 3),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 62, 69, 3),
        {"ph": "X", "cat": "gpu_user_annotation", "name": "step", "ts": 0, "dur": 100},
    ]
    trace = Trace()
    _read({"baseTimeNanoseconds": 1000, "traceEvents": events}, trace)
    assert trace.busy == [(15000, 21000), (34000, 41000), (43000, 51000), (63000, 70000)]
    assert trace.owed == [(11000, 21000), (31000, 51000), (63000, 70000)]
    assert trace.pageable == [(63000, 70000)]
    assert share_idle(trace.owed, (1000, 101000)) == pytest.approx(0.63)
    assert share_idle(trace.busy, (1000, 101000), [(1000, 31000), (61000, 71000)]) == pytest.approx(0.27)

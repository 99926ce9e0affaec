"""The conditions of a release: one version everywhere, and workflows that test what the package declares."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import release
import version
from support_yaml import read_yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.stem: read_yaml(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
PYPROJECT = (ROOT / "pyproject.toml").read_text()
CI_VALUES = sorted((ROOT / "helm" / "whyidle" / "ci").glob("*-values.yaml"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the files that repeat the version."""
    for path in {path for path, _ in version.PLACES}:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def test_version_is_set_everywhere(tree: Path) -> None:
    assert list(version.differences(tree)) == []
    before = (tree / "CHANGELOG.md").read_text()
    version.write(tree, "7.8.9")
    assert version.current(tree) == "7.8.9"
    assert list(version.differences(tree)) == []
    after = (tree / "CHANGELOG.md").read_text()
    assert after.startswith("# Changelog\n\n## 7.8.9 — unreleased\n\n## ")
    assert after.endswith(before.removeprefix("# Changelog\n"))


def test_different_versions_are_found(tree: Path) -> None:
    compose = tree / "deploy/compose/compose.yaml"
    compose.write_text(compose.read_text().replace(f"whyidle:{version.current(tree)}", "whyidle:7.8.9"))
    chart = tree / "helm/whyidle/Chart.yaml"
    chart.write_text(chart.read_text().replace("appVersion: ", "appversion: "))
    said = list(version.differences(tree))
    assert len(said) == 2
    assert said[0].startswith("helm/whyidle/Chart.yaml: no version")
    assert re.fullmatch(r"deploy/compose/compose\.yaml:\d+: is 7\.8\.9, must be \d\S+", said[1])


CHANGELOG = "# Changelog\n\n## 0.2.0 — 2027-01-31\n\n- New.\n\n## 0.1.0 — unreleased\n\n- First.\n"


def test_notes_are_the_section_of_the_version() -> None:
    assert release.notes(CHANGELOG, "0.2.0") == "- New."


@pytest.mark.parametrize(("asked", "said"), [("0.1.0", "write the date"), ("0.3.0", "no section for 0.3.0")])
def test_release_without_a_dated_section_is_refused(asked: str, said: str) -> None:
    with pytest.raises(release.Failed, match=said):
        release.notes(CHANGELOG, asked)


VERDICT = """\
rank   steps   wall s   compute   storage
 all             10.0    17.0 %    78.0 %

verdict  {headline}
         · rank 1: 3.9 s waiting for a worker that was blocked (data_read)
         · the hypervisor took 25 % of the CPU time that was asked for on the CPUs (steal)

INJECTED storage: 180 ms in a read of the worker for each batch, on rank 1
"""
STORAGE, CPU = "storage 78 % — rank 1 is late: data workers are blocked", "cpu 41 % — data workers get no CPU"


def test_verdict_of_a_demo_is_read_with_its_evidence() -> None:
    family, verdict = release.verdict_of(VERDICT.format(headline=STORAGE))
    assert family == "storage"
    assert verdict.splitlines()[0] == STORAGE
    assert verdict.endswith("(steal)")


@pytest.mark.parametrize("said", ["", VERDICT.replace("INJECTED", "NOTHING"), VERDICT.replace("verdict", "said")])
def test_demo_without_a_verdict_or_without_a_fault_fails(said: str) -> None:
    with pytest.raises(release.Failed, match="should end with a verdict and what was injected"):
        release.verdict_of(said.format(headline=STORAGE))


def demo_that_prints(folder: Path, *headlines: str) -> Path:
    """A program that notes its arguments and prints these verdicts, one each time it is called."""
    for number, headline in enumerate(headlines, 1):
        (folder / f"said-{number}").write_text(VERDICT.format(headline=headline))
    program = folder / "whyidle"
    program.write_text('#!/bin/sh\necho "$@" >>calls\ncat "said-$(wc -l <calls | tr -d " ")"\n')
    program.chmod(0o755)
    return program


def test_a_wrong_verdict_is_tried_again_with_a_longer_delay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.demo(demo_that_prints(tmp_path, CPU, STORAGE), tmp_path) == STORAGE
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[-1] for call in calls] == ["180", "360"]
    assert all("--inject storage --inject-rank 1" in call for call in calls)
    said = capsys.readouterr().out
    assert f"the demo injected 180 ms of storage, but its verdict is: {CPU}" in said
    assert "the hypervisor took 25 % of the CPU time" in said


def test_verdicts_that_never_name_the_fault_fail(tmp_path: Path) -> None:
    with pytest.raises(release.Failed, match="none of 3 demos had the verdict storage"):
        release.demo(demo_that_prints(tmp_path, CPU, CPU, CPU), tmp_path)


@pytest.mark.long
def test_a_python_without_torch_is_reported_and_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real pip, with no index to install from."""
    monkeypatch.setattr(release, "TORCH", tmp_path)
    nothing = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(tmp_path), "PIP_NO_INDEX": "1"}
    monkeypatch.setattr(release, "OUTSIDE", {**release.OUTSIDE, **nothing})
    assert release.with_torch("3.x", Path(sys.executable)) is None
    said = capsys.readouterr().out
    assert "cannot be installed, so the demo does not run: ERROR: No matching distribution found for torch==" in said
    assert not (tmp_path / "3.x" / "installed").exists()


def test_workflow_tests_the_pythons_that_the_package_declares() -> None:
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    [oldest] = re.findall(r'requires-python = ">=(3\.\d+)"', PYPROJECT)
    matrix = WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == declared
    assert declared[0] == oldest
    assert matrix["torch"][0].startswith("2.4.")  # the oldest that the README names
    assert "torch 2.4 or later" in (ROOT / "README.md").read_text()


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_runs_targets_and_tools_that_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    script = "\n".join(step.get("run", "") for step in steps(WORKFLOWS[name]))
    assert set(re.findall(r"\bmake ([a-z-]+)", script)) <= targets
    named = re.findall(r"\bpython (tools/\S+\.py)", script)
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_actions_of_others_are_pinned_by_commit() -> None:
    for name, workflow in WORKFLOWS.items():
        used = [step["uses"] for step in steps(workflow) if "uses" in step]
        assert [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == [], name


def test_only_the_tag_publishes() -> None:
    """Other workflows run for pull requests. They may only read the repository."""
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}, name
        asked = [job.get("permissions") for job in workflow["jobs"].values()]
        assert name == "release" or not any(asked), name
    assert WORKFLOWS["release"][True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_chart_renders_with_the_values_of_its_workflow(values: Path) -> None:
    support = pytest.importorskip("support_manifest", reason="Helm's engine: pip install helm-python-sdk")
    kinds = {made["kind"] for made in support.rendered(ROOT / "helm" / "whyidle", read_yaml(values.read_text()))}
    # kind's cluster has no custom resources.
    assert kinds <= {"DaemonSet", "ServiceAccount", "Service", "ConfigMap", "Secret", "NetworkPolicy"}
    assert ("DaemonSet" in kinds) == values.stem.startswith("agent")

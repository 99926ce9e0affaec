"""The conditions of a release: one version everywhere, and workflows that test what the package declares."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import release
import version
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
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
    kinds = {made["kind"] for made in support.rendered(ROOT / "helm" / "whyidle", yaml.safe_load(values.read_text()))}
    # kind's cluster has no custom resources.
    assert kinds <= {"DaemonSet", "ServiceAccount", "Service", "ConfigMap", "Secret", "NetworkPolicy"}
    assert ("DaemonSet" in kinds) == values.stem.startswith("agent")

"""The SkyPilot example fits SkyPilot's schema, and bash can parse its commands."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "skypilot"
SCHEMA: dict[str, Any] = json.loads((ROOT / "tests" / "support" / "schemas" / "skypilot.json").read_text())


def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator({"$defs": SCHEMA["$defs"], "$ref": f"#/$defs/{kind}"})


@pytest.fixture
def task() -> dict[str, Any]:
    return yaml.safe_load((EXAMPLE / "train.yaml").read_text())


def test_fits_the_schema(task: dict[str, Any]) -> None:
    validator("task").validate(task)
    validator("volume").validate(yaml.safe_load((EXAMPLE / "volume.yaml").read_text()))


@pytest.mark.parametrize(
    ("place", "value"),
    [(("resources", "network_tier"), "fastest"), (("file_mounts", "/checkpoints", "mode"), "CACHED"), (("nodes",), 2)],
)
def test_the_schema_rejects_what_skypilot_rejects(task: dict[str, Any], place: tuple[str, ...], value: object) -> None:
    *way, last = place
    at = task
    for name in way:
        at = at[name]
    at[last] = value
    with pytest.raises(ValidationError):
        validator("task").validate(task)


def test_asks_for_the_recommended_network_and_storage(task: dict[str, Any]) -> None:
    assert (task["resources"]["network_tier"], task["resources"]["disk_tier"]) == ("best", "best")
    assert task["file_mounts"]["/checkpoints"]["mode"] == "MOUNT_CACHED"
    volume = yaml.safe_load((EXAMPLE / "volume.yaml").read_text())
    assert task["volumes"] == {"/dataset": volume["name"]}


@pytest.mark.parametrize("part", ["setup", "run"])
def test_bash_can_parse_the_commands(task: dict[str, Any], part: str) -> None:
    subprocess.run(["bash", "-n"], input=task[part], text=True, check=True)
    for word in task[part].split():
        if word.startswith("examples/"):
            assert (ROOT / word).is_file()

"""The tests run in a checkout of any name, although the root of the repository is the package whyidle."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support_sites import clean_env

ROOT = Path(__file__).parents[2]
TEST = """
import sys
from pathlib import Path

def test_the_root_is_not_imported():
    root = str(Path(__file__).parents[2] / "__init__.py")
    assert root not in [getattr(module, "__file__", None) for module in sys.modules.values()]
"""


@pytest.mark.parametrize("name", ["whyidle", "why-idle", "other"])
def test_tests_run_in_a_checkout_of_any_name(name: str, tmp_path: Path) -> None:
    checkout = tmp_path / name
    (checkout / "tests/verdict").mkdir(parents=True)
    for file in ("pyproject.toml", "__init__.py", "tests/conftest.py"):
        shutil.copyfile(ROOT / file, checkout / file)
    for folder in ("tools", "tests/support"):
        (checkout / folder).symlink_to(ROOT / folder)
    (checkout / "tests/verdict/test_root.py").write_text(TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/verdict"],
        cwd=checkout,
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

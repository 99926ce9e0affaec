"""What gets installed: only our packages. It needs no other package, and starts with Python only if it is told to."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from support_sites import clean_env

import whyidle

ROOT = Path(whyidle.__file__).parent
PACKAGES = ("linux", "ledger", "torch_hooks", "verdict", "agent", "advisor", "alerts", "dashboards", "cli")
"""The directories of the repository that may contain Python packages."""

pytestmark = pytest.mark.xdist_group("packaging")  # the wheel is built once


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source tree, so that building leaves nothing in it and finds no old files."""
    copy = tmp_path_factory.mktemp("source") / "tree"
    skip = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "node_modules")
    shutil.copytree(ROOT, copy, ignore=skip)
    return copy


def build(source: Path, kind: str, out: Path) -> Path:
    """Runs the build backend as pip would, but without isolation, so that nothing is downloaded."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=source, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(source, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment that has the wheel, and sees this environment's torch."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    assert site.is_dir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # A plain path: .pth files in it (such as that of an editable whyidle) are not processed.
    (site / "host.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def wheel_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_holds_the_packages_and_the_starter(wheel: Path) -> None:
    names = wheel_names(wheel)
    top = {name.split("/")[0] for name in names}
    assert top == {
        "whyidle",
        "whyidle-autoload.pth",
        "_whyidle_autoload.py",
        f"whyidle-{whyidle.__version__}.dist-info",
    }
    below = {name.split("/")[1] for name in names if name.startswith("whyidle/")}
    assert {"py.typed"} < below <= {*PACKAGES, "__init__.py", "__main__.py", "py.typed"}
    assert "whyidle/torch_hooks/autoload/sitecustomize.py" in names


def test_every_package_is_in_the_wheel(wheel: Path) -> None:
    sources = {
        f"whyidle/{file.relative_to(ROOT)}"
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        if "__pycache__" not in file.parts
    }
    assert sources <= set(wheel_names(wheel)), "a new package has to be listed in pyproject.toml"


def test_installation_installs_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    required = metadata.get_all("Requires-Dist", [])
    assert required, "the extras"
    assert all("extra ==" in requirement for requirement in required)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"


def test_the_source_distribution_holds_what_the_wheel_is_built_from(source: Path, tmp_path: Path) -> None:
    sdist = build(source, "sdist", tmp_path)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    shutil.unpack_archive(sdist, tmp_path / "unpacked")
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py"} <= names
    assert not [name for name in names if name.split("/")[0] in ("tests", "benchmarks", "docs", "build")]
    [unpacked] = (tmp_path / "unpacked").iterdir()
    assert set(wheel_names(build(unpacked, "wheel", tmp_path))) > {"whyidle-autoload.pth", "_whyidle_autoload.py"}


def ask(python: Path, *arguments: str, **env: str) -> str:
    done = subprocess.run(
        [str(python), *arguments], env=clean_env(**env), capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


STARTED = "import sys; print('_whyidle_autoload' in sys.modules)"
ATTACH = "'whyidle.torch_hooks.attach' in sys.modules"
ARMED = f"import sys; before = 'whyidle' in sys.modules; import torch; print(before, {ATTACH})"


@pytest.mark.parametrize(("switch", "started"), [("1", "True"), ("0", "False"), ("", "False"), (None, "False")])
@pytest.mark.parametrize("flags", [(), ("-E",), ("-I",)])
def test_the_pth_file_starts_only_if_switched_on(
    venv: Path, flags: tuple[str, ...], switch: str | None, started: str
) -> None:
    env = {} if switch is None else {"WHYIDLE": switch}
    assert ask(venv, *flags, "-c", STARTED, **env) == started


@pytest.fixture
def fake_torch(tmp_path: Path) -> str:
    """A path with a module called torch, which takes no seconds to import."""
    (tmp_path / "torch.py").touch()
    return str(tmp_path)


@pytest.mark.parametrize("flags", [(), pytest.param(("-E",), marks=pytest.mark.long)])
def test_the_pth_file_attaches_when_torch_is_imported(
    venv: Path, flags: tuple[str, ...], fake_torch: str, tmp_path: Path
) -> None:
    assert ask(venv, *flags, "-c", ARMED, WHYIDLE="1", WHYIDLE_DIR=str(tmp_path / "ledgers")) == "False True"
    assert ask(venv, *flags, "-c", ARMED, PYTHONPATH=fake_torch) == "False False"


def test_starting_both_ways_installs_one_finder(venv: Path, fake_torch: str, tmp_path: Path) -> None:
    """The installed command, with both `whyidle run` and the .pth file."""
    code = (
        "import sys, torch, whyidle\n"
        "finders = [f for f in sys.meta_path if type(f).__name__ == '_Finder']\n"
        "print(len({id(f) for f in finders}) == len(finders), 'whyidle.torch_hooks.attach' in sys.modules)"
    )
    arguments = ("-m", "whyidle.cli.main", "run", "--dir", str(tmp_path / "ledgers"), "--", str(venv), "-c", code)
    assert ask(venv, *arguments, PYTHONPATH=fake_torch) == "True True"


def test_run_knows_that_the_pth_file_reaches_isolated_pythons(venv: Path, tmp_path: Path) -> None:
    arguments = ("-m", "whyidle.cli.main", "run", "--dir", str(tmp_path), "--", str(venv), "-E", "-c", STARTED)
    assert ask(venv, *arguments) == "True"

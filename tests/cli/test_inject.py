"""`whyidle inject DIR`: it copies the hooks to a directory, and a Python without whyidle finds them there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support_sites import bare_python, clean_env

from whyidle.cli.inject import MARK, hooks, inject, python_path
from whyidle.cli.main import main

pytestmark = pytest.mark.xdist_group("inject")

TELL = (
    "import torch, sys; m = sys.modules.get('whyidle'); "
    "print(m and m.__file__, 'whyidle.torch_hooks.attach' in sys.modules)"
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without whyidle, with an empty module as torch: these tests only check how the hooks are found."""
    folder = tmp_path_factory.mktemp("bare")
    made = bare_python(folder / "venv")
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv"), "platbase": str(folder / "venv")}))
    (site / "torch.py").write_text("")
    (site / "sitecustomize.py").write_text("import sys\nsys.own = __file__\n")
    return made


@pytest.fixture(scope="module")
def injected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with space") / "hooks"
    inject(folder)
    return folder


def ask(command: list[str | Path], **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), env=clean_env(**env), capture_output=True, text=True, timeout=120, check=False
    )


# -- the copy


def test_copies_only_the_hooks_and_what_signals_need(injected: Path) -> None:
    names = {str(file.relative_to(injected)) for file in injected.rglob("*") if file.is_file()}
    assert {"run", "whyidle/__init__.py", "whyidle/torch_hooks/autoload/sitecustomize.py"} <= names
    assert {name.split("/")[1] for name in names if name != "run"} == {
        *("__init__.py", "linux", "ledger", "torch_hooks", "verdict", "advisor")
    }
    assert len(names) == len(list(hooks())) + len(("run", MARK))


def test_every_user_can_read_the_copy(tmp_path: Path) -> None:
    """An init container with a narrow umask, and a training with another uid."""
    before = os.umask(0o077)
    try:
        inject(tmp_path / "deep" / "hooks")
    finally:
        os.umask(before)
    for path in (tmp_path / "deep", *(tmp_path / "deep").rglob("*")):
        wanted = 0o755 if path.is_dir() or path.name == "run" else 0o644
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_running_again_replaces_the_copy(tmp_path: Path) -> None:
    inject(tmp_path)
    changed = tmp_path / "whyidle" / "__init__.py"
    changed.write_text("old")
    inject(tmp_path)
    assert changed.read_bytes() == next(hooks()).read_bytes()
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]


def test_prints_the_variables_to_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inject", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"WHYIDLE=1 PYTHONPATH={python_path(tmp_path)}\n"


@pytest.mark.parametrize(("options", "code"), [([], 1), (["--never-fail"], 0)])
def test_rejects_an_impossible_folder(
    options: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["inject", *options, str(tmp_path / "file" / "hooks")]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert "file" in told.err
    assert told.err.count("\n") == 1


# -- how Python finds the copy


def test_a_python_without_whyidle_finds_the_copy(python: Path, injected: Path) -> None:
    assert ask([python, "-c", "import whyidle"]).returncode == 1
    done = ask([python, "-c", TELL], WHYIDLE="1", PYTHONPATH=python_path(injected))
    assert (done.stdout.split(" "), done.stderr) == (
        [*str(injected / "whyidle" / "__init__.py").split(" "), "True\n"],
        "",
    )


def test_a_script_may_import_it_before_torch(python: Path, injected: Path) -> None:
    code = "import whyidle\nwith whyidle.phase('eval'): print(whyidle.__version__)"
    done = ask([python, "-c", code], WHYIDLE="1", PYTHONPATH=python_path(injected))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_copy_does_not_hide_an_installed_whyidle(python: Path, injected: Path, tmp_path: Path) -> None:
    (tmp_path / "whyidle").mkdir()
    (tmp_path / "whyidle" / "__init__.py").write_text("whole = True\n")
    done = ask([injected / "run", python, "-c", "import whyidle; print(whyidle.whole)"], PYTHONPATH=os.fspath(tmp_path))
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("switch", ["0", ""])
def test_does_nothing_without_the_switch(python: Path, injected: Path, switch: str) -> None:
    done = ask([python, "-c", TELL], WHYIDLE=switch, PYTHONPATH=python_path(injected))
    assert done.stdout == "None False\n"


def test_the_images_own_sitecustomize_runs(python: Path, injected: Path) -> None:
    """That of the image, or of a distribution's Python, whose standard library contains one that comes first."""
    code = "import sys, torch, sitecustomize; print(sitecustomize.__file__, getattr(sys, 'own', ''))"
    without = ask([python, "-c", code])
    done = ask([python, "-c", code], WHYIDLE="1", PYTHONPATH=python_path(injected))
    assert done.stdout == without.stdout
    file, own = done.stdout.rstrip("\n").split(" ", 1)
    assert own == (file if Path(file).is_relative_to(python.parent.parent) else "")


def test_a_sitecustomize_on_the_images_pythonpath_runs(python: Path, injected: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.own = 'mine'\n")
    code = "import sys, torch; print(sys.own, 'whyidle' in sys.modules)"
    done = ask([python, "-c", code], WHYIDLE="1", PYTHONPATH=f"{python_path(injected)}:{tmp_path}")
    assert done.stdout == "mine True\n"


def test_a_missing_copy_does_no_harm(python: Path, tmp_path: Path) -> None:
    """The copy failed, and the pod continued."""
    done = ask([python, "-c", TELL], WHYIDLE="1", PYTHONPATH=python_path(tmp_path / "not there"))
    assert (done.stdout, done.stderr) == ("None False\n", "")


@pytest.mark.parametrize(
    "kept", [["whyidle/torch_hooks/autoload"], ["whyidle/torch_hooks/autoload", "whyidle/__init__.py"]]
)
def test_an_incomplete_copy_does_no_harm(python: Path, injected: Path, tmp_path: Path, kept: list[str]) -> None:
    for source in injected.rglob("*.py"):
        name = str(source.relative_to(injected))
        if any(name.startswith(part) for part in kept):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(source.read_bytes())
    done = ask([python, "-c", "import torch; print('trains')"], WHYIDLE="1", PYTHONPATH=python_path(tmp_path))
    assert (done.stdout, done.stderr) == ("trains\n", "")


# -- the script `run`


def test_run_starts_the_command_with_the_hooks(python: Path, injected: Path) -> None:
    done = ask([injected / "run", python, "-c", TELL])
    assert done.stdout.endswith("whyidle/__init__.py True\n")
    assert ask([injected / "run", "sh", "-c", "exit 7"]).returncode == 7


def test_run_keeps_the_images_pythonpath(python: Path, injected: Path) -> None:
    code = "import os; print(os.environ['PYTHONPATH'])"
    done = ask([injected / "run", python, "-c", code], PYTHONPATH="/app:/lib")
    assert done.stdout == f"{python_path(injected)}:/app:/lib\n"


def test_run_changes_nothing_if_switched_off(python: Path, injected: Path) -> None:
    code = "import os; print(os.environ.get('PYTHONPATH'), os.environ['WHYIDLE'])"
    assert ask([injected / "run", python, "-c", code], WHYIDLE="0").stdout == "None 0\n"


def test_run_passes_its_arguments_unchanged(injected: Path) -> None:
    words = ["a b", "", "*", "$HOME", "--", "-c"]
    code = "import sys; print(sys.argv[1:])"
    assert ask([injected / "run", sys.executable, "-c", code, *words]).stdout == f"{words}\n"

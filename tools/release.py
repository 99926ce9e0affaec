"""Builds and tries the files of a release.

    python tools/release.py build [--out dist]   builds the wheel, the source distribution and the chart's package
    python tools/release.py notes                prints this version's section of CHANGELOG.md, for the release page
    python tools/release.py try [--out dist]     installs the wheel into a new environment of each Python, runs the demo

`make release-dry-run` builds and tries, and also builds the image. Nothing is published.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import helm_python
from pythons import pythons
from version import ROOT, current, differences

OUT = ROOT / "dist"
CHART = ROOT / "helm" / "whyidle"
TORCH = ROOT / ".venv" / "torch"
"""Environments with only torch in them, one for each Python. They are kept, because torch can be gigabytes large."""
DEMO = ("demo", "--seconds", "5", "--inject", "storage", "--inject-rank", "1")
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith(("WHYIDLE", "PYTHON"))}


class Failed(Exception):
    """A step failed. The message says which."""


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="build and try what a release is made of")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("build", "build wheel, source distribution and chart"), ("try", "install the wheel, run it")):
        commands.add_parser(name, help=text).add_argument("--out", type=Path, default=OUT, help="(default: dist)")
    commands.add_parser("notes", help="print the section of CHANGELOG.md")
    asked = parser.parse_args(words)
    try:
        if asked.command == "build":
            build(asked.out.resolve())
        elif asked.command == "try":
            attempt(asked.out.resolve())
        else:
            print(notes((ROOT / "CHANGELOG.md").read_text(), current(ROOT)))
    except Failed as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def build(out: Path) -> None:
    if wrong := list(differences(ROOT)):
        raise Failed("\n".join(["the versions differ:", *wrong]))
    package, chart = out / "python", out / "chart"
    for folder in (package, chart):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    # `build` makes the wheel from the source distribution, which shows that the source distribution is complete.
    do([sys.executable, "-m", "build", "--outdir", str(package), str(ROOT)])
    with tempfile.TemporaryDirectory(prefix="chart-") as folder:
        # Helm warns about symbolic links in a package, so copy the files that they point to.
        copy = shutil.copytree(CHART, Path(folder, "whyidle"))
        helm_python.package(copy, destination=chart)
    found = sorted(str(file.relative_to(out)) for folder in (package, chart) for file in folder.iterdir())
    name = f"whyidle-{current(ROOT)}"
    expected = [f"chart/{name}.tgz", f"python/{name}-py3-none-any.whl", f"python/{name}.tar.gz"]
    if found != expected:
        raise Failed(f"{out} should hold {', '.join(expected)}; it holds {', '.join(found)}")
    print("\n".join(f"built {out / name}" for name in found))


def notes(changelog: str, version: str) -> str:
    """The text of the version's section. Raises Failed if there is none, or if it is not dated yet."""
    found = re.search(rf"^## {re.escape(version)} — (.+)\n((?:(?!## ).*\n?)*)", changelog, re.MULTILINE)
    if not found:
        raise Failed(f"CHANGELOG.md has no section for {version}")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1]):
        raise Failed(f"CHANGELOG.md: write the date of {version} instead of {found[1]!r}")
    return found[2].strip()


def attempt(out: Path) -> None:
    [wheel] = out.glob("python/*.whl")
    tried = pythons()
    if not tried:
        raise Failed("found no Python on PATH, of pyenv or of uv")
    for version, python in tried.items():
        print(f"Python {version} ({python})", flush=True)
        torch = with_torch(version, python)
        with tempfile.TemporaryDirectory(prefix=f"release-{version}-") as folder:
            fresh = Path(folder)
            do([str(python), "-m", "venv", str(fresh / "venv")])
            installed = fresh / "venv" / "bin" / "python"
            do([*pip(installed), f"{wheel}[agent]", "--constraint", str(ROOT / "constraints.txt")])
            (site(installed) / "torch.pth").write_text(f"{site(torch)}\n")
            print(f"  installed; torch {try_one(fresh)}", flush=True)


def try_one(folder: Path) -> str:
    """Runs the demo of the README with the installed wheel. Returns the version of torch."""
    program = folder / "venv" / "bin" / "whyidle"
    code = "import torch, whyidle; print(torch.__version__, whyidle.__version__)"
    torch, version = do([str(program.parent / "python"), "-I", "-c", code], folder).split()
    if version != current(ROOT):
        raise Failed(f"the wheel says that it is {version}")
    said = do([str(program), *DEMO], folder)
    found = re.search(r"^verdict +(.*)$", said, re.MULTILINE)
    if not found or "INJECTED storage" not in said:
        raise Failed(f"the demo should end with a verdict and what was injected:\n{said[-3000:]}")
    print(f"  demo: {found[1]}")
    for words in (["doctor"], ["rules", "--out", "rules"], ["inject", "hooks"]):
        do([str(program), *words], folder)
    return torch


def with_torch(version: str, python: Path) -> Path:
    """The Python of a kept environment with torch. Makes the environment if there is none."""
    found = TORCH / version / "bin" / "python"
    if not (TORCH / version / "installed").exists():
        print("  torch is not here yet; it is fetched once (this can take minutes)", flush=True)
        do([str(python), "-m", "venv", "--clear", str(TORCH / version)])
        do([*pip(found), "torch", "numpy", "--constraint", str(ROOT / "constraints.txt")])
        (TORCH / version / "installed").touch()
    return found


def pip(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def site(python: Path) -> Path:
    code = "import json, sysconfig; print(json.dumps(sysconfig.get_path('purelib')))"
    return Path(json.loads(do([str(python), "-I", "-c", code])))


def do(words: Sequence[str], folder: Path | None = None) -> str:
    done = subprocess.run(
        words, cwd=folder, env=OUTSIDE, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise Failed(f"{' '.join(words)} failed with exit status {done.returncode}:\n{said}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

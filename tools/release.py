"""Builds and tries the files of a release.

    python tools/release.py build [--out dist]   builds the wheel, the source distribution and the chart's package
    python tools/release.py notes                prints this version's section of CHANGELOG.md, for the release page
    python tools/release.py try [--out dist]     installs the wheel into a new environment of each Python, runs the
                                                 demo, and compares its verdict with the injected fault

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
CONSTRAINTS = ROOT / "constraints.txt"
FAULT = FAMILY = "storage"
"""What the demo injects, and what its verdict must name."""
DEMO = ("demo", "--seconds", "5", "--inject", FAULT, "--inject-rank", "1")
DELAYS_MS = (180, 360, 720)
"""The delay that each attempt injects. If other programs take the cores, everything but the delay takes longer, and the
verdict may rightly name another family. A longer delay is then again the largest loss."""
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
    """Tries the wheel on every Python. Raises Failed if it fails on one of them, or if no Python can have torch."""
    [wheel] = out.glob("python/*.whl")
    tried = pythons()
    if not tried:
        raise Failed("found no Python on PATH, of pyenv or of uv")
    found, failures = {}, []
    for version, python in tried.items():
        print(f"Python {version} ({python})", flush=True)
        try:
            found[version] = try_on(version, python, wheel)
        except Failed as error:
            print(f"  FAILED: {error}", flush=True)
            failures.append(version)
    print("\n".join(f"Python {version}: {with_what}" for version, with_what in found.items()))
    if failures:
        raise Failed(f"the wheel failed on Python {', '.join(failures)}; the reasons are above")
    if not any(with_what.startswith("torch ") for with_what in found.values()):
        raise Failed("no Python here can have torch, so the demo did not run")


def try_on(version: str, python: Path, wheel: Path) -> str:
    """Tries the wheel on one Python. Returns what it was tried with."""
    torch = with_torch(version, python)
    with tempfile.TemporaryDirectory(prefix=f"release-{version}-") as folder:
        fresh = Path(folder)
        do([str(python), "-m", "venv", str(fresh / "venv")])
        installed = fresh / "venv" / "bin" / "python"
        do([*pip(installed), f"{wheel}[agent]", "--constraint", str(CONSTRAINTS)])
        said = do([str(installed), "-I", "-c", "import whyidle; print(whyidle.__version__)"], fresh).strip()
        if said != current(ROOT):
            raise Failed(f"the wheel says that it is {said}")
        program = fresh / "venv" / "bin" / "whyidle"
        for words in (["doctor"], ["rules", "--out", "rules"], ["inject", "hooks"]):
            do([str(program), *words], fresh)
        if torch is None:
            return "without torch, so the demo did not run"
        (site(installed) / "torch.pth").write_text(f"{site(torch)}\n")
        print(f"  demo: {demo(program, fresh)}", flush=True)
        return f"torch {do([str(installed), '-I', '-c', 'import torch; print(torch.__version__)'], fresh).strip()}"


def demo(program: Path, folder: Path) -> str:
    """Runs the demo until its verdict names the injected fault. Returns the verdict. Raises Failed if none does."""
    for delay in DELAYS_MS:
        said = do([str(program), *DEMO, "--inject-delay", str(delay)], folder)
        family, verdict = verdict_of(said)
        if family == FAMILY:
            return verdict.splitlines()[0]
        print(f"  the demo injected {delay} ms of {FAULT}, but its verdict is: {verdict}", flush=True)
    raise Failed(
        f"none of {len(DELAYS_MS)} demos had the verdict {FAMILY}, although each was slowed by it. If the verdicts "
        "above say that the CPUs were taken or queued for, other programs need them: try again when they have ended. "
        "Otherwise this wheel gives wrong verdicts"
    )


def verdict_of(said: str) -> tuple[str, str]:
    """What the demo prints -> the family that its verdict names, and the verdict with its evidence."""
    found = re.search(r"^verdict +((\w+) .*(?:\n +· .*)*)", said, re.MULTILINE)
    if not found or f"INJECTED {FAULT}" not in said:
        raise Failed(f"the demo should end with a verdict and what was injected:\n{said[-3000:]}")
    return found[2], found[1]


def with_torch(version: str, python: Path) -> Path | None:
    """The Python of a kept environment with the pinned torch, which is made if there is none. None if torch cannot be
    installed."""
    found = TORCH / version / "bin" / "python"
    stamp = TORCH / version / "installed"
    pinned = re.findall(r"^torch==.+$", CONSTRAINTS.read_text(), re.MULTILINE)
    if not stamp.exists() or stamp.read_text().splitlines() != pinned:
        print("  torch is not here yet; it is fetched once (this can take minutes)", flush=True)
        do([str(python), "-m", "venv", "--clear", str(TORCH / version)])
        try:
            # On its own at first: with constraints, pip calls a torch that the index lacks a conflict.
            do([*pip(found), "--no-deps", *pinned])
            do([*pip(found), "torch", "numpy", "--constraint", str(CONSTRAINTS)])
        except Failed as error:
            reasons = re.findall("^ERROR: .*", str(error), re.MULTILINE) or [str(error)]
            print(f"  {' '.join(pinned)} cannot be installed, so the demo does not run: {reasons[-1]}", flush=True)
            return None
        stamp.write_text("\n".join(pinned))
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

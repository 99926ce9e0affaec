"""Environments like those of training images, with torch and without whyidle, and reports on their training."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any
from unittest import mock

WHYIDLE = (sys.executable, "-m", "whyidle.cli.main")
JUDGED = {"WHYIDLE_LEAST_STEPS": "1", "WHYIDLE_LEAST_SECONDS": "0", "WHYIDLE_MOST_SPREAD": "inf"}
"""Trainings of tests are short, and their verdicts are tested. tests/verdict/test_enough.py tests the limits."""
TORCH_ABORTED = "terminate called without an active exception"
"""torch 2.13 sometimes aborts when a rank with gloo ends, on busy cores."""


def bare_python(folder: Path, *, torch: bool = False) -> Path:
    """The Python of a fresh environment. With ``torch``, it sees the packages of this one, and has a `torchrun`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    python = folder / "bin" / "python"
    if torch:
        # A plain path: .pth files in it (such as that of an editable whyidle) are not processed.
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        (site / "host.pth").write_text(sysconfig.get_path("purelib") + "\n")
        torchrun = folder / "bin" / "torchrun"
        torchrun.write_text(f"#!{python}\nfrom torch.distributed.run import main\nmain()\n")
        torchrun.chmod(0o755)
    return python


def clean_env(**extra: str) -> dict[str, str]:
    """This environment without variables of whyidle or of a launcher. Short trainings are judged."""
    foreign = ("WHYIDLE", "TORCHELASTIC", "SLURM_", "FLUX_", "PET_", "MASTER_")
    return {k: v for k, v in os.environ.items() if not k.startswith(foreign) and k != "PYTHONPATH"} | JUDGED | extra


def report(ledgers: Path) -> dict[str, Any]:
    """The report of `whyidle report` on a directory of ledgers. In this process, because training tests make many
    reports."""
    from whyidle.cli.main import main  # here: processes that fork ranks import this module

    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, clean_env(), clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(["report", "--json", f"--dir={ledgers}"])
    assert code == 0, err.getvalue()
    return json.loads(out.getvalue())

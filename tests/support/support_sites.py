"""Environments as training images have them, torch and no whyidle; and what is asked once they have trained."""

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
TORCH_ABORTED = "terminate called without an active exception"
"""Now and then torch 2.13 aborts by itself as a rank with gloo ends, on busy cores."""


def bare_python(folder: Path, *, torch: bool = False) -> Path:
    """The Python of a fresh environment; with ``torch``, it sees the packages around this one, and has a `torchrun`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    python = folder / "bin" / "python"
    if torch:
        # A plain path: the .pth files over there (an editable whyidle!) are not processed.
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        (site / "host.pth").write_text(sysconfig.get_path("purelib") + "\n")
        torchrun = folder / "bin" / "torchrun"
        torchrun.write_text(f"#!{python}\nfrom torch.distributed.run import main\nmain()\n")
        torchrun.chmod(0o755)
    return python


def clean_env(**extra: str) -> dict[str, str]:
    """This environment without anything of whyidle's or of a launcher's."""
    foreign = ("WHYIDLE", "TORCHELASTIC", "SLURM_", "PET_", "MASTER_")
    return {k: v for k, v in os.environ.items() if not k.startswith(foreign) and k != "PYTHONPATH"} | extra


def report(ledgers: Path) -> dict[str, Any]:
    """What `whyidle report` says of a folder of ledgers. In this process: tests that train ask for many reports."""
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

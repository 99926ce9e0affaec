"""Adds two files beside the package to the wheel, which pyproject.toml cannot declare. It declares everything else."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

STARTER = "_whyidle_autoload.py"
PTH = "whyidle-autoload.pth"
PTH_LINE = f'import os; os.environ.get("WHYIDLE") == "1" and __import__("{Path(STARTER).stem}").start()\n'
"""Python runs this line whenever it starts in the environment. Without ``WHYIDLE=1`` it only reads one variable.

Unlike PYTHONPATH, it also works for ``python -E`` and ``python -I``.
"""


class BuildWithStarter(build_py):
    """Copies the starter into the wheel. An editable install has no starter: there, use ``whyidle run``."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        # The repository root is the package whyidle, so this file would become the module whyidle.setup.
        return [found for found in super().find_package_modules(package, package_dir) if found[1] != "setup"]

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            top = Path(self.build_lib)
            shutil.copyfile(Path(__file__).parent / "torch_hooks" / "autoload" / STARTER, top / STARTER)
            (top / PTH).write_text(PTH_LINE)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs = super().get_outputs(include_bytecode)
        return outputs if self.editable_mode else [*outputs, *(str(Path(self.build_lib) / f) for f in (STARTER, PTH))]


setup(cmdclass={"build_py": BuildWithStarter})

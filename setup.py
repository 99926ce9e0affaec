"""Everything is declared in pyproject.toml; this adds what it cannot say: two files beside the package in a wheel."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

STARTER = "_whyidle_autoload.py"
PTH = "whyidle-autoload.pth"
PTH_LINE = f'import os; os.environ.get("WHYIDLE") == "1" and __import__("{Path(STARTER).stem}").start()\n'
"""Read at the start of every Python of the environment: without ``WHYIDLE=1`` it is one look at the environment.

Unlike PYTHONPATH it also reaches ``python -E`` and ``python -I``.
"""


class BuildWithStarter(build_py):
    """An editable install has no starter: there, ``whyidle run`` alone reaches a process."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        # The root is the package whyidle: this very file would become whyidle.setup.
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

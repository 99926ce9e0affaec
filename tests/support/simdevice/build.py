"""Builds the device's C++ with one call of the compiler, once per source and torch, in a directory of the user.

    python tests/support/simdevice/build.py

To know whether a build is possible or done, torch is not imported. That takes seconds, and every pytest process asks.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

SOURCES = Path(__file__).parent / "csrc"
NAME = "_simdevice"
NEWEST_HEADER = "c10/core/CachingDeviceAllocator.h"
"""The header that the device includes and older versions of torch lack: 2.4 does."""
FLAGS = ("-std=c++20", "-O1", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wno-sign-compare")


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")


def lacks() -> str | None:
    """What a build needs and this machine lacks, or None if a build is possible or already done."""
    if (folder() / f"{NAME}.so").exists():
        return None
    if compiler() is None:
        return "no C++ compiler (Debian: g++)"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "no header files of Python (Debian: python3-dev)"
    if not (torch_folder() / "include" / NEWEST_HEADER).exists():
        return f"torch {version('torch')} has no {NEWEST_HEADER}"
    return None


@cache
def torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def folder() -> Path:
    """The path of the library of this source, this torch and this Python, whether it exists or not."""
    words = hashlib.sha256()
    for part in (version("torch"), sys.version, str(FLAGS), str(compiler()), str(torch_folder())):
        words.update(part.encode())
    for source in sorted(each for each in SOURCES.iterdir() if each.suffix in (".cpp", ".h")):
        words.update(source.name.encode() + source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "whyidle-tests" / f"simdevice-{words.hexdigest()[:16]}"


def command(out: Path) -> list[str]:
    import torch
    from torch.utils import cpp_extension

    found = compiler()
    if found is None:
        raise RuntimeError("the simulated device needs a C++ compiler: install g++, or set CXX")
    includes = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    libraries = str(torch_folder() / "lib")
    return [
        *(
            found,
            *FLAGS,
            f"-DTORCH_EXTENSION_NAME={NAME}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        ),
        *(option for path in includes for option in ("-isystem", path)),
        *(str(SOURCES / "simdevice.cpp"), "-o", str(out), f"-L{libraries}", f"-Wl,-rpath,{libraries}"),
        *("-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"),
    ]


def library() -> Path:
    """The path of the library, which is built first if necessary (about 40 s of CPU time). Several ranks may call it at
    once."""
    home = folder()
    built = home / f"{NAME}.so"
    if not built.exists():
        home.mkdir(parents=True, exist_ok=True)
        with open(home / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not built.exists():
                fresh = home / f"{NAME}.so.new"
                done = subprocess.run(command(fresh), capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise RuntimeError(f"the simulated device does not build:\n{done.stderr[-8000:]}")
                fresh.rename(built)
    return built


def load() -> ModuleType:
    """Imports the library, whose import registers the device's operators."""
    spec = importlib.util.spec_from_file_location(NAME, library())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    library()

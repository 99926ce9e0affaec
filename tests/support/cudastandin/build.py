"""Builds the stand-ins for CUDA's libraries and puts them beside torch's own libraries, where torch looks for them.

    python build.py --site SITE-PACKAGES --headers FOLDER

SITE-PACKAGES has torch's CUDA wheel and no package of NVIDIA. FOLDER has ``cuda_runtime_api.h`` somewhere below it.
Needs g++, nm and readelf. Each function that torch's libraries import and that csrc/ does not define becomes a stub. A
stub returns an error of its library, except where a table below says otherwise.

Names and versions of the libraries are those that the wheel asks for. So this works for each wheel whose CUDA has the
functions that csrc/ defines.
"""

from __future__ import annotations

import argparse
import collections
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

CSRC = Path(__file__).resolve().parent / "csrc"
RUNTIME, DRIVER, BLAS, NVML = "libcudart", "libcuda", "libcublas", "libnvidia-ml"
SOURCES = {
    RUNTIME: (
        *("state", "engine", "bell", "submit"),
        *("kernels", "memory", "device", "streams", "graphs", "driver"),
    ),
    "libnccl": ("nccl", "nccl_work", "nccl_sums"),
    BLAS: ("blas",),
    "libcublasLt": ("blas_lt",),
    NVML: ("nvml",),
}
"""Library -> the files of csrc/ that it is made of."""
VALUES = "values"
"""The file of csrc/ that computes operators on the host. It is built against torch."""
FLAGS = ("-std=c++20", "-O2", "-g1", "-fPIC", "-Wall", "-pthread")
OWNERS = {
    "nccl": "libnccl",
    "cuFile": "libcufile",
    "cupti": "libcupti",
    "nvshmem": "libnvshmem_host",
    "cusparseLt": "libcusparseLt",
    "cudnn": "libcudnn",
    "cu": DRIVER,
}
"""Start of a name without a version -> the library that has it. The first one that fits counts."""
NAMED_VERSIONS = {"NVSHMEM": "libnvshmem_host"}
"""Versions of symbols that are not the name of their library."""
IMPORTED = re.compile(r"(cu[A-Z]|cupti|nccl|nvshmem|cusparseLt|cudnn|nvrtc|curand|cufft|cusolver)")
LIBRARY = re.compile(r"lib(cu|nv|nccl)")
SONAMES = {DRIVER: "libcuda.so.1", NVML: "libnvidia-ml.so.1", "libcupti": "libcupti.so.13"}
"""Names of libraries that torch loads at run time."""
ERRORS = {
    "libcusparse": 7,
    "libcusolver": 7,
    "libcurand": 203,
    "libcufft": 16,
    "libcudnn": 3000,
    DRIVER: 801,
    "libnccl": 4,
    "libnvrtc": 5,
    "libcupti": 15,
}
"""What a stub of a library returns: "not supported", or the closest that it has. 1 elsewhere."""
HANDLES = ("cusolverDnCreate", "cusparseCreate", "cudnnCreate")
"""Functions that succeed, and give out a handle."""
DONE = (
    *("cusparseSetStream", "cusolverDnSetStream", "cudnnSetStream"),
    *("cusparseDestroy", "cusolverDnDestroy", "cudnnDestroy"),
)
"""Functions that succeed, and do nothing."""
NUMBERS = {"cudnnGetVersion": 92000, "cudnnGetCudartVersion": 13000}
"""Functions that return a number."""

_STUBS = {
    "void": "long {symbol}() {{ return 0; }}",
    "versions": "int {symbol}(int* a, int* b) {{ *a = 13; *b = 0; return 0; }}",
    "text": 'const char* {symbol}() {{ return "an error of the stand-in"; }}',
    "number": "long {symbol}() {{ return {number}; }}",
    "handle": "int {symbol}(void** made) {{ *made = calloc(1, 256); return 0; }}",
    "blas": 'int {symbol}(void* handle) {{ return standin_blas(handle, "{symbol}"); }}',
    "driver": "long {symbol}(long a, long b, long c, long d, long e, long f) {{ return "
    '((long (*)(long, long, long, long, long, long))standin_driver_function("{symbol}"))(a, b, c, d, e, f); }}',
    "error": 'long {symbol}() {{ if (getenv("STANDIN_VERBOSE")) fprintf(stderr, "standin: stub {symbol}\\n"); '
    "return {number}; }}",
}
_DECLARED = (
    "#include <stddef.h>",
    "#include <stdio.h>",
    "#include <stdlib.h>",
    "int standin_blas(void*, const char*);",
    "void* standin_driver_function(const char*);",
)


class Library(NamedTuple):
    stem: str
    soname: str
    symbols: Mapping[str, str]
    """What torch imports from it -> the version, or an empty string."""


def output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def stem_of(soname: str) -> str:
    return soname.partition(".so")[0]


def wanted(folder: Path) -> list[Library]:
    """What torch's libraries need of CUDA's, the runtime first."""
    sonames = dict(SONAMES)
    symbols: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for path in sorted(folder.glob("*.so")):
        if "standin" in path.name:
            continue
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", str(path)))
        sonames |= {stem_of(name): name for name in needed if LIBRARY.match(name)}
        for line in output("nm", "-D", "--undefined-only", str(path)).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            version = version.lstrip("@")
            owner = owner_of(symbol, version)
            if owner:
                symbols[owner][symbol] = version
                if LIBRARY.match(version):
                    sonames[owner] = version
    stems = sorted({*sonames, *symbols}, key=lambda stem: (stem != RUNTIME, stem))
    return [Library(stem, sonames[stem], symbols[stem]) for stem in stems]


def owner_of(symbol: str, version: str) -> str | None:
    """The library of CUDA that a symbol is imported from."""
    if version in NAMED_VERSIONS:
        return NAMED_VERSIONS[version]
    if LIBRARY.match(version):
        return stem_of(version)
    if version or not IMPORTED.match(symbol):
        return None
    return next(owner for start, owner in OWNERS.items() if symbol.startswith(start))


def stub(library: Library, symbol: str) -> str:
    """A function in C."""
    number = NUMBERS.get(symbol, ERRORS.get(library.stem, 1))
    return _STUBS[_stub_kind(library.stem, symbol)].format(symbol=symbol, number=number)


def _stub_kind(stem: str, symbol: str) -> str:
    kinds = {
        "void": symbol.startswith("_Z") or symbol in DONE,
        "versions": symbol == "nvrtcVersion",
        "text": symbol.endswith(("GetErrorString", "GetErrorName")) and stem != DRIVER,
        "number": symbol in NUMBERS,
        "handle": symbol in HANDLES,
        "blas": stem == BLAS,
        "driver": stem == DRIVER,
    }
    return next((kind for kind, fits in kinds.items() if fits), "error")


def compiled(source: str, into: Path, *flags: str) -> Path:
    target = into / f"{source}.o"
    subprocess.run(["g++", *FLAGS, *flags, "-c", str(CSRC / f"{source}.cpp"), "-o", str(target)], check=True)
    return target


def defined_in(objects: Sequence[Path]) -> set[str]:
    listed = output("nm", "--defined-only", *map(str, objects)) if objects else ""
    return {line.split()[-1] for line in listed.splitlines() if len(line.split()) == 3}


def link(library: Library, objects: Sequence[Path], into: Path, folder: Path, runtime: Path | None) -> Path:
    """A library with our functions, and with stubs for all others."""
    missing = sorted(set(library.symbols) - defined_in(objects))
    stubs, versions = into / f"{library.stem}.stubs.c", into / f"{library.stem}.map"
    stubs.write_text("\n".join([*_DECLARED, *(stub(library, symbol) for symbol in missing)]) + "\n")
    version = next(filter(None, library.symbols.values()), "")
    versions.write_text(f"{version} {{ global: *; }};\n")
    script = [f"-Wl,--version-script,{versions}"] if version else []
    depends = [str(runtime), "-Wl,-rpath,$ORIGIN"] if runtime else []
    subprocess.run(
        [
            *("g++", "-shared", "-fPIC", "-O1", "-w", "-pthread", "-Wl,-z,nodelete", f"-Wl,-soname,{library.soname}"),
            *("-o", str(folder / library.soname), *map(str, objects), "-x", "c", str(stubs), "-x", "none"),
            *(*script, *depends),
        ],
        check=True,
    )
    return folder / library.soname


def build(site: Path, headers: Path) -> None:
    folder = site / "torch" / "lib"
    include = next(headers.rglob("cuda_runtime_api.h"), None)
    if include is None:
        raise SystemExit(f"{headers} has no cuda_runtime_api.h: it must contain the package nvidia-cuda-runtime")
    flags = (f"-I{include.parent}",)
    of_torch = [f"-isystem{path}" for path in (site / "torch/include", site / "torch/include/torch/csrc/api/include")]
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(2) as pool:
        into = Path(temporary)
        values = pool.submit(compiled, VALUES, into, *of_torch)
        jobs = {name: pool.submit(compiled, name, into, *flags) for names in SOURCES.values() for name in names}
        runtime = None
        for library in wanted(folder):
            objects = [jobs[name].result() for name in SOURCES.get(library.stem, ())]
            made = link(library, objects, into, folder, runtime)
            runtime = runtime or made
        against = map(str, (runtime, folder / "libtorch_cpu.so", folder / "libc10.so"))
        shared = ("-o", str(folder / "libstandin_values.so"), *against, "-Wl,-rpath,$ORIGIN")
        subprocess.run(["g++", "-shared", "-pthread", str(values.result()), *shared], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, required=True, help="site-packages that has torch")
    parser.add_argument("--headers", type=Path, required=True, help="folder that has cuda_runtime_api.h below it")
    options = parser.parse_args()
    build(options.site, options.headers)
    return 0


if __name__ == "__main__":
    sys.exit(main())

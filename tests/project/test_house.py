"""The layers of the package: data flows upwards, and there are no import cycles."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = ("linux", "ledger", "torch_hooks", "verdict", "agent", "advisor", "alerts", "dashboards", "cli")
"""From the lowest layer up."""

APART = {floor: {"torch_hooks"} for floor in ("verdict", "agent", "advisor", "alerts", "dashboards")}
"""Layers that do not import some layer below them."""

FOREIGN = {
    "linux": set[str](),
    "ledger": set[str](),
    "torch_hooks": {"torch"},
    "verdict": set[str](),
    "advisor": {"torch", "safetensors"},
}
"""What a layer may import besides the standard library."""


def modules(floor: str) -> Iterator[Path]:
    return (path for path in sorted((ROOT / floor).rglob("*.py")) if "__pycache__" not in path.parts)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of each import. A relative import is given from the root of the package, with a dot in front."""
    package = list(path.relative_to(ROOT).parts[:-1])
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((f"{module}." if node.level else module, alias.name) for alias in node.names)


@pytest.mark.parametrize("floor", FLOORS)
def test_a_floor_imports_only_from_floors_below_it(floor: str) -> None:
    allowed = {*FLOORS[: FLOORS.index(floor) + 1]} - APART.get(floor, set())
    for path in modules(floor):
        for module, _ in imports(path):
            if module.endswith(".") and module != ".":
                assert module.split(".")[0] in allowed, f"{path} imports {module}"


@pytest.mark.parametrize("floor", FOREIGN)
def test_a_floor_of_the_training_imports_no_package_but_its_own(floor: str) -> None:
    import sys

    for path in modules(floor):
        for module, _ in imports(path):
            top = module.split(".")[0]
            if not module.endswith("."):
                known = top in sys.stdlib_module_names or top in FOREIGN[floor] or top in {"whyidle", "__future__"}
                assert known or path.parts[-2] == "autoload" or top == "multiprocessing", f"{path} imports {module}"


def test_no_file_imports_in_a_circle() -> None:
    files = {name_of(path): path for floor in FLOORS for path in modules(floor)}
    graph = {name: set[str]() for name in files}
    for name, path in files.items():
        for module, imported in imports(path):
            if not module.endswith("."):
                continue
            base = module[:-1]
            target = f"{base}.{imported}" if f"{base}.{imported}" in files else base
            if target in files and target != name and not _only_for_types(path, target):
                graph[name].add(target)
    circles = _circles(graph)
    assert not circles, f"files that import each other: {circles}"


def _only_for_types(path: Path, target: str) -> bool:
    """Whether every import of ``target`` is under ``if TYPE_CHECKING``."""
    guarded = {
        id(child)
        for node in nodes(path)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    leaf = target.rsplit(".", 1)[-1]
    found = [
        node
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom)
        and ((node.module or "").rsplit(".", 1)[-1] == leaf or any(alias.name == leaf for alias in node.names))
    ]
    return bool(found) and all(id(node) in guarded for node in found)


def _circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected parts with more than one file (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            part = stack[at:]
            del stack[at:]
            if len(part) > 1:
                found.append(sorted(part))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_ci_runs_every_part_of_the_suite() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "make lint test test-long\n" in script
    assert "make test-prometheus PROMETHEUS=sid " in script
    assert "make test-cuda CUDA_LONG=60\n" in script

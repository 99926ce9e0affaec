"""Collects our prose: pages, texts of alerts and panels, and strings in the code that people read."""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

CODE = ("cli", "agent", "torch_hooks", "verdict", "advisor", "alerts/settings.py", "alerts/config.py")
"""Folders and modules in which a string of four words or more is a message or a text of `--help`."""

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "RELEASING.md",
    "SECURITY.md",
    "examples/README.md",
    "helm/whyidle/README.md",
    "helm/whyidle/templates/NOTES.txt",
    "tools/preview/README.md",
)
"""Pages outside docs/."""
COMMENTED = ("helm/whyidle/values.yaml", "alerts/generated/recording.yaml")
"""Files whose comments people read."""
NOT_OURS = (".venv", "build", "dist", "node_modules")
"""Folders with other projects, or with copies of our files."""

_SKIPPED = re.compile(r"^\s*(\||-|:|\s)*$|^\s*<|^\s*!\[")


class Text(NamedTuple):
    """A passage: one paragraph, list item, table cell, or string."""

    place: str
    text: str


def texts(root: Path) -> Iterator[Text]:
    """All prose under ``root``, the repository."""
    for page in (*(root / name for name in PAGES), *sorted((root / "docs").glob("*.md"))):
        yield from markdown(page.relative_to(root).as_posix(), page.read_text())
    for name in COMMENTED:
        yield from comments(name, (root / name).read_text())
    yield from _schema("values.schema.json", json.loads((root / "helm/whyidle/values.schema.json").read_text()))
    changes = (root / "CHANGELOG.md").read_text().split("\n## ")
    yield from markdown("CHANGELOG.md", "\n## ".join(changes[:2]))
    yield from _alerts(root)
    yield from _panels(root)
    for part in CODE:
        for path in sorted((root / part).rglob("*.py")) or [root / part]:
            yield from messages(path.relative_to(root).as_posix(), path.read_text())
    for path in modules(root):
        yield from code(path.relative_to(root).as_posix(), path.read_text())


def modules(folder: Path) -> Iterator[Path]:
    """The Python files under a folder, without those of folders that are not searched."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and path.name not in NOT_OURS:
            yield from modules(path)
        elif path.suffix == ".py":
            yield path


def markdown(name: str, page: str) -> Iterator[Text]:
    """The paragraphs, items and cells of a page, without code blocks. A piece of `code` counts as one word."""
    block: list[str] = []
    start, fenced = 0, False
    for number, line in enumerate([*page.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        if fence or fenced or not line.strip() or re.match(r"\s*([-*|#]|\d+\.) ?", line):
            if block:
                yield Text(f"{name}:{start}", plain(" ".join(block)))
            block = []
        fenced ^= fence
        if fence or fenced or _SKIPPED.match(line) or (line.startswith("    ") and not block):
            continue
        if line.lstrip().startswith("|"):
            cells = (plain(cell) for cell in re.split(r"(?<!\\)\|", line))
            yield from (Text(f"{name}:{number}", cell) for cell in cells if cell)
            continue
        if not block:
            start = number
        block.append(re.sub(r"^\s*([-*#]+|\d+\.) ", "", line.strip()))


def comments(name: str, text: str) -> Iterator[Text]:
    """The comments of a YAML file. Consecutive lines are one passage."""
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        comment = re.match(r"\s*# ?(?:-- )?(.*)", line)
        if block and (not comment or line.lstrip().startswith("# -- ")):
            yield Text(f"{name}:{number - len(block)}", plain(" ".join(block)))
            block = []
        if comment:
            block.append(comment[1])


def plain(text: str) -> str:
    """Text without markup. `code` and templates become the word X, and a link its words. A branch ends a sentence."""
    text = re.sub(r"\{\{ *(if|else).*?\}\}", ". X ", text)
    text = re.sub(r"\{\{.*?\}\}|`[^`]*`|\$\{\w+(:\w+)?\}", "X", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\s+", " ", text.replace("*", "")).strip()


def messages(name: str, source: str) -> Iterator[Text]:
    """The strings of a module with four words or more, without docstrings. A placeholder counts as one word."""
    nodes = list(ast.walk(ast.parse(source)))
    left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
    for node in nodes:
        if id(node) in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if len(re.findall(r"[a-z']{2,}", text)) >= 4 and not text.startswith("#!") and "{ " not in text:  # code, CSS
            yield Text(f"{name}:{node.lineno}", plain(text))


def code(name: str, source: str) -> Iterator[Text]:
    """What readers of a module's code read: docstrings, comments, and the names of tests."""
    for node in _statements(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield Text(f"test {name}:{node.lineno}", node.name.removeprefix("test_").replace("_", " "))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for passage in re.split(r"\n\s*\n|\n\s*(?=[-*] |\d\. )", _prose(node.value.value)):
                yield Text(f"docstring {name}:{node.lineno}", plain(passage))
    block: list[str] = []
    start, last = 0, -1  # the lines at which the block starts and ends
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#!|# (noqa|type:|pyright:|fmt:)", token.string):
            continue
        alone = token.line.lstrip().startswith("#")
        if block and not (alone and token.start[0] == last + 1):
            yield Text(f"comment {name}:{start}", plain(" ".join(block)))
            block = []
        start = start if block else token.start[0]
        last = token.start[0] if alone else -1
        block.append(re.sub(r"\s*# noqa.*", "", token.string).lstrip("# "))
    if block:
        yield Text(f"comment {name}:{start}", plain(" ".join(block)))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node. Docstrings and functions are among them, and expressions are many more."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        children = getattr(node, field, ())
        for child in children if isinstance(children, list) else ():  # the body of a lambda is an expression
            yield child
            yield from _statements(child)


def _prose(docstring: str) -> str:
    """A docstring without examples and tables, and with ``code`` as in Markdown."""
    words = re.sub(r"^=+ =.*^=+ =[= ]+$", "", inspect.cleandoc(docstring), flags=re.MULTILINE | re.DOTALL)
    words = re.sub(r"^(>>>|    ).*$", "", words, flags=re.MULTILINE)
    return re.sub(r"``([^`]*)``", r"`\1`", words)


def _schema(place: str, node: Any) -> Iterator[Text]:
    if isinstance(node, dict):
        if isinstance(node.get("description"), str):
            yield Text(place, plain(node["description"]))
        for key, value in node.items():
            yield from _schema(place if key == "properties" else f"{place} {key}", value)


def _alerts(root: Path) -> Iterator[Text]:
    for group in yaml.safe_load((root / "alerts/generated/alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            notes = rule.get("annotations", {})
            yield from (
                Text(f"{rule['alert']} {note}", plain(notes[note]))
                for note in ("summary", "description")
                if note in notes
            )


def _panels(root: Path) -> Iterator[Text]:
    for path in sorted((root / "dashboards/generated").glob("*.json")):
        board = json.loads(path.read_text())
        yield from _titled(f"dashboard {board['title']}", board)


def _titled(place: str, node: Any) -> Iterator[Text]:
    if isinstance(node, dict):
        name = f"{place} › {node['title']}" if isinstance(node.get("title"), str) and "panels" not in node else place
        for key in ("title", "description", "content"):
            if isinstance(node.get(key), str) and node[key]:
                yield Text(name, plain(node[key]))
        for value in node.values():
            yield from _titled(name, value)
    elif isinstance(node, list):
        for value in node:
            yield from _titled(place, value)

"""Draws random sentences of each kind of our prose, to be read and judged by a person: docs/prose.md has the results.

python tools/prose/sample.py [--seed N] [--number N] [KIND ...]     without kinds: all of them
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import random
import re
import tokenize
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prose import ROOT, sentences
from texts import Text, markdown, plain, texts

KINDS: dict[str, str] = {
    "pages": r"([\w/]*(README|CONTRIBUTING|RELEASING|SECURITY)|docs/(?!runbook|metrics|prose)[\w-]+)\.md:",
    "runbook": r"docs/runbook\.md:",
    "command": r"(cli|verdict|advisor|torch_hooks|agent/(?!metrics/)|alerts/)[\w/]*\.py:",
    "metrics": r"metric ",
    "alerts": r"Whyidle\w+ ",
    "panels": r"dashboard ",
    "docstrings": r"docstring ",
    "comments": r"comment ",
    "tests": r"test ",
}
"""Kind -> what the places of its passages look like."""

_WORD = re.compile(r"(?<!\S)[(“\"]?[A-Za-z][A-Za-z’'-]+[)”\"]?[.,:;?!]*(?!\S)")
_LEAST_WORDS = 3
_NOT_OURS = (".venv", "build", "dist", "node_modules")
_CODE = re.compile(r"group_left|\w\.\w+\.\w|^\S+:$")
"""Strings of the command that are PromQL or names of modules."""


class Drawn(NamedTuple):
    place: str
    sentence: str


def passages() -> Iterator[Text]:
    """All prose that somebody may be shown, and that of our code."""
    yield from texts(ROOT)
    for line in (ROOT / "docs/metrics.md").read_text().splitlines():
        if row := re.match(r"\| `(\w+)`", line):
            *_, meaning, _source = (text for _, text in markdown("", line))
            yield Text(f"metric {row[1]}", meaning)
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT)
        if not set(name.parts) & set(_NOT_OURS):
            yield from code(name.as_posix(), path.read_text())


def code(name: str, source: str) -> Iterator[Text]:
    """What readers of a module's code read: docstrings, comments, and the names of tests."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield Text(f"test {name}:{node.lineno}", node.name.removeprefix("test_").replace("_", " "))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for passage in re.split(r"\n\s*\n|\n\s*(?=- )", _prose(node.value.value)):
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


def _prose(docstring: str) -> str:
    """A docstring without examples and tables, and with ``code`` as in Markdown."""
    words = re.sub(r"^(>>>|    |=+ ).*$", "", inspect.cleandoc(docstring), flags=re.MULTILINE)
    return re.sub(r"``([^`]*)``", r"`\1`", words)


def draw(found: Iterable[Text], kind: str, number: int, seed: int) -> list[Drawn]:
    """``number`` different sentences of a kind, or all if there are fewer, in random order."""
    pattern = re.compile(KINDS[kind])
    first: dict[str, str] = {}
    for place, text in found:
        if pattern.match(place):
            for sentence in sentences(text):
                if len(_WORD.findall(sentence)) >= _LEAST_WORDS and not _CODE.search(sentence):
                    first.setdefault(sentence.strip(), place)
    every = [Drawn(place, sentence) for sentence, place in sorted(first.items())]
    return random.Random(f"{seed} {kind}").sample(every, min(number, len(every)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="another seed draws other sentences (default: %(default)s)")
    parser.add_argument("--number", type=int, default=100, help="sentences of each kind (default: %(default)s)")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    args = parser.parse_args()
    if unknown := set(args.kinds) - KINDS.keys():
        parser.error(f"unknown kinds: {', '.join(sorted(unknown))}: the kinds are {', '.join(KINDS)}")
    found = list(passages())
    for kind in args.kinds or KINDS:
        print(f"## {kind}\n")
        for number, (place, sentence) in enumerate(draw(found, kind, args.number, args.seed), 1):
            print(f"{number}. {place}: {sentence}")
        print()


if __name__ == "__main__":
    main()

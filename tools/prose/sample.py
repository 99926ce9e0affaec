"""Draws random sentences of each kind of our prose, to be read and judged by a person: docs/prose.md has the results.

python tools/prose/sample.py [--seed N] [--number N] [KIND ...]     without kinds: all of them
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prose import ROOT, sentences
from texts import Text, markdown, texts

KINDS: dict[str, str] = {
    "pages": r"([\w/]*(README|CHANGELOG|CONTRIBUTING|RELEASING|SECURITY)|docs/(?!runbook|metrics|prose)[\w-]+)\.md:",
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
_CODE = re.compile(r"group_left|\w\.\w+\.\w|^\S+:$")
"""Strings of the command that are PromQL or names of modules."""


class Drawn(NamedTuple):
    place: str
    sentence: str


def passages() -> Iterator[Text]:
    """All prose that somebody may be shown, and the prose of our code."""
    yield from texts(ROOT)
    for line in (ROOT / "docs/metrics.md").read_text().splitlines():
        if row := re.match(r"\| `(\w+)`", line):
            *_, meaning, _source = (text for _, text in markdown("", line))
            yield Text(f"metric {row[1]}", meaning)


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

"""Finds long sentences, and words and constructions that are hard to read. words.yaml lists them.

python tools/prose/prose.py [PATH ...]     without paths: everything that `make lint` checks
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import yaml
from texts import Text, markdown, messages, texts

ROOT = Path(__file__).parents[2]
WORDS = Path(__file__).with_name("words.yaml")

_SENTENCE_ENDS = re.compile(r"(?<=[.!?:;])\s+(?=[\"“(]?[A-Z]|whyidle)|(?<=[.!?])\s*$")


class Rules(NamedTuple):
    """The words and constructions to find, and the limit of a sentence's length."""

    words: list[tuple[re.Pattern[str], str]]  # (what not to write, what to write instead)
    longest: int  # words in a sentence


def rules(path: Path = WORDS) -> Rules:
    """Reads the rules."""
    read = yaml.safe_load(path.read_text())
    words = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in read["words"].items()]
    return Rules(words, read["longest"])


def sentences(text: str) -> list[str]:
    """The sentences of a passage. A colon or semicolon before a capital letter ends one, too."""
    return [sentence for sentence in _SENTENCE_ENDS.split(text) if sentence.strip()]


def stumbles(text: str, by: Rules) -> Iterator[str]:
    """The findings in a passage, one line each."""
    for sentence in sentences(text):
        for pattern, instead in by.words:
            if found := pattern.search(sentence):
                yield f"“{found.group().strip()}”: write {instead}: {sentence}"
        length = len(re.findall(r"[\w'’.-]*\w", sentence))
        if length > by.longest:
            yield f"{length} words in one sentence (at most {by.longest}): {sentence}"


def check(passages: Iterable[Text], by: Rules) -> list[str]:
    """All findings, each with its place."""
    return [f"{place}: {stumble}" for place, text in passages for stumble in stumbles(text, by)]


def main(paths: list[str]) -> int:
    """Prints the findings. Returns 1 if there are any."""
    given = (messages if path.endswith(".py") else markdown for path in paths)
    passages = [text for read, path in zip(given, paths, strict=True) for text in read(path, Path(path).read_text())]
    found = check(passages if paths else texts(ROOT), rules())
    print("\n".join(found) or "prose: nothing found")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

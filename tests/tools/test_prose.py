"""The check of our prose (tools/prose): it finds what makes readers stumble, and passes plain sentences."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "prose"))

from prose import rules, sentences, stumbles  # noqa: E402 (the folder is not a package)
from sample import KINDS, draw, passages  # noqa: E402
from texts import Text, code, comments, markdown, messages, plain  # noqa: E402

RULES = rules()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The file is read anew.", "anew"),
        ("The value is no duration.", "is no"),
        ("It has a stream of its own.", "of its own"),
        ("Critical where ranks run, and a warning else.", "warning else"),
        ("Of a password, bcrypt looks at 72 bytes.", "Of a password,"),
        ("So many are read at most.", "So many"),
        ("A machine is slow, and so is the disk.", "so is"),
        (" ".join(["word"] * 46) + ".", "46 words"),
    ],
)
def test_finds_sentences_that_are_hard_to_read(text: str, word: str) -> None:
    assert [found for found in stumbles(text, RULES) if word in found]


@pytest.mark.parametrize(
    "text",
    [
        "Nothing else is running, and there is no GPU.",
        "The rank is no longer there.",
        "Of those, 3 are idle.",
        "It takes so long that nobody waits.",
        "It is refused: the rest goes on.",
    ],
)
def test_accepts_plain_sentences(text: str) -> None:
    assert list(stumbles(text, RULES)) == []


def test_splits_a_page_into_texts() -> None:
    page = """# A title

A paragraph
on two lines with `code`.

- an item with a [link](page.md)
- another

| cell | cell two |
| --- | --- |
| **bold** | |

```sh
left out
```

    left out
"""
    assert list(markdown("p", page)) == [
        Text("p:1", "A title"),
        Text("p:3", "A paragraph on two lines with X."),
        Text("p:6", "an item with a link"),
        Text("p:7", "another"),
        Text("p:9", "cell"),
        Text("p:9", "cell two"),
        Text("p:11", "bold"),
    ]


def test_reads_comments_of_yaml() -> None:
    text = "# one\n# comment\na: 1  # not this\n\n# -- first\n# -- second\nb: 2"
    assert list(comments("v", text)) == [Text("v:1", "one comment"), Text("v:5", "first"), Text("v:6", "second")]


def test_reads_messages_and_not_docstrings() -> None:
    source = '''
"""A docstring of more than four words."""
LIMIT = 1
"""What is said of an attribute is a docstring too."""
print(f"{LIMIT} of the four words", "two words")
'''
    assert list(messages("m.py", source)) == [Text("m.py:5", "X of the four words")]


def test_treats_a_template_as_a_word() -> None:
    assert plain("{{ $labels.run }} lost **half** of `x y`") == "X lost half of X"


def test_finds_the_ends_of_sentences() -> None:
    assert len(sentences("One, e.g. this. Two: Three; four.")) == 3


def test_a_sample_has_different_sentences_of_one_kind_and_depends_on_the_seed() -> None:
    texts = [Text(f"docs/a.md:{number}", f"This is sentence {number} in words.") for number in (*range(50), *range(9))]
    texts += [Text("docs/runbook.md:1", "This is in the runbook."), Text("docs/a.md:2", "2 of 3")]
    drawn = draw(texts, "pages", 10, 1)
    assert len({one.sentence for one in drawn}) == 10
    assert drawn == draw(texts[::-1], "pages", 10, 1)
    assert drawn != draw(texts, "pages", 10, 2)
    assert len(draw(texts, "pages", 100, 1)) == 50


@pytest.mark.long
def test_there_is_enough_of_each_kind() -> None:
    found = list(passages())
    assert [kind for kind in KINDS if len(draw(found, kind, 200, 1)) < 200] == []


def test_code_has_docstrings_comments_and_names_of_tests() -> None:
    source = '''"""A module.

    >>> left.out()

With `code`, and ``code``."""

def test_rejects_a_word():
    # The first line,
    # and the second.
    assert "a # b"  # why
    x = 1  # noqa: F841
'''
    assert sorted(code("m.py", source)) == [
        Text("comment m.py:10", "why"),
        Text("comment m.py:8", "The first line, and the second."),
        Text("docstring m.py:1", "A module."),
        Text("docstring m.py:1", "With X, and X."),
        Text("test m.py:7", "rejects a word"),
    ]

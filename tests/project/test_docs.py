"""The pages agree with the repository: links lead somewhere, and commands have the options that pages give them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from whyidle.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "RELEASING", "SECURITY", "CHANGELOG")),
    *(ROOT / folder / "README.md" for folder in ("examples", "helm/whyidle", "tools/preview")),
    *DOCS,
]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path) if path else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), target


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text()
    assert [page.name for page in DOCS if page.name != "index.md" and f"({page.name}" not in index] == []


def test_pages_name_tests_that_exist() -> None:
    """Written as `test_file.py::test_name`, whatever folder the file is in."""
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    named = {one for page in PAGES for one in re.findall(r"`(test_\w+\.py)::(test_\w+)`", page.read_text())}
    assert len({file for file, _ in named}) > 10
    missing = [(file, name) for file, name in named if f"def {name}(" not in files.get(file, "")]
    assert missing == []


def test_pages_name_targets_of_make_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named: dict[str, list[str]] = {}
    for page in PAGES:
        for words in re.findall(
            r"(?:^ {4}|`)make ([a-z-]+(?: [a-z-]+)*)(?=`| +[A-Z_]+=| +#|$)", page.read_text(), re.MULTILINE
        ):
            for target in words.split():
                named.setdefault(target, []).append(page.name)
    assert {target: pages for target, pages in named.items() if target not in targets} == {}
    assert {"demo", "test", "lint"} <= named.keys()


def test_threats_have_a_test_or_say_that_they_have_none() -> None:
    page = (ROOT / "docs/security.md").read_text().partition("\n| who |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in page.splitlines()[2:]]
    assert rows
    for *_, stops, test in rows:
        assert test == "none" or "::" in test
        assert test != "none" or "**nothing**" in stops, "a protection without a test"


def test_readme_fits_on_a_few_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 100


def commands() -> list[tuple[str, list[str]]]:
    """The whyidle command lines of all pages: page, and the words after `whyidle`."""
    found: list[tuple[str, list[str]]] = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        lines = re.findall(r"^(?: {4,}|\$ )(?:sudo \S+ \S+ )?(?:/opt/whyidle/bin/)?whyidle (.+)$", text, re.MULTILINE)
        lines += re.findall(r"`whyidle ([a-z]+ [^`]+)`", text)
        found += [(page.name, line.partition(" #")[0].split()) for line in lines]
    return found


def test_commands_have_the_options_that_pages_give_them(capsys: pytest.CaptureFixture[str]) -> None:
    helps: dict[str, str] = {}
    benches = [f"bench {bench}" for bench in ("storage", "network")]
    for name in (*(command.name for command in COMMANDS), *benches):
        with pytest.raises(SystemExit):
            main([*name.split(), "--help"])
        helps[name] = capsys.readouterr().out
    for page, words in commands():
        mine = words[: words.index("--")] if "--" in words else words
        name = " ".join(mine[: 2 if mine[0] == "bench" else 1])
        assert name in helps, (page, words)
        for word in mine[1:]:
            if option := re.match(r"\[?(--[\w.-]*\w)(?!.*…)", word):
                assert option[1] in helps[name], (page, words)

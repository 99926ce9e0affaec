"""Strings of a ledger: whatever a name is, it can be written, and is compared as readers get it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from whyidle.ledger.layout import STRING_AT
from whyidle.ledger.text import as_stored, read, stored, with_suffix


@given(st.text(), st.sampled_from(["run", "owner", "node"]))
@example("\udce9", "run")  # Latin-1 in a locale without UTF-8
@example("\ud800", "run")
@example("a`b", "run")
def test_any_text_can_be_stored_and_stays_the_same(text: str, field: str) -> None:
    raw = stored(field, text)
    assert len(raw) <= STRING_AT[field][1]
    assert read(raw).isprintable()
    assert "`" not in read(raw)
    assert as_stored(field, text) == read(raw)


@given(st.text(st.characters(categories=["L", "N", "P"]), max_size=16))
def test_a_name_does_not_change(text: str) -> None:
    assert as_stored("run", text) == text


@pytest.mark.parametrize("run", ["77", "x" * 200, "é" * 100, "a" + "é" * 100])
def test_a_suffix_is_not_cut_off(run: str) -> None:
    name = with_suffix(run, "-4711")
    assert name.endswith("-4711")
    assert run.startswith(name.removesuffix("-4711"))
    assert as_stored("run", name) == name

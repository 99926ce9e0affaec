"""The colours of the dashboards: all people can tell them apart, also on Grafana's panels of both themes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from support_colours import EYES, ciede2000, lab

from whyidle.dashboards import output
from whyidle.dashboards.colours import AMBER, CAUSE_SHADES, FAMILY_COLOUR, GREEN, RED, UNHOOKED
from whyidle.dashboards.contrast import (
    DARK_PANEL,
    LIGHT_PANEL,
    LINES_NEED,
    WORDS,
    WORDS_NEED,
    contrast,
    ground,
    luminance,
)

LEAST_APART = 10.0
"""By CIEDE2000. A difference of about 1 is visible side by side. Lines in a picture and names below it are not side by
side."""
SHADES_APART = 4.0
"""For the causes of one family, which are next to each other in a stack."""
HEX = re.compile("#[0-9A-Fa-f]{6}")


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, -1.3802, -84.2814), (50.0, 0.0, -82.7485), 1.0),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((50.0, 2.5, 0.0), (58.0, 24.0, 15.0), 19.4535),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_colour_difference_matches_published_test_data(
    one: tuple[float, float, float], other: tuple[float, float, float], difference: float
) -> None:
    assert ciede2000(one, other) == pytest.approx(difference, abs=1e-4)


@pytest.mark.parametrize("eyes", EYES)
def test_families_are_distinguishable_with_any_colour_vision(eyes: str) -> None:
    near = {
        f"{one} and {other}": difference
        for (one, colour), (other, its) in combinations(FAMILY_COLOUR.items(), 2)
        if (difference := ciede2000(lab(colour, eyes), lab(its, eyes))) < LEAST_APART
    }
    assert near == {}


@pytest.mark.parametrize("eyes", EYES)
def test_good_and_bad_are_distinguishable_with_any_colour_vision(eyes: str) -> None:
    for one, other in combinations((GREEN, AMBER, RED), 2):
        assert ciede2000(lab(one, eyes), lab(other, eyes)) >= LEAST_APART, (one, other)


def test_shades_of_causes_differ() -> None:
    for (one, colour), (other, its) in combinations(CAUSE_SHADES.items(), 2):
        assert ciede2000(lab(colour), lab(its)) >= SHADES_APART, (one, other)


@pytest.mark.parametrize("panel", [DARK_PANEL, LIGHT_PANEL])
def test_lines_are_visible_in_both_themes(panel: str) -> None:
    drawn = {**FAMILY_COLOUR, "unhooked": UNHOOKED, "well": GREEN, "not yet": AMBER, "bad": RED}
    faint = {name: seen for name, colour in drawn.items() if (seen := contrast(colour, panel)) < LINES_NEED}
    assert faint == {}


def behind_words() -> Iterator[tuple[str, str]]:
    """The place and the colour of every cell, state and stat that has text on it."""
    for uid, dashboard in output.rendered().items():
        for panel in output.panels_of(dashboard):
            for fields in _grounds(panel):
                for colour in HEX.findall(json.dumps([fields.get("mappings"), fields.get("thresholds")])):
                    yield f"{uid}: {panel['title']}", colour


def _grounds(panel: dict[str, Any]) -> Iterator[dict[str, Any]]:
    config = panel.get("fieldConfig", {"defaults": {}, "overrides": []})
    if panel["type"] == "state-timeline" or panel.get("options", {}).get("colorMode") == "background":
        yield config["defaults"]
    for one in config["overrides"]:
        properties = {entry["id"]: entry["value"] for entry in one["properties"]}
        if properties.get("custom.cellOptions", {}).get("type") == "color-background":
            yield properties


def test_text_on_colours_is_readable() -> None:
    found = set(behind_words())
    assert len(found) > 20, "cells with words on colours are looked at"
    assert {(where, colour) for where, colour in found if contrast(colour, WORDS) < WORDS_NEED} == set()


@pytest.mark.parametrize("colour", [*FAMILY_COLOUR.values(), "#FFFFFF", "#000000"])
def test_a_background_is_as_bright_as_its_text_allows(colour: str) -> None:
    found = ground(colour)
    assert contrast(found, WORDS) >= WORDS_NEED
    assert found == colour or luminance(found) == pytest.approx(luminance(ground("#FFFFFF")), abs=0.01)

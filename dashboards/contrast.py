"""Relative luminance and contrast of colours, as WCAG 2.1 defines them.

Source: https://www.w3.org/TR/WCAG21/#dfn-relative-luminance and #dfn-contrast-ratio. Lines and other graphics need a
contrast of 3 with their background (1.4.11), words of ordinary size need 4.5 (1.4.3).
"""

from __future__ import annotations

DARK_PANEL, LIGHT_PANEL = "#181B1F", "#FFFFFF"
"""The backgrounds of panels in Grafana's two themes."""
WORDS = "#F7F8FA"
"""The colour of words on a coloured cell. Grafana uses it on every background that is not very bright."""
LINES_NEED, WORDS_NEED = 3.0, 4.5

Rgb = tuple[float, float, float]


def linear(colour: str) -> Rgb:
    """The three channels of ``#rrggbb`` as linear light, from 0 to 1."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return _linear(red), _linear(green), _linear(blue)


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast of two colours: from 1 (the same luminance) to 21 (black on white)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ground(colour: str) -> str:
    """The background colour for words: the same hue, dark enough for the words to be read."""
    most = (luminance(WORDS) + 0.05) / WORDS_NEED - 0.05
    has = luminance(colour)
    return colour if has <= most else shaded(colour, most / has)


def shaded(colour: str, light: float) -> str:
    """A darker or brighter shade of a colour.

    Below 1, ``light`` is the share of its light that the colour keeps. Above 1, the colour is mixed with white: 1.3
    adds three tenths of the difference to white.
    """
    channels = linear(colour)
    if light <= 1:
        return _written(*(channel * light for channel in channels))
    return _written(*(channel + (1 - channel) * (light - 1) for channel in channels))


def _written(*channels: float) -> str:
    """``#rrggbb`` of linear channels. Rounds down, so that the colour does not get brighter than requested."""
    encoded = (12.92 * one if one <= 0.0031308 else 1.055 * one ** (1 / 2.4) - 0.055 for one in channels)
    return "#" + "".join(f"{int(255 * one):02X}" for one in encoded)

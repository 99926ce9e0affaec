"""How colours look to different eyes, and how far apart two of them are.

Sources:

- the matrices: G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, "A Physiologically-based Model for Simulation of
  Color Vision Deficiency", IEEE TVCG 15 (2009), those of severity 1.0, for linear RGB
- the difference: G. Sharma, W. Wu, E. N. Dalal, "The CIEDE2000 Color-Difference Formula", Color Research and
  Application 30 (2005), whose test data test_colours.py holds it to
- sRGB and its white point D65: IEC 61966-2-1
"""

from __future__ import annotations

from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt

from whyidle.dashboards.contrast import linear

Triple = tuple[float, float, float]
Matrix = tuple[Triple, Triple, Triple]

EYES: dict[str, Matrix] = {
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
_XYZ: Matrix = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
_WHITE: Triple = (0.95047, 1.0, 1.08883)


def _times(matrix: Matrix, vector: Triple) -> Triple:
    one, two, three = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return one, two, three


def lab(colour: str, eyes: str = "all colours") -> Triple:
    """CIE Lab of ``#rrggbb``, as these eyes see it."""
    red, green, blue = (min(max(channel, 0.0), 1.0) for channel in _times(EYES[eyes], linear(colour)))
    x, y, z = (_root(part / white) for part, white in zip(_times(_XYZ, (red, green, blue)), _WHITE, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _root(part: float) -> float:
    return part ** (1 / 3) if part > 216 / 24389 else (24389 / 27 * part + 16) / 116


def ciede2000(one: Triple, other: Triple) -> float:
    """The difference of two colours in Lab; 1 is about the least that is seen, side by side."""
    (light1, a1, b1), (light2, a2, b2) = one, other
    chroma7 = ((hypot(a1, b1) + hypot(a2, b2)) / 2) ** 7
    stretch = 1 + 0.5 * (1 - sqrt(chroma7 / (chroma7 + 25**7)))
    a1, a2 = a1 * stretch, a2 * stretch
    chroma1, chroma2 = hypot(a1, b1), hypot(a2, b2)
    hue1, hue2 = degrees(atan2(b1, a1)) % 360, degrees(atan2(b2, a2)) % 360
    turn = 0.0 if not chroma1 * chroma2 else (hue2 - hue1 + 180) % 360 - 180
    apart = 2 * sqrt(chroma1 * chroma2) * sin(radians(turn / 2))
    mean_hue = hue1 + hue2 if not chroma1 * chroma2 else (hue1 + turn / 2) % 360
    light, chroma = (light1 + light2) / 2, (chroma1 + chroma2) / 2
    weight = (
        1
        - 0.17 * cos(radians(mean_hue - 30))
        + 0.24 * cos(radians(2 * mean_hue))
        + 0.32 * cos(radians(3 * mean_hue + 6))
        - 0.20 * cos(radians(4 * mean_hue - 63))
    )
    of_light = (light2 - light1) / (1 + 0.015 * (light - 50) ** 2 / sqrt(20 + (light - 50) ** 2))
    of_chroma = (chroma2 - chroma1) / (1 + 0.045 * chroma)
    of_hue = apart / (1 + 0.015 * chroma * weight)
    rotation = 2 * sqrt(chroma**7 / (chroma**7 + 25**7)) * sin(radians(60 * exp(-(((mean_hue - 275) / 25) ** 2))))
    return sqrt(of_light**2 + of_chroma**2 + of_hue**2 - rotation * of_chroma * of_hue)

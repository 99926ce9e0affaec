"""A clock that chronyd controls, and its hardware."""

from __future__ import annotations

from pathlib import Path

from whyidle.agent.files import Roots

from .kernel import timex

SCRIPT: list[str] = timex(
    state=0,
    status=0x2001,  # STA_PLL, STA_NANO
    offset=-183_421,
    freq=-1_310_720,  # 20 ppm slow
    maxerror=61_500,
    esterror=212,
    tai=37,
)


def build(roots: Roots) -> None:
    folder = Path(roots.sysfs, "devices/system/clocksource/clocksource0")
    folder.mkdir(parents=True)
    (folder / "available_clocksource").write_text("tsc hpet acpi_pm \n")
    (folder / "current_clocksource").write_text("tsc\n")

"""Shows the demo on stderr while it runs: a live picture on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...ledger.causes import FAMILIES
from ..report import COLOURS, MARKS
from .scrape import RankView

_BAR = 48
_LINE_EVERY_SECONDS = 5.0


@dataclass(slots=True)
class Scene:
    """The values to show. Times in seconds."""

    title: str
    label: str  # describes the fault; empty without one
    seconds: float  # the requested training time
    startup: float = 0.0
    ranks: dict[int, RankView] = field(default_factory=dict)

    @property
    def trained(self) -> float:
        return max((rank.seconds for rank in self.ranks.values() if rank.steps), default=0.0)

    @property
    def steps(self) -> int:
        return max((rank.steps for rank in self.ranks.values()), default=0)


class Lines:
    """The view for a log, a pipe or a CI job."""

    def __init__(self, scene: Scene):
        self._say(scene.title + (f" · {scene.label}" if scene.label else ""))
        self._next = time.monotonic()

    def draw(self, scene: Scene) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LINE_EVERY_SECONDS
        if not scene.steps:
            self._say(f"starting, {scene.startup:.0f} s")
            return
        self._say(f"{min(scene.trained, scene.seconds):.0f} of {scene.seconds:g} s · {scene.steps} steps{_all(scene)}")

    def close(self) -> None:
        pass

    @staticmethod
    def _say(sentence: str) -> None:
        print(f"whyidle demo: {sentence}", file=sys.stderr, flush=True)


def _all(scene: Scene) -> str:
    """` · compute 61 % · storage 30 %`, of all ranks together."""
    whole = sum(sum(rank.families.values()) for rank in scene.ranks.values())
    parts = {name: sum(rank.families[name] for rank in scene.ranks.values()) for name in FAMILIES}
    return "".join(f" · {name} {100 * part / whole:.0f} %" for name, part in parts.items() if part >= 0.005 * whole > 0)


class Picture:
    """The view for a terminal."""

    def __init__(self, scene: Scene):
        self._live = Live(picture(scene), console=Console(stderr=True), auto_refresh=False, transient=True)
        self._live.start()

    def draw(self, scene: Scene) -> None:
        self._live.update(picture(scene), refresh=True)

    def close(self) -> None:
        self._live.stop()


def picture(scene: Scene) -> Group:
    """The live picture of a scene, for rich."""
    parts: list[Text | Table | Padding] = [Text(scene.title, style="bold")]
    if scene.label:
        parts.append(Text(scene.label, style="bold reverse"))
    parts.append(_progress(scene))
    if scene.ranks:
        parts += [_ranks(scene), _legend(scene)]
    return Group(*parts)


def _progress(scene: Scene) -> Table | Text:
    if not scene.steps:
        return Text(f"starting: importing torch, building the model … {scene.startup:.0f} s", style="dim")
    row = Table.grid(padding=(0, 2))
    done = min(scene.trained, scene.seconds)
    pace = f"{scene.steps} steps, {scene.steps / scene.trained:.1f} a second" if scene.trained else ""
    row.add_row(ProgressBar(scene.seconds, done, width=_BAR), f"{done:.0f} of {scene.seconds:g} s", pace)
    return row


def _ranks(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 2))
    for number in sorted(scene.ranks):
        rank = scene.ranks[number]
        table.add_row(f"rank {number}", stacked(rank.families), _doing(rank))
    return table


def _doing(rank: RankView) -> Text:
    if not rank.alive:
        return Text("ended", style="dim")
    long = rank.phase_seconds >= 1.0
    return Text(rank.phase + (f" for {rank.phase_seconds:.1f} s" if long else ""), style="bold" if long else "dim")


def stacked(families: dict[str, float]) -> Text:
    """A bar of all families by their shares. Rounding errors do not accumulate."""
    whole, text, done, cells = sum(families.values()), Text(), 0.0, 0
    for name in FAMILIES:
        done += families[name]
        end = round(_BAR * done / whole) if whole > 0 else 0
        text.append(MARKS[name] * (end - cells), _style(name))
        cells = end
    return text


def _legend(scene: Scene) -> Text:
    text = Text()
    for name in FAMILIES:
        if any(rank.families[name] >= 0.005 * rank.seconds > 0 for rank in scene.ranks.values()):
            text.append(MARKS[name], _style(name)).append(f" {name}  ")
    return text


def _style(family: str) -> str:
    """The report's colour of a family, for rich: ANSI 30 to 37 and 90 to 97."""
    code = COLOURS[family]
    return f"color({code - 30 if code < 90 else code - 82})"


def open_view(scene: Scene) -> Lines | Picture:
    return Picture(scene) if Console(stderr=True).is_terminal else Lines(scene)

"""Draws pictures of all dashboards from a live Prometheus, while jobs lose time to a known fault.

    python tools/preview/preview.py [SCENE ...] [--dashboards NAME ...] [--out DIR] [--seconds N] [--keep]

A headless Chromium draws the dashboards: build/preview/<dashboard>-<scene>.png. The lower parts of a long page are in
...-2.png and so on. With `--keep`, the page is served on loopback for your own browser until Ctrl-C. The scenes
(scenes.py) are:

* `storage`, `network` and so on: `whyidle demo --inject FAULT`.
* `simulated`: the tests' fake node with 8 GPUs and InfiniBand, for panels that a demo on a CPU leaves empty. The
  dashboards Node, Node hardware and Health are drawn, with all rows open.
* `slow-disk`, `shaped-link` and so on: a training over two nodes (network namespaces) while something is really slow,
  so that counters can confirm the verdict. These need root, and take seven minutes.
* `8-runs`, `100-runs`: that many simulated runs, for Overview and Fleet. They take seven minutes.

This is a preview and not Grafana: it uses Grafana's published components but arranges them itself. It needs Node,
npm's registry, Chromium and Prometheus, and takes three minutes per fault of the demo. It tests nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import scenes  # noqa: E402
from scenes import Scene  # noqa: E402

from whyidle.alerts.config import Config  # noqa: E402
from whyidle.dashboards import output  # noqa: E402

DASHBOARDS = {
    path.stem.removeprefix("whyidle-"): path for path in (scenes.ROOT / "dashboards/generated").glob("*.json")
}
ALL = (*scenes.DEFAULT, *scenes.REAL, *scenes.RUNS)
SCALE = 0.8
"""The scale of the pictures. The page is 1440 pixels wide."""


def main() -> int:
    options = _parser().parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    for tool, found in (("node", shutil.which("node")), ("npm", shutil.which("npm")), ("chromium", chromium)):
        if not found:
            print(f"needs {tool} (Debian: apt-get install {tool}{'js' * (tool == 'node')})", file=sys.stderr)
            return 2
    names = options.scene or [*scenes.DEFAULT]
    if unknown := {*names} - {*ALL}:
        print(f"no such scene: {', '.join(sorted(unknown))}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    if lacks := scenes.missing(names):
        print(lacks, file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whyidle-preview-")))
        _say("building the page")
        build(folder / "page")
        page = stack.enter_context(served(folder / "page"))
        status = 0
        for name in names:
            with contextlib.ExitStack() as own:
                _say(f"{name}: observing")
                scene = (stack if options.keep else own).enter_context(
                    scenes.scene(name, folder / name, options.seconds)
                )
                addresses = {one: address(page, scene, one) for one in scene.only or options.dashboards}
                _say(f"{name}: drawing")
                status |= shoot(str(chromium), folder / f"profile-{name}", options.out, name, addresses)
                if options.keep:
                    print(*addresses.values(), sep="\n", file=sys.stderr)
        if options.keep:
            _say("served until Ctrl-C")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    return status


# -- drawing


def build(page: Path) -> None:
    """Writes the page and the dashboards into a folder, ready to be served."""
    if not _installed():
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(command, cwd=HERE, check=True, stdout=sys.stderr)
    subprocess.run(["node", "build.mjs", str(page)], cwd=HERE, check=True)
    (page / "dashboards").mkdir()
    for name, text in output.files(Config(gpu_hour_price=scenes.PRICE)).items():
        (page / "dashboards" / name).write_text(text)


def _installed() -> bool:
    """Whether npm's record of its last installation is newer than the list of packages to install."""
    done = HERE / "node_modules/.package-lock.json"
    return done.exists() and done.stat().st_mtime >= (HERE / "package-lock.json").stat().st_mtime


@contextlib.contextmanager
def served(page: Path) -> Iterator[str]:
    """Serves a folder on loopback until the end of the block. Yields its address."""
    handler = partial(_Quiet, directory=str(page))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def address(page: str, scene: Scene, dashboard: str) -> str:
    """The address of one dashboard, with its variables and its time range."""
    asked = {
        "dashboard": f"whyidle-{dashboard}",
        "prometheus": scene.server,
        "scrape": scene.scrape_seconds,
        "from": f"{scene.start:.0f}",
        "to": f"{scene.end:.0f}",
        "about": scene.about,
        **({"unfold": ""} if scene.unfold else {}),
        **{f"var-{name}": value for name, value in scene.variables.items()},
    }
    return f"{page}?{urllib.parse.urlencode(asked)}"


def shoot(chromium: str, profile: Path, out: Path, scene: str, addresses: Mapping[str, str]) -> int:
    """Replaces the pictures of a scene, and prints which panels failed. Returns 1 if a panel failed."""
    for name in addresses:
        for old in (out / f"{name}-{scene}.png", *out.glob(f"{name}-{scene}-[0-9]*.png")):
            old.unlink(missing_ok=True)
    pictures = [
        {"address": address, "file": str(out / f"{name}-{scene}.png"), "scale": SCALE}
        for name, address in addresses.items()
    ]
    command = ["node", "shoot.mjs", chromium, str(profile)]
    return subprocess.run(command, cwd=HERE, input=json.dumps(pictures), text=True).returncode


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Pictures of all dashboards while real jobs have a known fault.")
    parser.add_argument("scene", nargs="*", help=f"{', '.join(ALL)} (default: {', '.join(scenes.DEFAULT)})")
    parser.add_argument("--dashboards", nargs="+", choices=sorted(DASHBOARDS), default=sorted(DASHBOARDS))
    parser.add_argument("--out", type=Path, default=scenes.ROOT / "build/preview", help="default: build/preview")
    parser.add_argument("--seconds", type=float, default=120.0, help="training time of a demo (default: 120)")
    parser.add_argument("--keep", action="store_true", help="serve the page afterwards, until Ctrl-C")
    return parser


if __name__ == "__main__":
    sys.exit(main())

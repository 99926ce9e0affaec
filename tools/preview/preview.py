"""Draws pictures of all dashboards from a live Prometheus, while real jobs lose time to a known fault.

    python tools/preview/preview.py [FAULT ...] [--dashboards NAME ...] [--out DIR] [--seconds N] [--keep]

For each fault it runs `whyidle demo --inject FAULT`. A real Prometheus with the rules of alerts/generated scrapes the
demo's agent, and a headless Chromium draws the dashboards: docs/images/<dashboard>-<fault>.png. The lower parts of a
long page are in ...-2.png and so on. `simulated` is not a demo. It uses the tests' fake node with 8 GPUs and
InfiniBand, for panels that a demo on a CPU leaves empty. For it, the dashboards Node, Node hardware and Health are
drawn, with all rows open. With `--keep`, the page is served on loopback for your own browser until Ctrl-C.

This is a preview and not Grafana: it uses Grafana's published components but arranges them itself. It needs Node,
npm's registry, Chromium and Prometheus, and takes three minutes per fault. It tests nothing.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))  # for the helpers that run Prometheus, the demo and the fake node

from support_demo import Demo, machine  # noqa: E402
from support_ledgers import until  # noqa: E402
from support_prometheus import Prometheus, prometheus, rules  # noqa: E402

from whyidle.alerts.config import Config  # noqa: E402
from whyidle.dashboards import output  # noqa: E402

DASHBOARDS = {path.stem.removeprefix("whyidle-"): path for path in (ROOT / "dashboards/generated").glob("*.json")}
FAULTS: dict[str, tuple[str, ...]] = {
    # One rank has slow storage and the others wait for it, so the dashboards must look through these waits.
    "storage": ("--inject-rank", "1"),
    "network": (),
    "cpu": (),
    "straggler": (),
    "checkpoint": (),
}
SIMULATED = "simulated"
CLUSTER = "lab"
SCRAPE_SECONDS = 1
SIMULATED_SECONDS = 75.0
SETTLED_SECONDS = 3.0
"""Seconds for a scrape, an evaluation of the rules, and another scrape."""

PRICE = 2.5
"""The price of a GPU-hour. Without a price, dashboards show no costs."""
SCALE = 0.8
"""The scale of the pictures. The page is 1440 pixels wide."""


@dataclass(frozen=True)
class Scene:
    """An observed fault: its time range, a description, and the values of the dashboards' variables."""

    fault: str
    start: float
    end: float
    about: str
    variables: dict[str, str]
    only: Sequence[str] = ()
    unfold: bool = False


def main() -> int:
    options = _parser().parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    for tool, found in (("node", shutil.which("node")), ("npm", shutil.which("npm")), ("chromium", chromium)):
        if not found:
            print(f"needs {tool} (Debian: apt-get install {tool}{'js' * (tool == 'node')})", file=sys.stderr)
            return 2
    faults = options.fault or [*FAULTS, SIMULATED]
    if unknown := {*faults} - {*FAULTS, SIMULATED}:
        print(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join((*FAULTS, SIMULATED))}")
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whyidle-preview-")))
        _say("building the page")
        build(folder / "page")
        page = stack.enter_context(served(folder / "page"))
        every = f"{SCRAPE_SECONDS}s"
        shipped = rules(folder / "rules", Config(interval=every, details_interval=every, counters_interval=every))
        status = 0
        for fault in faults:
            with contextlib.ExitStack() as own:
                # One Prometheus per fault: windows reach back, and a picture must not show the fault before.
                database = folder / f"prometheus-{fault}"
                database.mkdir()
                running = prometheus(database, *shipped, interval=every)
                server = (stack if options.keep else own).enter_context(running)
                _say(f"{fault}: observing")
                with machine():
                    scene = observe(server, folder, fault, options.seconds)
                addresses = {name: address(page, server.url, scene, name) for name in scene.only or options.dashboards}
                _say(f"{fault}: drawing")
                status |= shoot(str(chromium), folder / f"profile-{fault}", options.out, fault, addresses)
                if options.keep:
                    print(*addresses.values(), sep="\n", file=sys.stderr)
        if options.keep:
            _say("served until Ctrl-C")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    return status


# -- scenes


def observe(server: Prometheus, folder: Path, fault: str, seconds: float) -> Scene:
    return simulated(server, folder) if fault == SIMULATED else observed(server, folder, fault, seconds)


def observed(server: Prometheus, folder: Path, fault: str, seconds: float) -> Scene:
    """Observes a demo with a fault, from its first scrape to shortly before its end."""
    demo_folder = folder / fault
    demo_folder.mkdir()
    demo = Demo(demo_folder, "--seconds", f"{seconds:g}", "--json", "--inject", fault, *FAULTS[fault])
    try:
        agent = until(demo.agent)
        server.scrape({agent: {"cluster": CLUSTER}})
        start = time.time()
        steps = f'whyidle_steps_total{{run=~".*{fault}"}} > 0'
        until(lambda: server.query(steps))
        found = server.query(steps)[0].labels
        owner, run = found["owner"], found["run"]
        time.sleep(seconds - SETTLED_SECONDS)
        end = time.time()
        node = server.query(f'whyidle_rank_info{{run="{run}"}}', end)[0].labels["node"]
        code, out, err = demo.finish()
    finally:
        demo.kill()
        server.scrape({})
    if code:
        raise SystemExit(err)
    verdict = json.loads(out)["verdict"]
    about = (
        f"Here: whyidle demo --inject {' '.join((fault, *FAULTS[fault]))}, two ranks on CPUs; "
        f"its own report says {verdict['family']}, {verdict['share']:.0%}. A GPU-hour costs ${PRICE:.2f} here."
    )
    # Rates over 5 minutes need 5 minutes to reach their value, and the demo is shorter than that.
    return Scene(
        fault, start, end, about, {"owner": owner, "run": run, "node": node, "instance": agent, "window": "1m"}
    )


def simulated(server: Prometheus, folder: Path) -> Scene:
    """Observes the fake node while its counters move. It has GPUs, InfiniBand, NFS and Lustre."""
    from fake_node.moving import moving
    from fake_node.whole import NODE, whole

    root = folder / SIMULATED
    root.mkdir()
    with whole(root) as fake, moving(fake), fake.agent() as agent:
        server.scrape({agent.address: {"cluster": CLUSTER}})
        start = time.time()
        server.wait_for(agent.address)
        time.sleep(SIMULATED_SECONDS)
        end = time.time()
        server.scrape({})
    about = "Here: a simulated node, no measurement."
    chosen = {"node": NODE, "window": "1m"}
    return Scene(SIMULATED, start, end, about, chosen, only=("node", "node-hardware", "health"), unfold=True)


# -- drawing


def build(page: Path) -> None:
    """Writes the page and the dashboards into a folder, ready to be served."""
    if not _installed():
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(command, cwd=HERE, check=True, stdout=sys.stderr)
    subprocess.run(["node", "build.mjs", str(page)], cwd=HERE, check=True)
    (page / "dashboards").mkdir()
    for name, text in output.files(Config(gpu_hour_price=PRICE)).items():
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


def address(page: str, server: str, scene: Scene, dashboard: str) -> str:
    """The address of one dashboard, with its variables and its time range."""
    asked = {
        "dashboard": f"whyidle-{dashboard}",
        "prometheus": server,
        "scrape": SCRAPE_SECONDS,
        "from": f"{scene.start:.0f}",
        "to": f"{scene.end:.0f}",
        "about": scene.about,
        **({"unfold": ""} if scene.unfold else {}),
        **{f"var-{name}": value for name, value in scene.variables.items()},
    }
    return f"{page}?{urllib.parse.urlencode(asked)}"


def shoot(chromium: str, profile: Path, out: Path, fault: str, addresses: Mapping[str, str]) -> int:
    """Replaces the pictures of a fault, and prints which panels failed. Returns 1 if a panel failed."""
    for name in addresses:
        for old in (out / f"{name}-{fault}.png", *out.glob(f"{name}-{fault}-[0-9]*.png")):
            old.unlink(missing_ok=True)
    pictures = [
        {"address": address, "file": str(out / f"{name}-{fault}.png"), "scale": SCALE}
        for name, address in addresses.items()
    ]
    command = ["node", "shoot.mjs", chromium, str(profile)]
    return subprocess.run(command, cwd=HERE, input=json.dumps(pictures), text=True).returncode


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Pictures of all dashboards while real jobs have a known fault.")
    parser.add_argument("fault", nargs="*", help=f"{', '.join((*FAULTS, SIMULATED))} (default: all)")
    parser.add_argument("--dashboards", nargs="+", choices=sorted(DASHBOARDS), default=sorted(DASHBOARDS))
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images", help="default: docs/images")
    parser.add_argument("--seconds", type=float, default=120.0, help="training time per fault (default: 120)")
    parser.add_argument("--keep", action="store_true", help="serve the page afterwards, until Ctrl-C")
    return parser


if __name__ == "__main__":
    sys.exit(main())

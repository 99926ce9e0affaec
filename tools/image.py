"""Builds the container image with buildah, in the image store of the current user (`buildah images` lists it).

    python tools/image.py [--base debootstrap] [--name localhost/whyidle:VERSION]

The base image comes from its registry. If no registry can be reached, `--base debootstrap` makes the same Debian from
its packages. That takes a minute or two and needs root. The result is kept as localhost/debian:trixie-slim.

The name of the image is the last line on stdout. Everything else goes to stderr.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from whyidle import __version__

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "deploy" / "image" / "Dockerfile"
MIRROR = "http://deb.debian.org/debian"
REGISTRY, DEBOOTSTRAP = "registry", "debootstrap"
NOT_IN_SLIM = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists")
"""Folders that Debian's slim images leave out and debootstrap includes."""
AUTHORITIES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
"""Environment variables that name the certificate authorities to trust, if pip has no setting for them."""


class Failed(Exception):
    """The build failed. The message says what failed and what to do."""


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="build the container image with buildah")
    parser.add_argument(
        "--base",
        choices=(REGISTRY, DEBOOTSTRAP),
        default=REGISTRY,
        help="where the base image comes from (default: %(default)s)",
    )
    parser.add_argument(
        "--name", default=f"localhost/whyidle:{__version__}", help="name of the new image (default: %(default)s)"
    )
    asked = parser.parse_args(words)
    try:
        base = declared_base(DOCKERFILE.read_text())
        if asked.base == DEBOOTSTRAP:
            base = made_base(base)
        build(base, asked.name, local=asked.base == DEBOOTSTRAP)
    except Failed as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    print(asked.name)
    return 0


def declared_base(dockerfile: str) -> str:
    """The base image that the Dockerfile names."""
    found = re.search(r"^ARG BASE=(\S+)$", dockerfile, re.MULTILINE)
    assert found, "the Dockerfile has no ARG BASE"
    return found[1]


def made_base(name: str) -> str:
    """Makes an image like the named one from Debian's packages, unless it exists. Returns the name of the image."""
    found = re.search(r"debian:(([a-z]+)-slim)$", name)
    if not found:
        raise Failed(f"debootstrap cannot make {name}: only debian:RELEASE-slim")
    local = f"localhost/debian:{found[1]}"
    if buildah("images", "--quiet", "--filter", f"reference={local}"):
        return local
    with Step(f"{local}, by debootstrap"), tempfile.TemporaryDirectory(prefix="debian-") as folder:
        root = Path(folder, "root")
        do(["debootstrap", "--variant=minbase", found[2], str(root), MIRROR])
        for path in NOT_IN_SLIM:
            for child in (root / path).iterdir():
                shutil.rmtree(child) if child.is_dir() else child.unlink()
        container = buildah("from", "scratch")
        try:
            buildah("add", "--quiet", container, str(root), "/")
            buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
            buildah("commit", "--quiet", container, local)
        finally:
            buildah("rm", container)
    return local


def build(base: str, name: str, *, local: bool) -> None:
    with Step(f"{name}, from {base}"), tempfile.TemporaryDirectory(prefix="image-") as folder:
        arguments = {"BASE": base, "VERSION": __version__, **revision()}
        words = ["bud", "--network", "host", "--pull-never" if local else "--pull", "--layers=false"]
        # The OCI format has no health check.
        words += ["--format", "docker"]
        words += [f"--build-arg={key}={value}" for key, value in arguments.items()]
        words += [f"--secret=id={key},src={path}" for key, path in secrets(Path(folder))]
        words += ["--ignorefile", f"{DOCKERFILE}.dockerignore", "--file", str(DOCKERFILE), "--tag", name, str(ROOT)]
        try:
            buildah(*words)
        except Failed as error:
            if local or "initializing source" not in str(error):
                raise
            raise Failed(f"{error}\nIf no registry can be reached here, use --base {DEBOOTSTRAP}.") from None


def revision() -> dict[str, str]:
    """The current commit and its date. Both are empty outside a clone, such as in a source distribution."""
    words = ["git", "-C", str(ROOT), "show", "--no-patch", "--format=%H %cI", "HEAD"]
    done = subprocess.run(words, capture_output=True, text=True, check=False) if shutil.which("git") else None
    if done is None or done.returncode != 0:
        return {"REVISION": "", "CREATED": ""}
    commit, created = done.stdout.split()
    return {"REVISION": commit, "CREATED": created}


def secrets(folder: Path) -> Iterator[tuple[str, Path]]:
    """Build secrets that let pip reach the package index: pip's settings and the certificate authorities.

    The image does not contain them.
    """
    lines = ["[global]"]
    settings = pip_settings(do([sys.executable, "-m", "pip", "config", "list"]))
    if index := settings.get("index-url"):
        lines.append(f"index-url = {index}")
    variables = next((os.environ[name] for name in AUTHORITIES if os.environ.get(name)), None)
    if authorities := settings.get("cert", variables):
        yield "ca.crt", Path(authorities)
        lines.append("cert = /run/secrets/ca.crt")
    if len(lines) > 1:
        (folder / "pip.conf").write_text("\n".join(lines) + "\n")
        yield "pip.conf", folder / "pip.conf"


def pip_settings(listed: str) -> dict[str, str]:
    """What `pip config list` prints -> pip's settings for an installation, of its files and of the environment."""
    settings: dict[str, str] = {}
    for section in ("global", "install", ":env:"):  # a later one has precedence
        for name, value in re.findall(rf"^{re.escape(section)}\.(\S+?)=(.+)$", listed, re.MULTILINE):
            settings[name] = str(ast.literal_eval(value))
    return settings


def buildah(*words: str) -> str:
    """Runs buildah and returns its stdout."""
    return do(["buildah", *words])


def do(words: Sequence[str]) -> str:
    # The chroot isolation needs no container runtime and no control groups, so it also works inside a container.
    env = {"BUILDAH_ISOLATION": "chroot", **os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False)
    except FileNotFoundError:
        raise Failed(f"needs {words[0]} (Debian: apt-get install {words[0]})") from None
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise Failed(f"{words[0]} failed with exit status {done.returncode}:\n{said}")
    return done.stdout.strip()


class Step:
    """Prints what is being made, and how long it took."""

    def __init__(self, what: str):
        self.what = what

    def __enter__(self) -> None:
        print(f"building {self.what}", file=sys.stderr, flush=True)
        self._start = time.monotonic()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            print(f"  done in {time.monotonic() - self._start:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

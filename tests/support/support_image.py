"""Images in buildah: their settings, and a container with its files and commands."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENV = {"BUILDAH_ISOLATION": "chroot", **os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
"""Isolation by chroot needs neither a container runtime nor control groups: it also works inside a container."""


def missing() -> str | None:
    """What this machine lacks, or None."""
    if not shutil.which("buildah"):
        return "needs buildah"
    return None if os.geteuid() == 0 else "needs root, to look into what buildah has built"


@dataclass(frozen=True)
class Engine:
    """buildah, with the user's images or, if ``store`` is set, with separate images in that directory."""

    store: Path | None = None

    def words(self, *words: str) -> list[str]:
        if self.store is None:
            return ["buildah", *words]
        # vfs, because an overlay on top of an overlay does not work everywhere, and these images are small.
        places = ("--root", str(self.store / "root"), "--runroot", str(self.store / "run"))
        return ["buildah", *places, "--storage-driver", "vfs", *words]

    def __call__(self, *words: str) -> str:
        done = subprocess.run(self.words(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True, env=ENV)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-4000:])
        return done.stdout.strip()

    @contextlib.contextmanager
    def container(self, image: str) -> Iterator[str]:
        """A container of an image, which ends with the block."""
        name = self("from", "--pull-never", image)
        try:
            yield name
        finally:
            self("rm", name)

    def settings(self, image: str) -> Settings:
        return Settings(json.loads(self("inspect", "--type", "image", image))["Docker"]["config"])


@dataclass(frozen=True)
class Settings:
    """The settings of an image, in Docker's format."""

    said: dict[str, Any]

    @property
    def user(self) -> str:
        return self.said["User"]

    @property
    def entry_point(self) -> list[str]:
        return self.said["Entrypoint"]

    @property
    def command(self) -> list[str]:
        return self.said["Cmd"]

    @property
    def labels(self) -> dict[str, str]:
        return self.said["Labels"]

    @property
    def env(self) -> dict[str, str]:
        return {name: value for name, _, value in (line.partition("=") for line in self.said["Env"])}

    @property
    def health(self) -> list[str]:
        """The command of the health check."""
        kind, *words = self.said["Healthcheck"]["Test"]
        assert kind == "CMD"
        return words

    @property
    def port(self) -> int:
        [port] = self.said["ExposedPorts"]
        return int(port.removesuffix("/tcp"))


def size(root: Path) -> int:
    """Bytes of the files in a directory, each counted once."""
    seen = {(s.st_dev, s.st_ino): s.st_size for s in map(os.lstat, map(str, root.rglob("*")))}
    return sum(seen.values())

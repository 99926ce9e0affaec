"""Reads a Dockerfile, and builds it without an engine: its steps run in roots that debootstrap made. Needs root.

Only what deploy/image/Dockerfile uses is understood; anything else fails. Not done: layers, caches, and the registry:
the base is what debootstrap makes of the same release, less what Debian's slim image leaves out.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
_BASE = re.compile(r"debian:([a-z]+)-slim$")
_FORWARDED = ("PIP_INDEX_URL", "http_proxy", "https_proxy", "no_proxy")
"""What a builder is given on a machine whose way to the packages is its own."""


@dataclass
class Step:
    keyword: str
    value: str


@dataclass
class Image:
    """What the instructions of one stage leave, besides files."""

    name: str
    base: str
    steps: list[Step] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    entry_point: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    port: int = 0


def steps(text: str) -> Iterator[Step]:
    """The instructions, continued lines joined."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    for joined in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        keyword, _, value = joined.strip().partition(" ")
        yield Step(keyword.upper(), value.strip())


def stages(text: str, **arguments: str) -> list[Image]:
    """What a Dockerfile says of each of its stages; ``arguments`` are those of --build-arg."""
    before: dict[str, str] = {}
    found: list[Image] = []
    for step in steps(text):
        if step.keyword == "FROM":
            name, _, alias = _expand(step.value, before).partition(" AS ")
            found.append(Image(alias or "final", name))
        elif not found:
            assert step.keyword == "ARG", step
            before |= _argument(step.value, arguments, {})
        else:
            _take(found[-1], step, arguments, before)
    return found


def _take(image: Image, step: Step, arguments: Mapping[str, str], before: Mapping[str, str]) -> None:
    value = step.value
    if step.keyword in ("RUN", "COPY"):
        image.steps.append(step)
    elif step.keyword == "ARG":
        image.args |= _argument(value, arguments, before)
    elif step.keyword == "ENV":
        image.env |= _pairs(value, {**image.args, **image.env})
    elif step.keyword == "LABEL":
        image.labels |= _pairs(value, {**image.args, **image.env})
    elif step.keyword == "USER":
        image.user = value
        image.steps.append(step)
    elif step.keyword == "WORKDIR":
        image.folder = value
        image.steps.append(step)
    elif step.keyword == "EXPOSE":
        image.port = int(value)
    elif step.keyword == "ENTRYPOINT":
        image.entry_point = json.loads(value)
    elif step.keyword == "CMD":
        image.command = json.loads(value)
    else:
        assert step.keyword == "HEALTHCHECK", step
        image.health = json.loads(value.partition("CMD ")[2])


def _argument(value: str, given: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    name, equals, default = value.partition("=")
    return {name: given.get(name, default if equals else before.get(name, ""))}


def _pairs(value: str, variables: Mapping[str, str]) -> dict[str, str]:
    found = [word.partition("=") for word in shlex.split(_expand(value, variables))]
    return {name: text for name, _, text in found}


def _expand(text: str, variables: Mapping[str, str]) -> str:
    """${NAME}, $NAME and ${NAME:+word}."""
    text = re.sub(
        r"\$\{(\w+):\+((?:[^{}]|\$\{\w+\})*)\}", lambda found: found[2] if variables.get(found[1]) else "", text
    )
    return re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda found: variables.get(found[1] or found[2], ""), text)


def context(root: Path, ignore: str) -> Iterator[str]:
    """The files that go to the builder: all, less what .dockerignore leaves out; the last rule that fits decides."""
    rules = [line for line in ignore.splitlines() if line.strip() and not line.startswith("#")]

    def kept(path: str) -> bool:
        fitting = [rule for rule in rules if _fits(path, rule.removeprefix("!"))]
        return not fitting or fitting[-1].startswith("!")

    for top, folders, names in os.walk(root):
        below = os.path.relpath(top, root)
        folders[:] = [name for name in folders if kept(os.path.normpath(os.path.join(below, name)))]
        yield from filter(kept, (os.path.normpath(os.path.join(below, name)) for name in names))


def _fits(path: str, pattern: str) -> bool:
    """Whether a rule speaks of a file, or of a folder that it is in."""
    parts = path.split("/")
    heads = ["/".join(parts[: length + 1]) for length in range(len(parts))]
    if pattern.startswith("**/"):
        return any(fnmatch.fnmatchcase(part, pattern[3:]) for part in parts)
    return any(head.count("/") == pattern.count("/") and fnmatch.fnmatchcase(head, pattern) for head in heads)


class Builder:
    """Builds the stages of a Dockerfile below a folder; ``log`` has what the steps print."""

    def __init__(self, folder: Path, source: Path, ignore: str):
        self.folder, self.source, self.ignore = folder, source, ignore
        self.log = folder / "build.log"
        self.seconds: dict[str, float] = {}

    def base(self, name: str) -> Path:
        """A root of the Debian that an image's name means."""
        found = _BASE.match(name)
        assert found, f"{name}: no digest can be had here, and no other base than Debian"
        root = self.folder / f"base-{found[1]}"
        if not root.exists():
            self._do(["debootstrap", "--variant=minbase", found[1], str(root), MIRROR])
            for path in ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists"):
                for child in (root / path).iterdir():
                    shutil.rmtree(child) if child.is_dir() else child.unlink()
        return root

    def build(self, images: list[Image]) -> Path:
        """The root of the last stage."""
        roots: dict[str, Path] = {}
        for image in images:
            root = roots[image.name] = self.folder / f"stage-{image.name}"
            self._do(["cp", "-a", "--reflink=auto", str(self.base(image.base)), str(root)])
            folder, user = "/", "0:0"
            for step in image.steps:
                if step.keyword == "WORKDIR":
                    folder = step.value
                    (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
                elif step.keyword == "USER":
                    user = step.value
                elif step.keyword == "COPY":
                    self._copy(step.value, root, folder, roots)
                else:
                    self._run(step.value, image, root, folder, user)
        return roots[images[-1].name]

    def _copy(self, value: str, root: Path, folder: str, roots: Mapping[str, Path]) -> None:
        words = value.split()
        if words[0].startswith("--from="):
            [_, source, target] = words
            self._do(["cp", "-a", f"{roots[words[0][7:]]}{source}", f"{root}{target}"])
            return
        assert words == [".", "."], value
        for path in context(self.source, self.ignore):
            target = root / folder.lstrip("/") / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.source / path, target)

    def _run(self, command: str, image: Image, root: Path, folder: str, user: str) -> None:
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **image.args, **image.env}
        env |= {name: os.environ[name] for name in _FORWARDED if name in os.environ}
        lines = ["mount -t proc proc proc", "mount --bind /dev dev"]
        lines.append("touch etc/resolv.conf; mount --bind /etc/resolv.conf etc/resolv.conf")
        if authorities := os.environ.get("PIP_CERT"):
            # On a file system of its own, so that nothing of it stays.
            lines.append(f"mount -t tmpfs run run; cp {authorities} run/authorities.crt")
            env["PIP_CERT"] = "/run/authorities.crt"
        uid, gid = user.split(":")
        words = ["chroot", f"--userspec={uid}:{gid}", ".", "/usr/bin/env", "-i", "-C", folder]
        lines.append(f"exec {shlex.join([*words, *(f'{k}={v}' for k, v in env.items()), '/bin/sh', '-c', command])}")
        script = f"cd {root}; " + "; ".join(lines)
        self._do(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", script])

    def _do(self, words: list[str]) -> None:
        with open(self.log, "ab") as log:
            path = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=path)
        assert done.returncode == 0, self.log.read_text()[-4000:]


def size(root: Path) -> int:
    """Bytes of the files below, each once."""
    seen = {(s.st_dev, s.st_ino): s.st_size for s in map(os.lstat, map(str, root.rglob("*")))}
    return sum(seen.values())

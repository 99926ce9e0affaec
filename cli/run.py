"""`whyidle run -- CMD…`: runs a training command, with the hooks in every Python process that it starts.

It sets the environment and replaces itself with the command (execve). The process ID stays the same, so exit status,
signals and job control are those of the command.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from ..torch_hooks import autoload

AUTOLOAD_DIR = os.path.dirname(os.path.abspath(autoload.__file__))
USAGE = "usage: whyidle run [--dir DIR] [--run RUN] -- CMD [ARG …]"
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit statuses, as in a shell."""

_TAKES_A_VALUE = "cmWX"  # options of python with a value, which is the rest of the word or the next word


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = USAGE.removeprefix("usage: ")
    parser.add_argument("--dir", metavar="DIR", help="the directory for the ranks' ledgers ($WHYIDLE_DIR)")
    parser.add_argument("--run", dest="run_name", metavar="RUN", help="name of the run ($WHYIDLE_RUN)")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD", help="the command and its arguments")


def run(args: argparse.Namespace) -> int:
    """Replaces this process with the command. Returns an exit status only if that fails.

    ``args.rest``: the words after `--`.
    """
    command = command_line(args.command, getattr(args, "rest", None))
    if not command:
        print(USAGE, file=sys.stderr)
        return 2
    env = environment(os.environ, args.dir, args.run_name)
    if env.get("WHYIDLE") == "1":
        warn_if_unreachable(command, env)
    return become(command, env)


def command_line(words: Sequence[str], rest: Sequence[str] | None) -> list[str]:
    """The command: the words after `--` if it follows our own options directly, otherwise all words, including a
    `--`."""
    command = list(words)
    if command[:1] == ["--"]:  # some versions of argparse keep it, others remove it
        command = command[1:]
    if rest is None:
        return command
    return [*command, "--", *rest] if command else list(rest)


def environment(base: Mapping[str, str], directory: str | None, run_name: str | None) -> dict[str, str]:
    """The environment of the command. With ``WHYIDLE=0`` in ``base``, it is ``base`` unchanged."""
    env = dict(base)
    if env.get("WHYIDLE") == "0":
        return env
    env["WHYIDLE"] = "1"
    if directory:
        env["WHYIDLE_DIR"] = os.path.abspath(directory)  # the command may change its working directory
    if run_name:
        env["WHYIDLE_RUN"] = run_name
    # An empty entry would put the working directory on sys.path.
    path = env.get("PYTHONPATH") or ""
    others = [entry for entry in path.split(os.pathsep) if entry != AUTOLOAD_DIR] if path else []
    env["PYTHONPATH"] = os.pathsep.join([AUTOLOAD_DIR, *others])
    return env


def become(command: list[str], env: dict[str, str]) -> int:
    """Executes the command (execvpe). If that fails, it prints a sentence to stderr and returns an exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these signals from its start on, and ignored signals stay ignored across exec.
    restored = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        os.execvpe(command[0], command, env)
    except (FileNotFoundError, NotADirectoryError):
        print(f"whyidle: {command[0]}: command not found", file=sys.stderr)
        return NOT_FOUND
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        print(f"whyidle: {command[0]} cannot be executed: {reason}", file=sys.stderr)
        return NOT_EXECUTABLE
    finally:  # only reached if exec failed
        for number, handler in restored.items():
            signal.signal(number, handler)


def warn_if_unreachable(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Warns if the command is a Python that ignores PYTHONPATH, and its environment does not start the hooks either."""
    if not os.path.basename(command[0]).startswith("python"):
        return
    flags = python_flags(command[1:])
    isolating = [flag for flag in "EIS" if flag in flags]
    if isolating and not _starts_us(command[0], isolating, env):
        print(
            f"whyidle: python -{isolating[0]} ignores PYTHONPATH or site-packages, so nothing will be recorded. "
            "Install whyidle into that environment, or call whyidle.attach() in the script.",
            file=sys.stderr,
        )


def python_flags(words: Sequence[str]) -> str:
    """The one-letter options of a python command line before its script, -c or -m."""
    flags = ""
    words = list(words)
    while words:
        word = words.pop(0)
        if word == "--check-hash-based-pycs" and words:
            words.pop(0)
        elif word.startswith("--"):
            continue
        elif len(word) < 2 or word[0] != "-":
            break
        else:
            letters = word[1:]
            at = next((i for i, letter in enumerate(letters) if letter in _TAKES_A_VALUE), None)
            flags += letters if at is None else letters[:at]
            if at is None:
                continue
            if letters[at] in "cm":
                break
            if at == len(letters) - 1 and words:
                words.pop(0)
    return flags


def _starts_us(python: str, flags: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether this interpreter, with these flags, loads the .pth file of an installed wheel. It is started to find
    out."""
    code = "import sys; sys.exit('_whyidle_autoload' not in sys.modules)"
    try:
        asked = subprocess.run(
            [python, *(f"-{flag}" for flag in flags), "-c", code],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True  # the command itself will report what is wrong
    return asked.returncode == 0

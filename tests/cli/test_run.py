"""`whyidle run -- CMD`: the command runs as without whyidle, and every Python that it starts gets the hooks."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support_signals import ignoring
from support_sites import clean_env

from whyidle.cli import run as run_command

MARK = "'whyidle.torch_hooks.attach' in sys.modules"
WHYIDLE_RUN = (sys.executable, "-m", "whyidle.cli.main", "run")


def whyidle(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WHYIDLE_RUN, *arguments],
        env=clean_env(**env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture
def fake_torch(tmp_path: Path) -> Path:
    """A directory with a module called torch, for tests of how the hooks get into a process."""
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "torch.py").write_text("")
    return folder


# -- what the command gets


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_exit_status_is_that_of_the_command(code: int) -> None:
    done = whyidle("--", "sh", "-c", f"exit {code}")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_replaces_itself_with_the_command() -> None:
    """There is one process, not a parent that has to forward signals."""
    with subprocess.Popen(
        [*WHYIDLE_RUN, "--", "sh", "-c", "echo $$"], env=clean_env(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.read()) == process.pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_signals_kill_the_command(number: signal.Signals) -> None:
    with subprocess.Popen(
        [*WHYIDLE_RUN, "--", "sh", "-c", "echo ready; exec sleep 120"],
        env=clean_env(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(60) == -number


def test_a_handled_signal_is_handled_by_the_command() -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(41))\n"
        "print('ready', flush=True)\n"
        "time.sleep(120)\n"
    )
    with subprocess.Popen(
        [*WHYIDLE_RUN, "--", sys.executable, "-c", code], env=clean_env(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(60) == 41


def test_signal_dispositions_are_those_of_a_shell() -> None:
    """Python ignores SIGPIPE. A command that it starts must not inherit this."""
    script = [shutil.which("grep") or "grep", "SigIgn", "/proc/self/status"]
    plain = subprocess.run(script, env=clean_env(), capture_output=True, text=True, timeout=60, check=True)
    assert whyidle("--", *script).stdout == plain.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_command_ignores_signals_that_the_caller_ignores(number: signal.Signals) -> None:
    """`nohup whyidle run -- CMD` has the same effect as `nohup CMD`."""
    script = ["grep", "SigIgn", "/proc/self/status"]
    words = [*ignoring(number), *WHYIDLE_RUN, "--", *script]
    done = subprocess.run(words, env=clean_env(), capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout.split()[1], 16) & 1 << number - 1


def test_the_command_has_the_standard_streams() -> None:
    done = subprocess.run(
        [*WHYIDLE_RUN, "--", "cat"],
        input="through",
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "through")


# -- how it is called


def test_sets_the_environment() -> None:
    done = whyidle("--dir", "ledgers", "--run", "r1", "--", "env", PYTHONPATH="/a:/b", cwd=Path("/tmp"))
    lines = done.stdout.splitlines()
    assert "WHYIDLE=1" in lines
    assert "WHYIDLE_DIR=/tmp/ledgers" in lines
    assert "WHYIDLE_RUN=r1" in lines
    assert f"PYTHONPATH={run_command.AUTOLOAD_DIR}:/a:/b" in lines


def test_environment_without_options_keeps_what_is_set() -> None:
    lines = whyidle("--", "env", WHYIDLE_DIR="/elsewhere").stdout.splitlines()
    assert "WHYIDLE_DIR=/elsewhere" in lines
    assert not [line for line in lines if line.startswith("WHYIDLE_RUN=")]
    assert f"PYTHONPATH={run_command.AUTOLOAD_DIR}" in lines, "no empty entry: that would be the working directory"


def test_running_it_twice_changes_nothing() -> None:
    env = run_command.environment({"PYTHONPATH": "/a"}, None, None)
    assert run_command.environment(env, None, None) == env


def test_changes_nothing_if_switched_off() -> None:
    plain = subprocess.run(["env"], env=clean_env(WHYIDLE="0"), capture_output=True, text=True, timeout=60, check=True)
    assert whyidle("--dir", "/x", "--", "env", WHYIDLE="0").stdout == plain.stdout


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--", "a", "b"], ["a", "b"]),
        (["a", "--lr", "1"], ["a", "--lr", "1"]),
        (["a", "--", "b"], ["a", "--", "b"]),
        (["--", "a", "--", "b"], ["a", "--", "b"]),
        (["--run", "r", "a", "--run", "s"], ["a", "--run", "s"]),
        (["--run", "r", "--", "a", "--run", "s"], ["a", "--run", "s"]),
        (["--", "--odd"], ["--odd"]),
    ],
)
def test_finds_where_the_command_begins(words: list[str], command: list[str]) -> None:
    """Both ways of calling: the whole line through argparse, and split at the first `--` as the main program does."""
    parser = argparse.ArgumentParser()
    run_command.add_arguments(parser)
    at = words.index("--") if "--" in words else None
    args = parser.parse_args(words[:at])
    assert run_command.command_line(args.command, None if at is None else words[at + 1 :]) == command


@pytest.mark.parametrize("arguments", [(), ("--",), ("--run", "r"), ("--run", "r", "--")])
def test_rejects_a_missing_command(arguments: tuple[str, ...]) -> None:
    done = whyidle(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: whyidle run")


def test_accepts_a_command_without_dashes() -> None:
    assert whyidle("sh", "-c", "echo $0 $1", "x", "--run").stdout == "x --run\n"


def test_reports_a_command_that_is_not_found(tmp_path: Path) -> None:
    for command in ("no-such-command-here", str(tmp_path / "none"), str(Path(__file__) / "below-a-file")):
        done = whyidle("--", command)
        assert (done.returncode, done.stderr) == (127, f"whyidle: {command}: command not found\n")


def test_reports_a_command_that_is_not_executable(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo\n")
    done = whyidle("--", str(plain))
    assert (done.returncode, done.stderr) == (126, f"whyidle: {plain} cannot be executed: Permission denied\n")
    plain.chmod(0o755)
    done = whyidle("--", str(plain))
    assert (done.returncode, done.stderr) == (126, f"whyidle: {plain} cannot be executed: Exec format error\n")


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["-E", "t.py", "-I"], "E"),
        (["-uIB", "-m", "mod", "-E"], "uIB"),
        (["-W", "E", "-X", "importtime", "-Wignore", "-u", "t.py"], "u"),
        (["-Ec", "code", "-S"], "E"),
        (["--check-hash-based-pycs", "never", "-S", "-"], "S"),
        (["t.py", "-E"], ""),
        ([], ""),
    ],
)
def test_reads_the_flags_of_a_python_command(words: list[str], flags: str) -> None:
    assert run_command.python_flags(words) == flags


@pytest.mark.parametrize("flag", ["-E", "-I", "-S"])
def test_warns_about_a_python_that_it_cannot_reach(flag: str) -> None:
    done = whyidle("--", sys.executable, flag, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    installed = subprocess.run(
        [sys.executable, flag, "-c", "import sys; sys.exit('_whyidle_autoload' not in sys.modules)"],
        env=clean_env(WHYIDLE="1"),
        timeout=60,
        check=False,
    )
    assert done.stderr.count("nothing will be recorded") == installed.returncode
    assert done.stderr.count("\n") == installed.returncode


# -- which processes get the hooks


def test_reaches_a_script(fake_torch: Path) -> None:
    (fake_torch / "train.py").write_text(f"import sys, torch\nprint({MARK}, sys.argv[1:])\n")
    done = whyidle("--", sys.executable, str(fake_torch / "train.py"), "--lr", "1")
    assert (done.stdout, done.stderr) == ("True ['--lr', '1']\n", "")
    assert whyidle("--", sys.executable, str(fake_torch / "train.py"), WHYIDLE="0").stdout == "False []\n"


def test_reaches_a_module(fake_torch: Path) -> None:
    (fake_torch / "pkg").mkdir()
    (fake_torch / "pkg" / "__init__.py").write_text("")
    (fake_torch / "pkg" / "train.py").write_text(f"import sys, torch\nprint(__name__, {MARK})\n")
    assert whyidle("--", sys.executable, "-m", "pkg.train", cwd=fake_torch).stdout == "__main__ True\n"


def test_reaches_a_child_of_a_shell_script(fake_torch: Path) -> None:
    script = fake_torch / "job.sh"
    script.write_text(f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{fake_torch}"\n"$@"\n')
    script.chmod(0o755)
    done = whyidle("--", str(script), sys.executable, "-c", f"import sys, torch; print({MARK})")
    assert done.stdout == "True\n", done.stderr


def test_reaches_spawned_and_forked_children(fake_torch: Path) -> None:
    (fake_torch / "spawn.py").write_text(
        "import multiprocessing, sys\n"
        "def look(queue):\n"
        "    import torch\n"
        f"    queue.put({MARK})\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'forkserver', 'fork'):\n"
        "        context = multiprocessing.get_context(method)\n"
        "        queue = context.SimpleQueue()\n"
        "        child = context.Process(target=look, args=(queue,))\n"
        "        child.start(); print(method, queue.get()); child.join()\n"
    )
    done = whyidle("--", sys.executable, str(fake_torch / "spawn.py"))
    assert done.stdout == "spawn True\nforkserver True\nfork True\n", done.stderr


def test_runs_the_users_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.mine = 'ran'\n")
    done = whyidle("--", sys.executable, "-c", "import sys; print(sys.mine)", PYTHONPATH=str(tmp_path))
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_reaches_an_environment_without_whyidle(fake_torch: Path) -> None:
    """The command may use another interpreter: here, one that does not see any site-packages."""
    bare = fake_torch / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=120)
    code = f"import sys, torch; print({MARK}, sys.modules['whyidle'].__file__)"
    done = whyidle("--", str(bare / "bin" / "python"), "-c", code, PYTHONPATH=str(fake_torch))
    root = Path(run_command.AUTOLOAD_DIR).parents[1]
    assert done.stdout == f"True {root / '__init__.py'}\n", done.stderr


def test_torchrun_reaches_every_rank_and_hands_on_one_that_fails(fake_torch: Path, tmp_path: Path) -> None:
    """With the real launcher. test_scripts.py has ranks with the real torch, which end normally."""
    (tmp_path / "rank.py").write_text(
        f"import os, sys, time; sys.path.insert(0, {str(fake_torch)!r}); import torch\n"
        "from pathlib import Path\n"
        "here = Path(__file__).parent\n"
        f"(here / ('out' + os.environ['RANK'])).write_text(str({MARK}))\n"
        "while len(list(here.glob('out?'))) < 2:\n"
        "    time.sleep(0.05)\n"  # torchrun ends the others once one has failed
        "sys.exit(7)\n"
    )
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    words = (*launcher, "--nproc-per-node=2", str(tmp_path / "rank.py"))
    done = whyidle("--dir", str(tmp_path / "ledgers"), "--", *words)
    assert done.returncode == 1, done.stderr  # torchrun's own, whatever the rank's was
    assert "exitcode  : 7" in done.stderr
    assert [(tmp_path / f"out{rank}").read_text() for rank in range(2)] == ["True", "True"]


def test_python_without_torch_starts_no_hooks() -> None:
    done = whyidle("--", sys.executable, "-c", "import sys; print([m for m in sys.modules if m == 'whyidle'])")
    assert done.stdout == "[]\n"

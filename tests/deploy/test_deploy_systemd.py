"""The unit, the ledgers' directory and the user, as systemd's own tools read them, and the rights of that user."""

from __future__ import annotations

import argparse
import codecs
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support_ledgers import Spec, children, ended, until

from whyidle.cli import agent
from whyidle.ledger.directory import reap

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
DOCS = FOLDER.parent.parent / "docs"
UNIT = (FOLDER / "whyidle-agent.service").read_text()
SEE_ALL = (FOLDER / "whyidle-agent.service.d" / "see-all-ranks.conf.example").read_text()
PROGRAM = "/opt/whyidle/bin/whyidle"
MOST_EXPOSED = 2.5
"""systemd 252 says 2.2. Other versions use other weights."""

needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd's tools")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of several users")


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def unit(folder: Path, more: str = "") -> Path:
    """The unit in a directory, with a program that exists."""
    path = folder / "whyidle-agent.service"
    path.write_text(UNIT.replace(PROGRAM, sys.executable) + more)
    return path


def settings(text: str) -> list[tuple[str, str]]:
    found = re.findall(r"^([A-Z]\w+)=(.*)$", text, re.MULTILINE)
    return [(name, value) for name, value in found]


@needs_systemd
def test_systemd_verifies_the_unit(tmp_path: Path) -> None:
    for more in ("", SEE_ALL):
        done = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit(tmp_path, more))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_systemd
def test_the_exposure_level_of_the_unit_is_as_documented(tmp_path: Path) -> None:
    for more, most in (("", MOST_EXPOSED), (SEE_ALL, MOST_EXPOSED + 0.5)):
        done = run("systemd-analyze", "security", "--offline=yes", "--no-pager", unit(tmp_path, more))
        exposed = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
        assert exposed, done.stderr
        assert 1.0 < float(exposed[1]) <= most


def test_the_sandbox_allows_what_the_agent_needs() -> None:
    said = settings(UNIT)
    names = {name for name, _ in said}
    # Each of them would hide something from a collector, or remove the ledgers' directory. The unit has the reasons.
    assert not names & {"ProtectClock", "PrivateDevices", "ProtectProc", "ProcSubset", "PrivateNetwork", "PrivateUsers"}
    assert not names & {"RemoveIPC", "MemoryDenyWriteExecute", "ExecReload"}
    # @privileged contains @clock, so the next entry of the list decides.
    filters = [value for name, value in said if name == "SystemCallFilter"]
    assert filters[-1] == "adjtimex clock_adjtime"


def test_the_agent_accepts_the_command_line() -> None:
    [command] = [value for name, value in settings(UNIT) if name == "ExecStart"]
    assert shlex.split(command) == [PROGRAM, "agent", "$WHYIDLE_AGENT_ARGS"]
    lines = re.findall(r"^(?:# )?WHYIDLE_AGENT_ARGS=(.*)$", (FOLDER / "agent.env").read_text(), re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        parser = argparse.ArgumentParser()
        agent.add_arguments(parser)
        parser.parse_args(line.split())


@needs_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_seeing_all_ranks_needs_both_capabilities() -> None:
    """The capabilities of the drop-in. With only one of them, the important files of another user's rank are hidden."""
    [said] = [value.split() for name, value in settings(SEE_ALL) if name == "AmbientCapabilities"]
    names = [name.removeprefix("CAP_").lower() for name in said]
    as_rank = ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "sleep", "60"]
    with subprocess.Popen(as_rank) as rank:
        try:
            until(lambda: Path(f"/proc/{rank.pid}/comm").read_text() == "sleep\n")
            assert _sees(names, rank.pid)
            assert not any(_sees([name], rank.pid) for name in names)
        finally:
            rank.kill()


def _sees(capabilities: list[str], pid: int) -> bool:
    """Whether a user with these capabilities can read the environment and the I/O of another user's process."""
    given = ",".join(f"+{name}" for name in capabilities)
    user = ["setpriv", "--reuid=1235", "--regid=1235", "--clear-groups"]
    words = [*user, f"--inh-caps={given}", f"--ambient-caps={given}", "cat", f"/proc/{pid}/environ", f"/proc/{pid}/io"]
    return subprocess.run(words, capture_output=True, timeout=60).returncode == 0


@needs_systemd
@needs_root
def test_the_user_is_a_system_user(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", FOLDER / "whyidle.sysusers.conf")
    assert done.returncode == 0, done.stderr
    [line] = [line for line in (tmp_path / "etc/passwd").read_text().splitlines() if line.startswith("whyidle:")]
    name, _, uid, _, _, _, shell = line.split(":")
    assert {value for name, value in settings(UNIT) if name in ("User", "Group")} == {name}
    assert 0 < int(uid) < 1000
    assert shell.endswith("nologin")


def test_files_on_the_page_exist_and_name_their_destination() -> None:
    lines = re.findall(r"^    install (?!-d)(.*)$", (DOCS / "hosts.md").read_text(), re.MULTILINE)
    installed = {Path(words.split()[-2]).name: words.split()[-1] for words in lines}
    assert installed.keys() == {path.name for path in FOLDER.iterdir() if path.is_file()}
    for name, target in installed.items():
        assert re.match(rf"# {re.escape(target)}\b", (FOLDER / name).read_text()), name
    lines = re.findall(r"^    install (?!-d)(.*)$", (DOCS / "slurm.md").read_text(), re.MULTILINE)
    for words in map(str.split, lines):
        assert words[-1] == "/etc/whyidle/slurm/"
        assert all((DOCS.parent / source).is_file() for source in words[2:-1]), words


# -- the folder


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], Path]:
    """Lets systemd-tmpfiles create the directory, for another user and elsewhere, and returns it."""
    text = (FOLDER / "whyidle.tmpfiles.conf").read_text()
    assert re.search(r"^d /dev/shm/whyidle 1777 whyidle whyidle -$", text, re.MULTILINE)
    config = tmp_path / "whyidle.conf"
    config.write_text(text.replace("/dev/shm", str(tmp_path / "shm")).replace(" whyidle whyidle ", " nobody nogroup "))
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm").chmod(0o1777)

    def create() -> Path:
        run("systemd-tmpfiles", "--create", config)
        return tmp_path / "shm" / "whyidle"

    return create


def _about(path: Path) -> tuple[str, int]:
    status = path.lstat()
    return stat.filemode(status.st_mode), status.st_uid


@needs_systemd
@needs_root
def test_ledger_folder_is_writable_by_all_and_owned_by_the_agent(make: Callable[[], Path]) -> None:
    folder = make()
    assert _about(folder) == ("drwxrwxrwt", 65534)
    (folder / "0-1-a.ledger").write_bytes(b"")
    os.chown(folder, 1234, 1234)  # a rank was faster, under a strict umask
    folder.chmod(0o700)
    assert make() == folder
    assert _about(folder) == ("drwxrwxrwt", 65534)
    assert [path.name for path in folder.iterdir()] == ["0-1-a.ledger"]


@needs_systemd
@needs_root
def test_does_not_follow_a_link_in_place_of_the_ledger_folder(make: Callable[[], Path], tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    link = tmp_path / "shm" / "whyidle"
    link.symlink_to(target)
    os.lchown(link, 1234, 1234)
    make()
    assert _about(target) == ("drwxr-xr-x", 0)


@pytest.mark.ages
@needs_root
def test_only_its_owner_removes_ledgers_of_ended_ranks(tmp_path: Path) -> None:
    """So the agent needs no right for this. It removes no ledgers of live ranks."""
    folder = tmp_path / "ledgers"
    folder.mkdir()
    folder.chmod(0o1777)
    os.chown(folder, 65534, 65534)
    old = ended(folder, Spec(rank=0, idle=7200), Spec(rank=1, idle=7200))
    with children(folder, Spec(rank=2, idle=7200)) as [live]:
        for path in (*old, live.path):
            os.chown(path, 1234, 1234)
        assert _as(1235, folder) == 0
        assert _as(65534, folder) == 2
        assert [str(path) for path in folder.iterdir()] == [live.path]


def _as(uid: int, folder: Path) -> int:
    """How many ledgers a user without other rights removes. Forked, because that user may not have access to this
    Python."""
    codecs.lookup("ascii")  # reap() needs it, and that user may not be able to import it
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    child = os.fork()
    if child == 0:
        os.fchdir(descriptor)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os._exit(reap(".", 3600.0))
    os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

"""The Slurm scripts, with the environments that Slurm gives them, in separate directories.

Slurm itself is not installed. What it does around the scripts comes from its documentation and sources: no search path
for prologs and epilogs, no stdin or stderr for a TaskProlog, whose `export` lines become the task's environment.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support_agent import WHYIDLE
from support_ledgers import Spec, children, ended

from whyidle.agent.parsers.slurm import slurm_job

FOLDER = Path(__file__).parents[2] / "deploy" / "slurm"
JOB, USER = "4242", 12345
OF_JOB = {"SLURM_JOB_ID": JOB, "SLURM_JOB_UID": str(USER), "SLURM_JOB_GID": str(USER), "SLURMD_NODENAME": "n1"}
"""The whole environment of a Prolog and an Epilog. There is no PATH."""

needs_bash = pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="needs bash")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv: files of several users"
)
pytestmark = needs_bash


class Site:
    """The scripts as on a cluster, with their own settings."""

    def __init__(self, folder: Path):
        self.scripts = folder / "slurm"
        shutil.copytree(FOLDER, self.scripts)
        self.shared_memory = folder / "shm"
        self.shared_memory.mkdir()
        self.shared_memory.chmod(0o1777)
        self.ledgers = self.shared_memory / "whyidle"
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.set(LEDGER_DIR=self.ledgers, OWNER="nobody", KEEP_SECONDS=0, PYTHON=sys.executable)

    def set(self, **settings: object) -> None:
        with open(self.scripts / "slurm.env", "a") as file:
            file.writelines(f"{name}={value}\n" for name, value in settings.items())

    def program(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, script: str, env: Mapping[str, str] = OF_JOB) -> str:
        """Runs a Prolog or an Epilog, which must not fail, and returns its output."""
        done = subprocess.run([self.scripts / script], env=dict(env), capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, "")  # otherwise Slurm drains the node
        return done.stderr

    def task(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment of a task, as slurmstepd makes it from the output of the TaskProlog."""
        closed = ["/bin/bash", "-c", 'exec "$0" <&- 2>&-', self.scripts / "task_prolog.sh"]
        done = subprocess.run(closed, env=dict(env), capture_output=True, text=True, timeout=60, check=True)
        found = dict(env)
        for line in done.stdout.splitlines():
            how, _, rest = line.partition(" ")
            assert how == "export", line  # the user would see `print`
            name, equals, value = rest.partition("=")
            assert equals, line
            found[name] = value
        return found


@pytest.fixture
def site() -> Iterator[Site]:
    """Not in pytest's directory, which other users may not enter."""
    with tempfile.TemporaryDirectory(prefix="whyidle-slurm-") as folder:
        os.chmod(folder, 0o755)
        yield Site(Path(folder))


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "hooks"
    subprocess.run([*WHYIDLE, "inject", str(folder)], check=True, capture_output=True, timeout=60)
    return folder


def about(path: Path) -> tuple[str, int]:
    status = path.lstat()
    return stat.filemode(status.st_mode), status.st_uid


EVERYBODYS = ("drwxrwxrwt", 65534)


# -- Prolog


@needs_root
def test_the_prolog_creates_the_ledger_folder(site: Site) -> None:
    for _ in range(2):
        assert site.run("prolog.sh") == ""
        assert about(site.ledgers) == EVERYBODYS


@needs_root
def test_the_prolog_takes_over_a_folder_made_by_a_rank(site: Site) -> None:
    site.ledgers.mkdir(mode=0o700)
    (site.ledgers / "0-1-a.ledger").touch()
    os.chown(site.ledgers, USER, USER)
    assert site.run("prolog.sh") == ""
    assert about(site.ledgers) == EVERYBODYS
    assert (site.ledgers / "0-1-a.ledger").exists()


@needs_root
def test_the_prolog_follows_no_link(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    site.ledgers.symlink_to(target)
    os.lchown(site.ledgers, USER, USER)
    assert "no folder: remove it" in site.run("prolog.sh")
    assert about(target) == ("drwxr-xr-x", 0)


@needs_root
def test_a_prolog_that_fails_says_so_and_exits_with_0(site: Site) -> None:
    site.ledgers.touch()
    assert "no folder: remove it" in site.run("prolog.sh")
    site.ledgers.unlink()
    site.set(OWNER="nobody-of-this-name")
    assert site.run("prolog.sh") == ""
    assert about(site.ledgers) == ("drwxrwxrwt", 0)
    site.set(LEDGER_DIR=site.ledgers / "missing" / "folder")
    assert "cannot make" in site.run("prolog.sh")


# -- TaskProlog

TASKS: list[tuple[str, dict[str, str], dict[str, str]]] = [
    # what, environment of the job, what is added to it
    ("says nothing", {}, {"WHYIDLE_DIR": "@"}),
    ("has a folder of its own", {"WHYIDLE_DIR": "/run/mine"}, {}),
    ("asks for it", {"WHYIDLE": "1"}, {"WHYIDLE_DIR": "@", "PYTHONPATH": "&"}),
    ("has a path", {"WHYIDLE": "1", "PYTHONPATH": "/lib"}, {"WHYIDLE_DIR": "@", "PYTHONPATH": "&:/lib"}),
    ("has it from the batch script", {"WHYIDLE": "1", "PYTHONPATH": "&", "WHYIDLE_DIR": "@"}, {}),
    ("does not want it", {"WHYIDLE": "0"}, {}),
    ("sets names of ours", {"EVERY_JOB": "1", "LEDGER_DIR": "/x", "HOOKS_DIR": "/x"}, {"WHYIDLE_DIR": "@"}),
]


def _filled(env: Mapping[str, str], site: Site, hooks: Path) -> dict[str, str]:
    starter = f"{hooks}/whyidle/torch_hooks/autoload"
    return {name: value.replace("@", str(site.ledgers)).replace("&", starter) for name, value in env.items()}


@pytest.mark.parametrize(("env", "added"), [row[1:] for row in TASKS], ids=[row[0] for row in TASKS])
def test_the_task_prolog_adds_the_variables(
    site: Site, hooks: Path, env: dict[str, str], added: dict[str, str]
) -> None:
    site.set(HOOKS_DIR=hooks)
    said = _filled({"SLURM_JOB_ID": JOB, **env}, site, hooks)
    assert site.task(said) == {**said, **_filled(added, site, hooks)}


def test_a_site_may_have_every_job_recorded(site: Site, tmp_path: Path) -> None:
    site.set(EVERY_JOB=1, HOOKS_DIR=tmp_path / "missing")
    assert site.task({}) == {"WHYIDLE_DIR": str(site.ledgers), "WHYIDLE": "1"}
    assert site.task({"WHYIDLE": "0"}) == {"WHYIDLE": "0"}


ASK = """
import json, sys
armed = "_whyidle_late_import" in sys.modules
from whyidle.torch_hooks.identity import identify
who = identify()
print(json.dumps([armed, who.run, who.rank, who.world_size, who.local_rank, who.attempt]))
"""


def test_a_task_is_recorded_under_its_job(site: Site, hooks: Path) -> None:
    """The hooks wait for torch, and know job, rank and attempt."""
    site.set(EVERY_JOB=1, HOOKS_DIR=hooks)
    step = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SLURM_RESTART_COUNT": "2"}
    env = site.task({**OF_JOB, **step})
    done = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [True, JOB, 5, 8, 1, 2]
    job = slurm_job(env, b"")
    assert job is not None
    assert (job.job_id, job.slurm_node) == (JOB, "n1")


def test_the_command_works_in_a_task_that_has_the_hooks(site: Site, hooks: Path) -> None:
    """The directory has only the hooks, and must not hide an installed whyidle."""
    site.set(EVERY_JOB=1, HOOKS_DIR=hooks)
    env = site.task({**OF_JOB, "PATH": os.environ["PATH"]})
    words = [*WHYIDLE, "run", "--", sys.executable, "-c", "print('ran')"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


# -- Epilog


def _python_for_all() -> bool:
    words = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", sys.executable, "-I", "-c"]
    return subprocess.run([*words, "import whyidle"], cwd="/", capture_output=True, timeout=60).returncode == 0


@pytest.fixture
def crowd(site: Site) -> dict[str, Path]:
    """Ledgers in the directory, by kind."""
    if not _python_for_all():
        pytest.skip("needs a Python with whyidle that any user may start")
    site.run("prolog.sh")
    specs = {
        "of the job": Spec(run=JOB, rank=0),
        "of its other rank": Spec(run=JOB, rank=1),
        "of another job": Spec(run="4243"),
        "of a run with a name": Spec(run="llama"),
        "of somebody who calls a run so": Spec(run=JOB, rank=2),
    }
    found = dict(zip(specs, map(Path, ended(site.ledgers, *specs.values())), strict=True))
    for what, path in found.items():
        os.chown(path, USER + ("somebody" in what), USER)
    (site.ledgers / "notes.ledger").write_text("no ledger")
    os.chown(site.ledgers / "notes.ledger", USER, USER)
    return found


OF_THE_JOB = {"of the job", "of its other rank"}


@needs_root
def test_the_epilog_removes_the_ledgers_of_its_job_alone(site: Site, crowd: dict[str, Path]) -> None:
    assert site.run("epilog.sh") == ""
    assert {what for what, path in crowd.items() if path.exists()} == crowd.keys() - OF_THE_JOB
    assert (site.ledgers / "notes.ledger").exists()


@needs_root
def test_a_requeued_job_keeps_its_ledgers(site: Site, crowd: dict[str, Path]) -> None:
    """They show its new attempt which steps it repeats."""
    with children(site.ledgers, Spec(run=JOB, attempt=1)) as [child]:
        os.chown(child.path, USER, USER)
        site.run("epilog.sh")
    assert all(path.exists() for path in crowd.values())


@needs_root
def test_ledgers_are_kept_for_a_while(site: Site, crowd: dict[str, Path]) -> None:
    site.program("systemd-run", '#!/bin/bash\nprintf "%s\\n" "$@" >"${0%/*}/asked"\n')
    site.set(KEEP_SECONDS=900, PATH=f"{site.programs}:/usr/bin:/bin")
    assert site.run("epilog.sh") == ""
    assert all(path.exists() for path in crowd.values())
    asked = (site.programs / "asked").read_text().splitlines()
    assert asked[: asked.index("setpriv")] == [
        "--quiet",
        "--collect",
        "--on-active=900",
        f"--unit=whyidle-forget-{JOB}",
    ]
    subprocess.run(asked[asked.index("setpriv") :], check=True, timeout=60)
    assert {what for what, path in crowd.items() if path.exists()} == crowd.keys() - OF_THE_JOB


@needs_root
@pytest.mark.parametrize("env", [{}, {"SLURM_JOB_ID": JOB}, {**OF_JOB, "SLURM_JOB_UID": "0; rm"}])
def test_an_epilog_without_a_job_id_removes_nothing(site: Site, crowd: dict[str, Path], env: dict[str, str]) -> None:
    assert site.run("epilog.sh", env) == ""
    assert all(path.exists() for path in crowd.values())


# -- batch scripts

SRUN = r"""#!/bin/bash
# Two tasks on two nodes, one after the other; with options of its own, one on each node as well.
while [[ $1 == --* ]]; do shift; done
status=0
for task in 0 1; do
    SLURM_PROCID=$task SLURM_LOCALID=0 SLURM_NTASKS=2 "$@" || status=$?
done
exit "$status"
"""
TELL = """#!{python}
import json, sys
from whyidle.torch_hooks.identity import identify
who = identify()
said = [who.run, who.rank, who.world_size, who.local_rank, *sys.argv[1:]]
open({file!r}, "a").write(json.dumps(said) + "\\n")
sys.exit(3)
"""


def _batch(site: Site, script: str) -> tuple[int, list[list[object]], str]:
    """Its exit status, what its tasks report about themselves, and its output."""
    said = site.programs / "said"
    site.program("srun", SRUN)
    site.program("scontrol", "#!/bin/bash\necho gpu-1\necho gpu-2\n")
    site.program("whyidle", f'#!/bin/bash\nexec {sys.executable} -m whyidle.cli.main "$@"\n')
    for name in ("torchrun", "python3"):
        site.program(name, TELL.format(python=sys.executable, file=str(said)))
    env = {
        "SLURM_JOB_ID": JOB,
        "SLURM_JOB_NODELIST": "gpu-[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "WHYIDLE_DIR": str(site.ledgers),
        "PATH": f"{site.programs}:/usr/bin:/bin",
    }
    done = subprocess.run(
        ["/bin/bash", site.scripts / script, "train.py", "--lr", "1e-3"],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, [json.loads(line) for line in said.read_text().splitlines()], done.stdout + done.stderr


def test_the_batch_script_runs_with_torchrun(site: Site) -> None:
    ended(site.shared_memory, Spec(run="other"))
    code, said, printed = _batch(site, "torchrun.sbatch")
    assert code == 3  # the status of the training, even if the report fails
    options = ["--nnodes", "2", "--nproc-per-node", "8", "--rdzv-backend", "c10d", "--rdzv-endpoint", "gpu-1:29500"]
    assert [words[4:] for words in said] == [[*options, "--rdzv-id", JOB, "train.py", "--lr", "1e-3"]] * 2
    assert {words[0] for words in said} == {JOB}
    assert printed.count(f"no ledger of run {JOB}") == 2


def test_the_batch_script_runs_with_a_task_per_gpu(site: Site) -> None:
    code, said, _ = _batch(site, "srun.sbatch")
    assert code == 3
    assert said == [[JOB, rank, 2, 0, "train.py", "--lr", "1e-3"] for rank in (0, 1)]


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
def test_passes_shellcheck() -> None:
    scripts = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".sh", ".sbatch", ".env"))
    words = ["shellcheck", "--external-sources", "--shell=bash", "--exclude=SC2034", "slurm.env"]
    assert subprocess.run(words, cwd=FOLDER, capture_output=True, text=True).stdout == ""
    scripts.remove("slurm.env")
    done = subprocess.run(["shellcheck", "--external-sources", *scripts], cwd=FOLDER, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    for script in scripts:
        assert bool(os.stat(FOLDER / script).st_mode & 0o111) == script.endswith(".sh")

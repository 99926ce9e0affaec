"""Callbacks at the import of a module, and the two ways into a process that does not mention whyidle."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import pickle
import pkgutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from whyidle.torch_hooks import late_import
from whyidle.torch_hooks.late_import import forget, when_imported

ROOT = Path(late_import.__file__).parents[1]
AUTOLOAD = ROOT / "torch_hooks" / "autoload"


class Seen(list):
    """The callback for ``when_imported``, which records its calls."""

    def __call__(self, module: ModuleType) -> None:
        self.append((module.__name__, getattr(module, "DONE", None)))

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Writes modules into a directory on sys.path. After the test, modules from there are forgotten."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_module(path: str, text: str = "DONE = True\n") -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        importlib.invalidate_caches()

    yield write_module
    for name in set(sys.modules) - before:
        del sys.modules[name]
    for _, do in list(late_import._waiting):
        forget(do)


def test_calls_back_at_once_for_a_loaded_module() -> None:
    seen = Seen()
    when_imported("json", seen)
    assert list(seen) == [("json", None)]


def test_calls_back_once_after_the_module_has_run(write: Callable[..., None]) -> None:
    write("late_a.py")
    seen = Seen()
    when_imported("late_a", seen)
    when_imported("late_a", seen)
    assert list(seen) == []
    module = importlib.import_module("late_a")
    assert list(seen) == [("late_a", True)]
    importlib.reload(module)
    assert list(seen) == [("late_a", True)]


def test_waiting_imports_nothing(write: Callable[..., None]) -> None:
    write("late_pkg/__init__.py")
    write("late_pkg/inner.py")
    seen = Seen()
    when_imported("late_pkg.inner", seen)
    importlib.import_module("late_pkg")
    assert "late_pkg.inner" not in sys.modules
    assert list(seen) == []
    importlib.import_module("late_pkg.inner")
    assert list(seen) == [("late_pkg.inner", True)]


def test_callbacks_for_one_module_run_in_order(write: Callable[..., None]) -> None:
    write("late_b.py")
    calls: list[int] = []
    functions = [lambda module, i=i: calls.append(i) for i in range(5)]
    for do in functions:
        when_imported("late_b", do)
    forget(functions[2])
    importlib.import_module("late_b")
    assert calls == [0, 1, 3, 4]


def test_a_cancelled_callback_is_not_called(write: Callable[..., None]) -> None:
    write("late_c.py")
    seen = Seen()
    when_imported("late_c", seen)
    when_imported("late_c.other", seen)
    assert sys.meta_path.count(late_import._finder) == 1
    forget(seen)
    forget(seen)
    assert not late_import._waiting
    importlib.import_module("late_c")
    assert list(seen) == []


def test_a_callback_may_wait_for_another_module(write: Callable[..., None]) -> None:
    write("late_d.py")
    write("late_e.py")
    seen = Seen()
    when_imported("late_d", lambda module: when_imported("late_e", seen))
    importlib.import_module("late_d")
    importlib.import_module("late_e")
    assert list(seen) == [("late_e", True)]


def test_an_exception_of_a_callback_does_not_reach_the_import(
    write: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write("late_f.py")
    write("late_g.py")
    seen = Seen()

    def fail(module: ModuleType) -> None:
        raise ValueError("of our own")

    for name in ("late_f", "late_g"):
        when_imported(name, fail)
        when_imported(name, seen)
    importlib.import_module("late_f")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("WHYIDLE_DEBUG", "1")
    importlib.import_module("late_g")
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "of our own" in err
    assert list(seen) == [("late_f", True), ("late_g", True)]


def test_an_import_that_fails_is_waited_for_again(write: Callable[..., None]) -> None:
    write("late_h.py", "import sys\nif not hasattr(sys, 'late_h'): raise ImportError('not yet')\nDONE = True\n")
    seen = Seen()
    when_imported("late_h", seen)
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module("late_h")
    assert "late_h" not in sys.modules
    assert list(seen) == []
    sys.late_h = True  # type: ignore[attr-defined]
    try:
        importlib.import_module("late_h")
    finally:
        del sys.late_h  # type: ignore[attr-defined]
    assert list(seen) == [("late_h", True)]


def test_importing_a_missing_module_fails_as_usual() -> None:
    seen = Seen()
    when_imported("late_nowhere", seen)
    try:
        assert importlib.util.find_spec("late_nowhere") is None
        with pytest.raises(ModuleNotFoundError, match="No module named 'late_nowhere'"):
            importlib.import_module("late_nowhere")
    finally:
        forget(seen)


def test_spec_and_loader_are_unchanged(write: Callable[..., None]) -> None:
    source = "class Thing:\n    pass\n\n\nDONE = True\n"
    write("late_i/__init__.py", source)
    write("late_i/data.txt", "data")
    seen = Seen()
    when_imported("late_i", seen)
    looked_up = importlib.util.find_spec("late_i")
    assert looked_up is not None
    assert type(looked_up.loader) is SourceFileLoader
    module = importlib.import_module("late_i")
    assert list(seen) == [("late_i", True)]
    assert type(module.__loader__) is SourceFileLoader
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert "exec_module" not in vars(module.__loader__)
    assert inspect.getsource(module) == source
    assert pkgutil.get_data("late_i", "data.txt") == b"data"
    assert type(pickle.loads(pickle.dumps(module.Thing()))) is module.Thing
    assert pickle.loads(pickle.dumps(module.__spec__)).name == "late_i"
    assert importlib.reload(module) is module


def test_works_with_a_spec_that_was_looked_up_by_hand(write: Callable[..., None]) -> None:
    """As lazy loaders do: the module is executed long after the search."""
    write("late_j.py")
    write("late_s.py")
    seen = Seen()
    when_imported("late_j", seen)
    spec = importlib.util.find_spec("late_j")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["late_j"] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)
    importlib.import_module("late_s")
    assert list(seen) == []
    assert module.DONE
    assert list(seen) == [("late_j", True)]


def test_a_lazy_module_stays_lazy(write: Callable[..., None]) -> None:
    """A finder with lazy loaders is between us and the execution."""
    write("late_t.py")
    write("late_u.py")

    class Lazy:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            spec = PathFinder.find_spec(name) if name == "late_t" else None
            if spec is not None and spec.loader is not None:
                spec.loader = importlib.util.LazyLoader(spec.loader)
            return spec

    seen = Seen()
    when_imported("late_t", seen)
    sys.meta_path.insert(sys.meta_path.index(late_import._finder) + 1, Lazy)  # type: ignore[arg-type]
    try:
        module = importlib.import_module("late_t")
        assert type(module).__name__ == "_LazyModule"
        assert list(seen) == []
        assert module.DONE
        importlib.import_module("late_u")
        assert list(seen) == [("late_t", True)]
    finally:
        sys.meta_path.remove(Lazy)  # type: ignore[arg-type]


def test_a_module_may_replace_itself_in_sys_modules(write: Callable[..., None]) -> None:
    write(
        "late_k.py", "import sys, types\nm = types.ModuleType('late_k')\nm.DONE = 'other'\nsys.modules['late_k'] = m\n"
    )
    seen = Seen()
    when_imported("late_k", seen)
    importlib.import_module("late_k")
    assert list(seen) == [("late_k", "other")]


def test_modules_from_one_zip_share_a_loader(tmp_path: Path, write: Callable[..., None]) -> None:
    archive = tmp_path / "late.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("zip_a", "zip_b", "zip_c"):
            file.writestr(f"{name}.py", "DONE = __name__\n")
    sys.path.insert(0, str(archive))
    seen = Seen()
    try:
        when_imported("zip_a", seen)
        when_imported("zip_c", seen)
        for _ in range(3):
            importlib.util.find_spec("zip_a")
        for name in ("zip_b", "zip_c", "zip_a"):
            importlib.import_module(name)
    finally:
        sys.path.remove(str(archive))
    assert list(seen) == [("zip_c", "zip_c"), ("zip_a", "zip_a")]


def test_namespace_and_built_in_modules_are_noticed_at_the_next_import(write: Callable[..., None]) -> None:
    write("late_space/inner.py")
    write("late_l.py")
    seen = Seen()
    when_imported("late_space", seen)
    space = importlib.import_module("late_space")
    assert space.__file__ is None
    importlib.import_module("late_space.inner")
    assert list(seen) == [("late_space", None)]

    removed = sys.modules.pop("_stat", None)
    try:
        when_imported("_stat", seen)
        importlib.import_module("_stat")
        importlib.import_module("late_l")
    finally:
        if removed is not None:
            sys.modules["_stat"] = removed
    assert list(seen)[1:] == [("_stat", None)]


def test_waits_for_a_half_imported_module(write: Callable[..., None]) -> None:
    """The request comes during the module's own import, whose execution was not observed."""
    write("late_m.py", "import late_n\nlate_n.ask()\nimport late_o\nDONE = True\n")
    write("late_n.py", "ask = None\n")
    write("late_o.py")
    write("late_p.py")
    seen = Seen()
    vars(importlib.import_module("late_n"))["ask"] = lambda: when_imported("late_m", seen)
    importlib.import_module("late_m")
    assert list(seen) == []
    importlib.import_module("late_p")
    assert list(seen) == [("late_m", True)]


def test_two_copies_of_late_import_work_together(write: Callable[..., None]) -> None:
    """The one from the start of the process, and the one inside the package."""
    write("late_q.py")
    write("late_r.py")
    spec = importlib.util.spec_from_file_location("late_import_copy", late_import.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    seen, seen_by_copy = Seen(), Seen()
    for name in ("late_q", "late_r"):
        when_imported(name, seen)
        copy.when_imported(name, seen_by_copy)
    importlib.util.find_spec("late_q")
    for name in ("late_q", "late_r"):
        module = importlib.import_module(name)
        assert "exec_module" not in vars(module.__loader__)
    assert list(seen) == list(seen_by_copy) == [("late_q", True), ("late_r", True)]
    sys.meta_path.remove(copy._finder)


def test_each_callback_runs_once_under_threads(write: Callable[..., None]) -> None:
    """Each caller, before, during or after the import, is called exactly once with a complete module."""
    names = [f"late_thread_{i}" for i in range(20)]
    for name in names:
        write(f"{name}.py", "import time\ntime.sleep(0.002)\nDONE = True\n")
    write("late_last.py")
    seen = [[Seen() for _ in names] for _ in range(6)]
    start = threading.Barrier(7)

    def ask(mine: list[Seen]) -> None:
        start.wait()
        for name, do in zip(names, mine, strict=True):
            when_imported(name, do)

    def load() -> None:
        start.wait()
        for name in names:
            importlib.import_module(name)

    threads = [threading.Thread(target=ask, args=(mine,)) for mine in seen] + [threading.Thread(target=load)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    importlib.import_module("late_last")
    for mine in seen:
        assert [list(one) for one in mine] == [[(name, True)] for name in names]


# -- in separate processes


def python(code: str, *arguments: str, path: tuple[Path, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
    """Runs ``python arguments… -c code`` with the autoload directory first on PYTHONPATH, and ``path`` after it."""
    full = {k: v for k, v in os.environ.items() if not k.startswith("WHYIDLE")}
    full["PYTHONPATH"] = os.pathsep.join(map(str, (AUTOLOAD, *path)))
    full |= env
    return subprocess.run(
        [sys.executable, *arguments, "-c", code], env=full, capture_output=True, text=True, timeout=120, check=False
    )


FAKE_TORCH = "import sys\nDONE = True\nEARLY = 'whyidle' in sys.modules\n"
TELL = "import torch, sys; print(torch.EARLY, 'whyidle.torch_hooks.attach' in sys.modules)"


@pytest.fixture
def fake_torch(tmp_path: Path) -> Path:
    """A directory with a module called torch: the test checks when the hooks attach, not what they then do to torch."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "torch.py").write_text(FAKE_TORCH)
    return tmp_path / "fake"


def test_attaches_after_torch_is_imported(fake_torch: Path) -> None:
    done = python(TELL, path=(fake_torch,), WHYIDLE="1")
    assert done.stdout.split() == ["False", "True"], done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("switch", ["0", "", "2"])
def test_does_nothing_without_the_switch(fake_torch: Path, switch: str) -> None:
    assert python(TELL, path=(fake_torch,), WHYIDLE=switch).stdout.split() == ["False", "False"]


def test_a_process_without_torch_loads_next_to_nothing() -> None:
    code = "import sys; print(*sorted(sys.modules))"
    plain = set(python(code, "-I", WHYIDLE="1").stdout.split())
    ours = set(python(code, WHYIDLE="1").stdout.split())
    heavy = {"importlib.abc", "importlib.util", "typing", "threading", "dataclasses", "whyidle"}
    assert "_whyidle_autoload" in ours
    assert not (ours - plain) & heavy


def test_loads_itself_by_path_if_whyidle_is_not_installed(fake_torch: Path, tmp_path: Path) -> None:
    (tmp_path / "cwd" / "whyidle").mkdir(parents=True)  # a directory with ledgers is not the package
    code = "import os, sys; os.chdir(sys.argv[1]); import torch, whyidle; print(os.path.dirname(whyidle.__file__))"
    full = dict(os.environ, PYTHONPATH=f"{AUTOLOAD}{os.pathsep}{fake_torch}", WHYIDLE="1", WHYIDLE_DEBUG="1")
    # -S: no site-packages, so no whyidle; our sitecustomize is the one that is imported
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            "try:\n    import sitecustomize\nexcept ImportError: pass\n" + code,
            str(tmp_path / "cwd"),
        ],
        env=full,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == str(ROOT), done.stderr


def test_ignores_an_unrelated_package_named_whyidle(fake_torch: Path) -> None:
    (fake_torch / "whyidle.py").write_text("MINE = 1\n")
    code = "import torch, whyidle; print(whyidle.MINE)"
    done = python(code, path=(fake_torch,), WHYIDLE="1", WHYIDLE_DEBUG="1")
    assert done.stdout == "1\n"
    assert "the name whyidle belongs to" in done.stderr
    assert python(code, path=(fake_torch,), WHYIDLE="1").stderr == ""


def test_a_torch_that_fails_to_import_fails_as_it_does_without_hooks(fake_torch: Path) -> None:
    (fake_torch / "torch.py").write_text("import nothing_of_that_name\n")
    with_us = python("import torch", path=(fake_torch,), WHYIDLE="1")
    without = python("import torch", path=(fake_torch,))
    assert with_us.returncode == without.returncode == 1
    assert with_us.stderr.splitlines()[-1] == without.stderr.splitlines()[-1]


SITE = (
    "import sys\nprint('site', __name__, __file__ == sys.argv or __file__.endswith('own/sitecustomize.py'))\nMINE = 7\n"
)


def test_the_users_sitecustomize_runs_as_it_does_without_hooks(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nMINE = 7\nsys.mine = (__name__, __file__, list(sys.path))\n")
    code = "import sitecustomize, sys; print(sys.mine, sitecustomize.MINE, sitecustomize.__spec__.origin, sys.path)"
    with_us = python(code, path=(own,), WHYIDLE="1")
    without = python(code, PYTHONPATH=str(own))
    assert "own/sitecustomize.py" in without.stdout
    assert with_us.stdout == without.stdout
    assert with_us.stderr == without.stderr


def test_a_failing_sitecustomize_fails_as_it_does_without_hooks(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('mine')\n")
    with_us = python("print('on')", path=(tmp_path,), WHYIDLE="1")
    without = python("print('on')", PYTHONPATH=str(tmp_path))
    assert (with_us.stdout, with_us.stderr) == (without.stdout, without.stderr)


def test_importing_sitecustomize_fails_if_the_user_has_none() -> None:
    code = "import sys\ntry:\n    import sitecustomize\nexcept ImportError as e: print(e.name, sys.path)\n"
    assert python(code, WHYIDLE="1").stdout == python(code, PYTHONPATH="").stdout.replace("'', ''", "''")


def test_the_entry_parses_on_old_pythons() -> None:
    """A command may start a Python that is older than the supported ones, which must at least parse the file."""
    source = (AUTOLOAD / "sitecustomize.py").read_text()
    tree = ast.parse(source, feature_version=(3, 0))
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr))]

"""Arms whyidle in a Python process whose code does not mention it, as soon as torch has been imported.

``sitecustomize`` (``whyidle run``) or ``whyidle-autoload.pth`` (a wheel, with ``WHYIDLE=1``) starts it. For the latter,
a wheel has a copy of this file beside the package. A process that never imports torch loads only two small files.
Nothing here raises.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_started = False


def start() -> None:
    """Waits for torch. Does nothing without ``WHYIDLE=1``, and nothing after the first call."""
    global _started
    if _started or os.environ.get("WHYIDLE") != "1":
        return
    _started = True
    try:
        import atexit

        # Exit handlers run in reverse order: those of others run before this one, so that their time still counts.
        atexit.register(_end)
        _late_import().when_imported("torch", _arm)  # pyright: ignore[reportAttributeAccessIssue]
    except Exception as error:
        _complain(error)


def _root() -> str:
    """The folder of the package whyidle that this file belongs to."""
    here = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.join(here, "whyidle")
    if os.path.isfile(os.path.join(beside, "torch_hooks", "late_import.py")):
        return beside
    return os.path.dirname(os.path.dirname(here))


def _late_import() -> "ModuleType":
    """Loads late_import.py by its path: its package would load all of whyidle into a process that may never train."""
    from _frozen_importlib import ModuleSpec, module_from_spec  # importlib.util costs milliseconds
    from _frozen_importlib_external import SourceFileLoader

    name = "_whyidle_late_import"
    path = os.path.join(_root(), "torch_hooks", "late_import.py")
    loader = SourceFileLoader(name, path)
    spec = ModuleSpec(name, loader, origin=path)
    spec.has_location = True  # so that its bytecode is cached
    module = module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def _arm(torch: "ModuleType") -> None:
    try:
        _import_whyidle()
        from whyidle.torch_hooks.attach import arm

        arm()
    except Exception as error:
        _complain(error)


def _end() -> None:
    attach = sys.modules.get("whyidle.torch_hooks.attach")
    if attach is not None:
        attach.end()


def _import_whyidle() -> None:
    """Imports the installed package. If the environment does not have it, imports the one that this file belongs to.

    Raises ImportError if the name whyidle belongs to another package.
    """
    import importlib.util

    if "whyidle" in sys.modules:
        return
    spec = importlib.util.find_spec("whyidle")
    if spec is not None and spec.origin is not None:
        if not _is_ours(spec):
            raise ImportError(f"the name whyidle belongs to {spec.origin}")
        return
    # It is not installed. There may be a plain folder of that name, for example one with ledgers.
    root = _root()
    init = os.path.join(root, "__init__.py")
    spec = importlib.util.spec_from_file_location("whyidle", init, submodule_search_locations=[root])
    if spec is None or spec.loader is None:
        raise ImportError(f"{init} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules["whyidle"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["whyidle"]
        raise


def _is_ours(spec: "ModuleSpec") -> bool:
    folders = spec.submodule_search_locations or ()
    return any(os.path.isfile(os.path.join(folder, "torch_hooks", "attach.py")) for folder in folders)


def _complain(error: Exception) -> None:
    if os.environ.get("WHYIDLE_DEBUG") == "1":
        sys.stderr.write(f"whyidle: autoload: {error!r}\n")

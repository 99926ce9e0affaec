# Python imports this file when it starts, because `whyidle run` puts its directory first on PYTHONPATH. Every Python
# below the command imports it, even one that is too old for whyidle. So this file uses only syntax that all have.
import sys


def _start():
    if sys.version_info >= (3, 10):
        try:
            import _whyidle_autoload

            _whyidle_autoload.start()
        except Exception as error:
            import os

            if os.environ.get("WHYIDLE_DEBUG") == "1":
                sys.stderr.write("whyidle: autoload: %r\n" % (error,))


def _step_aside(here):
    # Removes this directory from the path and this module from sys.modules, so that another sitecustomize on the path
    # runs and is the one that others import. If there is none, the import below fails as Python expects.
    sys.path[:] = [entry for entry in sys.path if entry != here]
    if _is_injected(here):
        # For `import whyidle`. It comes last, because it has only the hooks: an installed, complete whyidle goes first.
        sys.path.append(here.rpartition("/whyidle/")[0])
    sys.modules.pop("sitecustomize", None)
    import sitecustomize  # noqa: F401


def _is_injected(here):
    try:
        open(here + "/injected").close()
    except (OSError, IOError):
        return False
    return True


_start()
_step_aside(__file__.rpartition("/")[0])

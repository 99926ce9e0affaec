# Python imports this at its start, because `whyidle run` puts its directory first on PYTHONPATH: every Python below the
# command does, also one that is far too old for us, so the syntax here is everybody's.
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
    # From here on it is as if we had never been on the path: a sitecustomize further down runs and is the one that
    # others import, and where there is none this import fails with the very error that Python expects then.
    sys.path[:] = [entry for entry in sys.path if entry != here]
    if _is_injected(here):
        # For `import whyidle`. Last, since it holds the hooks alone: a whole whyidle that is installed comes first.
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

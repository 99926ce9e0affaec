"""Runs the command for `python -m whyidle`, and for torchrun, which starts it as a module, too."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())

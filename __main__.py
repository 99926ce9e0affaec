"""`python -m whyidle`, as torchrun starts a module."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m whyidle`: runs the command. torchrun starts it in this way too."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())

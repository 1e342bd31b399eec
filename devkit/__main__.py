"""`python -m devkit`: the same as `devkit`."""

import sys

from devkit.cli import main

if __name__ == "__main__":
    sys.exit(main())

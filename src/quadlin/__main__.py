"""`python -m quadlin` is the command `quadlin`."""

import sys

from quadlin.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m turbine` is the `turbine` command."""

import sys

from turbine.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""The ``layoutopt`` command."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the command line and exits with its code."""
    # Looking for other packages' pydantic plugins costs a command 50 ms, and none is wanted here.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from layoutopt.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

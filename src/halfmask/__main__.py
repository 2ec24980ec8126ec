"""The command `halfmask`, and `python -m halfmask`: Ctrl-C ends with 130, also during imports."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress

_ended: list[int] = []


def main() -> None:
    """Run the command line."""
    atexit.register(_last)
    try:
        from halfmask.cli import main as run

        run()
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, KeyboardInterrupt):
            sys.stderr.write("Interrupted.\n")
        elif end.code != 130:
            raise
        _ended.append(130)


def _last() -> None:
    """Where Ctrl-C came within an `exec`, Python would end by the signal, though it was caught."""
    if _ended:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(_ended[0])


if __name__ == "__main__":
    main()

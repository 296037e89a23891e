"""`blocklist`, also `python -m blocklist.cli`."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

EXIT_INTERRUPTED = 130


def main() -> int:
    """As run_command, in a process that ends with it."""
    try:
        return run_command()
    finally:
        # What was imported is no garbage: to look through it while the process ends takes as long as a request.
        gc.freeze()


def run_command() -> int:
    """Run the command and return its exit code."""
    _reopen_closed_streams()
    # Importing takes longer than most commands: Ctrl-C may interrupt it.
    try:
        if sys.argv[1:] == ["--version"]:
            return _print_version()
        from blocklist.cli.main import run  # noqa: PLC0415

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _reopen_closed_streams() -> None:
    """Open a file for each standard stream that was closed (`>&-`), so that no connection takes its descriptor.

    stdin is then empty and stderr is discarded. Writing to stdout fails, as it does for any program.
    """
    if sys.stdin is None:
        sys.stdin = _open(0, os.O_RDONLY, "r")
    if sys.stdout is None:
        sys.stdout = _open(1, os.O_RDONLY, "w")
    if sys.stderr is None:
        sys.stderr = _open(2, os.O_WRONLY, "w")


def _open(descriptor: int, flags: int, mode: str) -> Any:
    opened = os.open(os.devnull, flags)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    return open(descriptor, mode, encoding="utf-8", closefd=False)


def _print_version() -> int:
    """Without importing the commands: scripts call it often."""
    import blocklist  # noqa: PLC0415
    from blocklist.cli import output  # noqa: PLC0415

    output.print_lines(f"blocklist {blocklist.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

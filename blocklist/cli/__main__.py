"""`blocklist`, also `python -m blocklist.cli`."""

from __future__ import annotations

import gc
import sys

from blocklist.cli import standard_streams

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
    standard_streams.reopen_closed()
    # Importing takes longer than most commands: Ctrl-C may interrupt it.
    try:
        if sys.argv[1:] == ["--version"]:
            return _print_version()
        from blocklist.cli.app import run  # noqa: PLC0415

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _print_version() -> int:
    """Without importing the commands: scripts call it often."""
    import blocklist  # noqa: PLC0415
    from blocklist.cli import output  # noqa: PLC0415

    output.print_lines(f"blocklist {blocklist.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

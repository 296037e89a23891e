"""`blocklist`, also `python -m blocklist.cli`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress

EXIT_FAULT, EXIT_INTERRUPTED = 3, 130
"""A fault has the exit code of a service that does not answer: neither 0 nor 1, which are answers of `is-blocked`."""


def main() -> int:
    """As run_command, in a process that ends with it."""
    if os.getpid() == 1:
        # Of a container: it ignores signals without a handler.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    try:
        return run_command()
    finally:
        # What was imported is no garbage: to look through it while the process ends takes as long as a request.
        gc.freeze()


def run_command() -> int:
    """Run the command and return its exit code. Whatever fails is a sentence on stderr."""
    # Importing takes longer than most commands: Ctrl-C may interrupt it.
    try:
        from blocklist.model.text import prepare_streams  # noqa: PLC0415

        prepare_streams()
        if sys.argv[1:] == ["--version"]:
            return _print_version()
        from blocklist.cli.main import run  # noqa: PLC0415

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        return _report_fault(error)


def _report_fault(error: Exception) -> int:
    """Name an error that nothing has foreseen, and its place in the code; nothing is imported that may be at fault."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f" at {place.tb_frame.f_code.co_filename}:{place.tb_lineno}"
    what = f"{type(error).__name__}: {str(error).encode('unicode_escape').decode()[:300]}{where}"
    # If stderr cannot be written either, the exit code is all that is left.
    with suppress(Exception):
        sys.stderr.write(f"Error: this command has failed by a fault of its own. Please report it: {what}\n")
        sys.stderr.flush()
    return EXIT_FAULT


def _print_version() -> int:
    """Without importing the commands: scripts call it often."""
    import blocklist  # noqa: PLC0415
    from blocklist.cli import output  # noqa: PLC0415

    output.print_lines(f"blocklist {blocklist.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

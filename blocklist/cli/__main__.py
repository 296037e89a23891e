"""`blocklist`, also `python -m blocklist.cli`."""

from __future__ import annotations

import gc
import os
import signal
import sys

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
    from blocklist.model.text import report_fault  # noqa: PLC0415

    report_fault(error, "this command")
    return EXIT_FAULT


def _print_version() -> int:
    """Without importing the commands: scripts call it often."""
    import blocklist  # noqa: PLC0415
    from blocklist.cli import output  # noqa: PLC0415

    output.print_lines(f"blocklist {blocklist.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

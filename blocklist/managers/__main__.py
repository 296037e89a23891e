"""`python -m blocklist.managers KIND`: keeps a cluster manager in line with the list."""

from __future__ import annotations

import sys

from blocklist.model.text import exit_on_signals, prepare_streams, report_fault


def main(argv: list[str] | None = None, prog: str = "python -m blocklist.managers") -> int:
    """Exit code: 0 success, or stopped by a signal; 1 failure, or another process has taken over; 2 usage error."""
    prepare_streams()
    try:
        return _main(argv, prog)
    except Exception as error:
        report_fault(error, "this manager")
        return 1


def _main(argv: list[str] | None, prog: str) -> int:
    from blocklist.managers.options import build_parser  # noqa: PLC0415 - signals are handled before

    arguments = sys.argv[1:] if argv is None else argv
    command = build_parser(prog, arguments)
    args = command.parse_args(arguments)
    # After --help, which needs neither a client nor a log.
    import logging  # noqa: PLC0415

    from blocklist.managers.plan import ManagerError  # noqa: PLC0415
    from blocklist.managers.reconcile import log, run  # noqa: PLC0415
    from blocklist.model.errors import BlocklistError, InvalidError  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return run(args)
    except InvalidError as error:
        command.error(str(error))
    except (BlocklistError, ManagerError) as error:
        log.error("%s", error)
        return 1


if __name__ == "__main__":
    exit_on_signals()
    sys.exit(main())

"""What `blocklist serve` and the other commands of the service run: see app.cli."""

from __future__ import annotations

import gc
import os
import signal
import sys

from app.command_line import parser

if __name__ == "__main__":
    # Until the service serves there is nothing to finish. Without a handler process 1 of a container ignores SIGTERM.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: os._exit(128 + received))
    # `blocklist serve` blocks them until here.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    # A start makes no garbage, and collection takes a sixth of it. app.server enables it again.
    gc.disable()
    # structlog would import it for coloured tracebacks, which are not used: 4 MB, and a twelfth of the start.
    sys.modules["rich"] = None  # type: ignore[assignment]
    parser().parse_args()
    try:
        from app.cli import main
    except ModuleNotFoundError as error:
        sys.exit(f"blocklist: the service needs the package {error.name}: pip install 'blocklist[service]'")
    sys.exit(main())

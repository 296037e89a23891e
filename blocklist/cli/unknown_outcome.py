"""What the command says if it ends without knowing whether a change was made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from blocklist.cli.output import print_stderr
from blocklist.model.errors import UnavailableError

_MESSAGE: Final = "The change may have been made: see `blocklist list`. Repeating the command is safe."


@contextmanager
def report_unknown_outcome(dry_run: bool) -> Iterator[None]:
    """Print a message if the block is interrupted, or fails after a request was sent; the error is raised again."""
    try:
        yield
    except (KeyboardInterrupt, UnavailableError) as error:
        if not dry_run and outcome_unknown(error):
            print_stderr(_MESSAGE)
        raise


def outcome_unknown(error: BaseException) -> bool:
    """Whether the service may have received the request, and the error does not say what it did."""
    import httpx  # noqa: PLC0415 - not for --version and --help

    not_sent = (httpx.ConnectError, httpx.ConnectTimeout)
    by_transport = isinstance(error.__cause__, httpx.HTTPError) and not isinstance(error.__cause__, not_sent)
    return isinstance(error, KeyboardInterrupt) or by_transport

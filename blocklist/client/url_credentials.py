"""User name and password in a URL: they are refused, and never shown."""

from __future__ import annotations

import re
from typing import Final

from blocklist.model.errors import InvalidError

_CREDENTIALS: Final = re.compile(r"^(https?:(?=//))?.*@", re.DOTALL | re.IGNORECASE)


def without_credentials(url: str) -> str:
    """The URL with `…` in place of them."""
    return _CREDENTIALS.sub(lambda match: f"{match[1] or ''}//…@", url)


def check_no_credentials(url: str) -> None:
    """Raises InvalidError, with a message that does not show them, if the URL of the service has them.

    That is any `@`: in a mistyped URL, such as one without `//` or with a `/` in the password, it may be anywhere.
    """
    if "@" in url:
        raise InvalidError(
            "The URL of the service has a user name or a password in it, which the service does not use: leave them"
            " out. A token is given as BLOCKLIST_TOKEN_FILE, or as token_file of a context."
        )

"""Http(s) URLs in free text, and the addresses of tickets (BLOCKLIST_TICKET_URL). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote, urlsplit

ID_FIELD: Final = "{id}"
"""Stands for the id of the ticket in BLOCKLIST_TICKET_URL."""
DEFAULT_TICKET_PATTERN: Final = "[A-Z][A-Z0-9]+-[0-9]+"
"""Ids such as OPS-123."""
# Only ASCII, so that no look-alike letter and no mark of writing direction disguises the host.
URL: Final = re.compile(
    r"(?<![A-Za-z0-9.+-])https?://[!#-&(-;=?-\[\]_a-z{|}~]++(?![^\x00-\x7f])", re.IGNORECASE | re.ASCII
)
"""What may be a URL in a text."""


@dataclass(frozen=True, slots=True)
class TicketLinks:
    """The address of a ticket, with `{id}` in it, and the pattern of ids; None if ids are not links."""

    url: str
    pattern: re.Pattern[str] | None

    @classmethod
    def parse(cls, url: str, pattern: str) -> Self:
        """Parse the settings; an empty `url` means no links. Raises ValueError."""
        if not url:
            return cls("", None)
        if not is_http_url(url.replace(ID_FIELD, "1")):
            raise ValueError("give an http or https URL of printable ASCII without a user name")
        if ID_FIELD not in url.partition("://")[2].partition("/")[2]:
            raise ValueError(
                f"give a URL with {ID_FIELD} in its path, such as https://tickets.example.com/browse/{{id}}"
            )
        return cls(url, parse_pattern(pattern))

    def url_of(self, ticket: str) -> str:
        return self.url.replace(ID_FIELD, quote(ticket, safe=""))


def parse_pattern(pattern: str) -> re.Pattern[str]:
    """The pattern of an id of a ticket that is a word of its own. Raises ValueError."""
    try:
        matches_nothing = re.compile(pattern).fullmatch("") is not None
        found = re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])")
    except re.error as error:
        raise ValueError(f"it is not a regular expression of Python: {error}") from None
    if matches_nothing:
        raise ValueError("the pattern matches the empty text")
    return found


def is_http_url(text: str) -> bool:
    """Whether a text is an http or https URL with a host and without a user name, which could disguise the host."""
    if URL.fullmatch(text) is None:
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False

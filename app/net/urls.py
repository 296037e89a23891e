"""URLs: in free text, of tickets (BLOCKLIST_TICKET_URL), and of notices (BLOCKLIST_NOTIFY_URL)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import parse_qs, quote, urlsplit
from warnings import catch_warnings

if TYPE_CHECKING:
    from apprise import Apprise

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


# The URLs of BLOCKLIST_NOTIFY_URL, which the library apprise reads. Each may contain a secret: none is ever shown.
#
# apprise is imported here only, and only if there is a URL: it takes 0.2 s and 27 MB.

SendText = Callable[[str, str], bool]
"""Sends a title and a body, and returns whether that succeeded. Blocks; whatever it raises may contain the URL."""

_SEPARATOR: Final = re.compile(r"\s*,\s*(?=[A-Za-z][A-Za-z0-9+.-]*://|$)")
"""A comma before the next URL: one inside a URL belongs to it."""


def split_urls(text: str) -> list[str]:
    """The comma-separated URLs."""
    return [url for url in _SEPARATOR.split(text.strip()) if url]


def make_senders(text: str) -> list[SendText]:
    """A sender for each URL. Raises ValueError, which names the position of the URL and not its text."""
    return [partial(_send, _target(url, position)) for position, url in enumerate(split_urls(text), 1)]


def _send(target: Apprise, title: str, body: str) -> bool:
    return bool(target.notify(body, title, body_format="text"))


def _target(url: str, position: int) -> Apprise:
    target = _empty_target()
    dropped = _DroppedParts()
    try:
        # The first URL imports all plugins; some import what a later Python does not have.
        with catch_warnings(action="ignore", category=DeprecationWarning), dropped.counted():
            accepted = target.add(url)
    except Exception:  # whatever a plugin raises may contain the URL
        accepted = False
    if not accepted:
        raise ValueError(
            f"URL {position} is not one that apprise accepts (it may contain a secret, so it is not shown): see"
            " docs/notices.md"
        )
    if dropped.count or not all(map(_is_address, _receivers(url))):
        raise ValueError(
            f"URL {position} has a part that apprise would leave out, such as a receiver that is no e-mail address (it"
            " may contain a secret, so it is not shown): see docs/notices.md"
        )
    return target


def _receivers(url: str) -> list[str]:
    """The receivers that a URL of a mail server names. Of several, apprise leaves out a wrong one without any log."""
    if not url.lower().startswith(("mailto:", "mailtos:")):
        return []
    named = parse_qs(url.partition("?")[2])
    return [each for key in ("to", "cc", "bcc") for value in named.get(key, ()) for each in value.split(",")]


def _is_address(receiver: str) -> bool:
    name, at, domain = receiver.strip().rpartition("@")
    return bool(name and at and domain)


class _DroppedParts(logging.Filter):
    """Counts the parts of a URL that apprise leaves out: it says that in its log only, and sends to the others."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        # The arguments have the part, which may be a secret: no handler gets it.
        self.count += record.levelno >= logging.WARNING and str(record.msg).startswith("Dropped ")
        return False

    @contextmanager
    def counted(self) -> Iterator[None]:
        logger = logging.getLogger("apprise")
        logger.addFilter(self)
        logger.disabled = False
        try:
            yield
        finally:
            logger.disabled = True
            logger.removeFilter(self)


def _empty_target() -> Apprise:
    # The log lines of apprise contain URLs, with their tokens and passwords.
    logger = logging.getLogger("apprise")
    logger.propagate, logger.disabled = False, True
    try:
        from apprise import Apprise, AppriseAsset  # noqa: PLC0415
    except ImportError:
        raise ValueError("this needs one more package: pip install apprise") from None
    asset = AppriseAsset(
        app_id="blocklist",
        app_desc="blocklist",
        # Threads and timeouts are ours: the process would wait for those of apprise at its end.
        async_mode=False,
        service_timeout=0,
        # A cause is never a template.
        allow_templates=False,
        storage_mode="memory",
    )
    return Apprise(asset=asset)

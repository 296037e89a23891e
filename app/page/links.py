"""Links in causes: http(s) URLs, and ids of tickets if BLOCKLIST_TICKET_URL is set. All other text is escaped. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from markupsafe import Markup, escape

from app.net.ticket_links import URL, TicketLinks, is_http_url

_CLOSING: Final = {")": "(", "]": "[", "}": "{"}
_LINK: Final = Markup('<a href="{}" rel="noreferrer">{}</a>')


def with_links(tickets: TicketLinks, text: str) -> Markup:
    """The text as HTML, with links."""
    return Markup("").join(_parts(tickets, text))


def _parts(tickets: TicketLinks, text: str) -> Iterator[Markup]:
    end = 0
    for match in URL.finditer(text):
        url = _without_punctuation(match[0])
        if is_http_url(url):
            yield from _with_tickets(tickets, text[end : match.start()])
            yield _LINK.format(url, url)
            end = match.start() + len(url)
    yield from _with_tickets(tickets, text[end:])


def _with_tickets(tickets: TicketLinks, text: str) -> Iterator[Markup]:
    end = 0
    for match in tickets.pattern.finditer(text) if tickets.pattern is not None else ():
        if match[0]:
            yield escape(text[end : match.start()])
            yield _LINK.format(tickets.url_of(match[0]), match[0])
            end = match.end()
    yield escape(text[end:])


def _without_punctuation(url: str) -> str:
    """The URL without what belongs to the sentence: a full stop, or the bracket that closes around it."""
    while url[-1] in ".,;:!?*_~" or (url[-1] in _CLOSING and url.count(_CLOSING[url[-1]]) < url.count(url[-1])):
        url = url[:-1]
    return url

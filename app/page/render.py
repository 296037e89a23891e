"""Renders templates: jinja2, everything is escaped, undefined names are errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from fastapi import Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from app.auth.principal import ANONYMOUS
from app.net.urls import URL, TicketLinks, is_http_url
from app.page import time_format
from app.page.shared import shared_of
from app.page.static_files import static_url
from app.page.visitor import Visitor
from app.service import Service, service_of
from blocklist.model.node import PERMANENT

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Nothing from other hosts, nothing inline, no framing."""
_HEADERS: Final = {"Cache-Control": "no-store", "Content-Security-Policy": CONTENT_SECURITY_POLICY}


def render_page(
    request: Request, template: str, visitor: Visitor, status: HTTPStatus = HTTPStatus.OK, **model: object
) -> Response:
    """A page, or a fragment of one, from a template in templates/."""
    service = service_of(request)
    text = (
        _environment(service.settings.ticket_links)
        .get_template(template)
        .render(
            visitor=visitor,
            now=service.clock(),
            tracker=service.view.tracker,
            # Not for visitors who have not logged in.
            share=None if visitor.principal is ANONYMOUS else share_of_cluster(request),
            database_down_seconds=service.view.age(),
            **model,
        )
    )
    return Response(text, status, _HEADERS, media_type="text/html; charset=utf-8")


def _time(millis: int, text: str, **data: int) -> Markup:
    """A `<time>` element; page.js updates those with `data-…`."""
    attributes = Markup("").join(Markup(' data-{}="{}"').format(name, value) for name, value in data.items())
    datetime = time_format.rfc3339(millis)
    if not datetime:
        return Markup("<span>{}</span>").format(text)
    return Markup('<time datetime="{}" title="{} UTC"{}>{}</time>').format(
        datetime, time_format.utc(millis), attributes, text
    )


@pass_context
def _left(context: Context, end: int) -> Markup:
    if end == PERMANENT:
        return Markup('<span class="dim">permanent</span>')
    return _time(end, time_format.left(end, context["now"]), left=end)


@pass_context
def _ago(context: Context, millis: int) -> Markup:
    return _time(millis, time_format.ago(millis, context["now"]), ago=millis)


def _utc(millis: int) -> Markup:
    return _time(millis, time_format.utc(millis))


@lru_cache(maxsize=8)
def _environment(tickets: TicketLinks) -> Environment:
    # One for each setting, as imported macros see no variables of the page.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: dict[str, Any] = {
        "utc": _utc,
        "left": _left,
        "ago": _ago,
        "duration": time_format.duration,
        "count": time_format.count,
        "links": partial(with_links, tickets),
    }
    environment.filters.update(filters)
    environment.globals.update(static_url=static_url, permanent=PERMANENT, short=time_format.short)
    return environment


# The share of the cluster that is blocked, for the header: it counts machines as BLOCKLIST_MAX_BLOCKED_SHARE does.

MAX_AGE_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class ClusterShare:
    """How many machines are blocked, of those that listeners report as theirs.

    If none are reported, `known` is 0 and `blocked` counts the whole list: the size of the cluster is unknown.
    """

    blocked: int
    known: int

    @property
    def percent(self) -> str:
        """`3.5 %`; never 0 or 100 unless that is exact."""
        share = 100 * self.blocked / self.known
        if 0 < share < 0.1:
            return "< 0.1 %"
        if 99.9 < share < 100:
            return "> 99.9 %"
        return f"{share:.1f} %"


def share_of_cluster(request: Request) -> ClusterShare:
    """The share of the service that received the request; to count 10,000 blocked nodes takes some 10 ms."""
    return shared_of(request).get_now("share", lambda: _share(service_of(request)), MAX_AGE_MS)


def _share(service: Service) -> ClusterShare:
    blocked = service.view.tracker.blocked(service.clock())
    known = service.usable_nodes.known
    return ClusterShare(known.count_matching(blocked) if len(known) else len(blocked), len(known))


# Links in causes: http(s) URLs, and ids of tickets if BLOCKLIST_TICKET_URL is set. All other text is escaped. Pure.

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

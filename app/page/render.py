"""Renders templates: jinja2, everything is escaped, undefined names are errors."""

from __future__ import annotations

from functools import lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from fastapi import Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from app.auth.principal import ANONYMOUS
from app.net.ticket_links import TicketLinks
from app.page import time_format
from app.page.cluster_share import share_of_cluster
from app.page.links import with_links
from app.page.static_files import static_url
from app.page.visitor import Visitor
from app.service import service_of
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

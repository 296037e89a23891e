"""What the page's modules share: values for all visitors, templates, the visitor, links, static files, times."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Self, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from app.api.parameters import PUBLIC, Admin, Reader, RequireRole, root_path_of, session_of
from app.auth.credential import ANONYMOUS, Principal
from app.engine.cached_list import accepts_gzip
from app.net.urls import URL, TicketLinks, is_http_url
from app.service import Service, service_of
from blocklist.model.changes import Author, Source
from blocklist.model.claims import Role
from blocklist.model.errors import ForbiddenError, NotFoundError
from blocklist.model.node import PERMANENT

T = TypeVar("T")

MAX_VALUES: Final = 100
"""Maximum number of values that are kept; the one that was used least recently goes first."""


class SharedValues:
    """Values by key. Each is computed for the first visitor who asks, and again once it is too old.

    `max_age` is in milliseconds, and may depend on the value: what takes long to compute may be older.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._values: dict[Hashable, tuple[int, Any]] = {}
        self._computing = asyncio.Lock()

    async def get(self, key: Hashable, compute: Callable[[], Awaitable[T]], max_age: Callable[[T], float]) -> T:
        """The value, computed in turns of the event loop if it is too old: one value at a time."""
        async with self._computing:
            at = self._clock()
            return self._fresh(key, max_age) or self._keep(key, at, await compute())

    def get_now(self, key: Hashable, compute: Callable[[], T], max_age: float) -> T:
        """The value, computed at once if it is too old."""
        return self._fresh(key, lambda _: max_age) or self._keep(key, self._clock(), compute())

    def _fresh(self, key: Hashable, max_age: Callable[[T], float]) -> T | None:
        at, value = self._values.get(key, (0, None))  # type: tuple[int, T | None]
        if value is None or not 0 <= self._clock() - at < max_age(value):
            return None
        return self._keep(key, at, value)

    def _keep(self, key: Hashable, at: int, value: T) -> T:
        self._values.pop(key, None)
        self._values[key] = at, value
        if len(self._values) > MAX_VALUES:
            del self._values[next(iter(self._values))]
        return value


def shared_of(request: Request) -> SharedValues:
    """The values of the service that received the request."""
    shared: SharedValues = request.app.state.shared
    return shared


# Long work in turns of the event loop, so that other requests are served in between.

PER_TURN: Final = 200
"""Nodes or names that are looked up in a turn of the event loop: some milliseconds."""


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with a pause after each PER_TURN of them."""
    for count, item in enumerate(items, 1):
        yield item
        if count % PER_TURN == 0:
            await asyncio.sleep(0)


# Renders templates: jinja2, everything is escaped, undefined names are errors.

# The visitor of the page, and what the page offers to them.


@dataclass(frozen=True, kw_only=True, slots=True)
class Visitor:
    """`csrf` is sent with every form; `logged_in` shows the button to log out."""

    principal: Principal
    csrf: str = ""
    logged_in: bool = False

    def author(self, *, forced: str | None = None) -> Author:
        """The author of the visitor's changes."""
        return Author(self.principal.name, Source.PAGE, forced)

    @property
    def own_owner(self) -> str | None:
        """The owner of the visitor's claims; None without authentication, where everybody is one owner."""
        return self.principal.name

    @property
    def may_change(self) -> bool:
        return self.principal.role.allows(Role.OPERATOR) and self.principal.owners is None

    @property
    def may_force(self) -> bool:
        return self.principal.role.allows(Role.ADMIN)


async def _visitor(request: Request, principal: Reader) -> Visitor:
    """A request with an Authorization header has no session and needs no CSRF token."""
    if not service_of(request).authenticator.enabled or "authorization" in request.headers:
        return Visitor(principal=principal)
    session = await session_of(request)
    return Visitor(principal=principal, csrf="" if session is None else session.csrf, logged_in=session is not None)


ReaderVisitor = Annotated[Visitor, Depends(_visitor)]


async def _admin(visitor: ReaderVisitor, _: Admin) -> Visitor:
    return visitor


async def _operator(
    visitor: ReaderVisitor, principal: Annotated[Principal, Depends(RequireRole(Role.OPERATOR))]
) -> Visitor:
    if principal.owners is not None:
        raise ForbiddenError(
            "The page changes blocks for all owners; your token may change the claims of"
            f" {', '.join(principal.owners)} only: use the command or the API for these."
        )
    return visitor


AdminVisitor = Annotated[Visitor, Depends(_admin)]
OperatorVisitor = Annotated[Visitor, Depends(_operator)]


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
            # Nobody needs a token while authentication is off.
            has_tokens=visitor.may_force and service.authenticator.enabled,
            # Not for visitors who have not logged in.
            share=None if visitor.principal is ANONYMOUS else share_of_cluster(request),
            modes=() if visitor.principal is ANONYMOUS else service.directory.modes.records,
            database_down_seconds=service.view.age(),
            **model,
        )
    )
    return Response(below(root_path_of(request), text), status, _HEADERS, media_type="text/html; charset=utf-8")


_OWN_PATH: Final = re.compile(r'( (?:href|src|action|hx-get|data-watch|data-[a-z]+-path)=")(?=/)')
"""In front of a path of the service in HTML. Text of others has no `"`, and links of others begin with `http`."""


def below(root_path: str, html: str) -> str:
    """The page with the root path in front of every path: nobody has to think of it where a link is made."""
    return _OWN_PATH.sub(rf"\g<1>{root_path}", html) if root_path else html


def _time(millis: int, text: str, **data: int) -> Markup:
    """A `<time>` element; page.js updates those with `data-…`."""
    attributes = Markup("").join(Markup(' data-{}="{}"').format(name, value) for name, value in data.items())
    datetime = rfc3339(millis)
    if not datetime:
        return Markup("<span>{}</span>").format(text)
    return Markup('<time datetime="{}" title="{} UTC"{}>{}</time>').format(datetime, utc(millis), attributes, text)


@pass_context
def _left(context: Context, end: int) -> Markup:
    if end == PERMANENT:
        return Markup('<span class="dim">permanent</span>')
    return _time(end, left(end, context["now"]), left=end)


@pass_context
def _ago(context: Context, millis: int) -> Markup:
    return _time(millis, ago(millis, context["now"]), ago=millis)


def _utc(millis: int) -> Markup:
    return _time(millis, utc(millis))


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
        "duration": duration,
        "count": count,
        "links": partial(with_links, tickets),
    }
    environment.filters.update(filters)
    environment.globals.update(static_url=static_url, permanent=PERMANENT, short=short)
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


# Static files: a fixed set, read at start, each with a URL that changes with its content.

router = APIRouter(dependencies=[PUBLIC], include_in_schema=False)

FOLDER: Final = Path(__file__).with_name("static")
_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_YEAR: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class StaticFile:
    """A file with its media type."""

    body: bytes
    type: str

    @cached_property
    def version(self) -> str:
        return hashlib.blake2b(self.body, digest_size=6).hexdigest()

    @cached_property
    def zipped(self) -> bytes:
        return gzip.compress(self.body, compresslevel=6, mtime=0)


def _read() -> dict[str, StaticFile]:
    paths = [path for path in FOLDER.rglob("*") if path.suffix in _TYPES]
    return {
        path.relative_to(FOLDER).as_posix(): StaticFile(path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(paths)
    }


FILES: Final = _read()


def static_url(name: str) -> str:
    """The URL of a static file, including its version, so that caches may keep it permanently."""
    return f"/static/{name}?v={FILES[name].version}"


@router.head("/static/{name:path}")
@router.get("/static/{name:path}")
async def get_static(request: Request, name: str, v: str = "") -> Response:
    """The file; cacheable for a year if the URL names its current version."""
    file = FILES.get(name)
    if file is None:
        raise NotFoundError("There is no such file.")
    headers = {
        "Cache-Control": _YEAR if v == file.version else "no-cache",
        "ETag": f'"{file.version}"',
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    body = file.body
    if accepts_gzip(request.headers.get("accept-encoding", "").encode("latin-1")):
        headers["Content-Encoding"] = "gzip"
        # In a thread, because the first compression of the largest file is slow.
        body = await asyncio.to_thread(lambda: file.zipped)
    return Response(body, headers=headers, media_type=file.type)


# Formats times and durations for people. Pure; Unix milliseconds in, UTC out.

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_MAX_MILLIS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that datetime supports."""


def utc(millis: int) -> str:
    """`2026-11-21 18:14:12`; a word for times that datetime does not support."""
    if 0 <= millis <= _MAX_MILLIS:
        return datetime.fromtimestamp(millis / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return "permanent" if millis == PERMANENT else "out of range"


def short(millis: int) -> str:
    """`21 Nov 18:14`: for charts, where the year is obvious."""
    return datetime.fromtimestamp(millis / 1000, UTC).strftime("%d %b %H:%M").removeprefix("0")


def rfc3339(millis: int) -> str:
    """RFC 3339, for `<time datetime>`; empty for times that datetime does not support."""
    return utc(millis).replace(" ", "T") + "Z" if 0 <= millis <= _MAX_MILLIS else ""


def duration(millis: int) -> str:
    """The two largest units of a duration, as in `1 h 59 min`, to the nearest second."""
    seconds = (max(0, millis) + 500) // 1000
    for place, (size, unit) in enumerate(_UNITS):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            text = f"{whole:,} {unit}"
            smaller = _UNITS[place + 1 : place + 2]
            more = [f"{rest // size} {unit}" for size, unit in smaller if rest >= size]
            return " ".join([text, *more])
    return "0 s"


def left(end: int, now: int) -> str:
    """The time left until the end of a block."""
    return "permanent" if end == PERMANENT else f"{duration(end - now)} left"


def ago(millis: int, now: int) -> str:
    """The time since `millis`."""
    return f"{duration(now - millis)} ago"


def count(number: int, noun: str) -> str:
    """`1 node`, `2,000 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# Long tables: pages, or the first rows and how many there are.

R = TypeVar("R")

MAX_ROWS: Final = 50
"""Maximum number of rows of a table that is one of several on a page."""


def pages_of(count: int, size: int) -> int:
    """The number of pages; at least one."""
    return max(1, -(-count // size))


@dataclass(frozen=True, slots=True)
class Excerpt(Generic[R]):
    """At most MAX_ROWS rows, and the number of all."""

    rows: Sequence[R]
    total: int

    @classmethod
    def of(cls, items: Iterable[R]) -> Self:
        """The first of these."""
        found = list(items)
        return cls(found[:MAX_ROWS], len(found))

    @property
    def more(self) -> int:
        """The number of rows that are left out."""
        return self.total - len(self.rows)

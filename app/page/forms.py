"""Parses submitted forms strictly, with an error message for each invalid field, and query parameters leniently."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from app.api.parameters import TooLargeError
from app.api.responses import STATUS
from app.auth.credential import ANONYMOUS
from app.page.shared import OperatorVisitor, Visitor, render_page, utc
from app.requests import MAX_NODE_BODY
from blocklist.model.draft import check_distinct
from blocklist.model.errors import BlocklistError, InvalidError, UnauthorizedError
from blocklist.model.names import Aliases, no_aliases
from blocklist.model.node import (
    ACTION_BY_NAME,
    DEFAULT_DURATION,
    FOREVER,
    MAX_CAUSE_LENGTH,
    PERMANENT,
    BlockAction,
    BlockedNode,
    check_text,
    expand_nodes,
    merge,
    parse_duration,
)

T = TypeVar("T")
Form = Mapping[str, str]
"""Values of fields by name; the first value of a repeated field."""

_DIGITS: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_MAX_FIELDS: Final = 150
_SEPARATORS: Final = re.compile(r"[\s;]+")
FIELDS: Final = ("nodes", "action", "cause", "ends", "for", "by", "until")
"""The names of the fields that the visitor fills in."""


class FormError(Exception):
    """Invalid fields: messages by field name."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__(" ".join(errors.values()))
        self.errors = dict(errors)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockForm:
    """A parsed form to block nodes; `end` in Unix milliseconds."""

    nodes: tuple[str, ...]
    action: BlockAction
    end: int
    cause: str


def initial_form(default_duration: str, current: BlockedNode | None = None) -> Form:
    """The initial values of the form that blocks nodes, or that extends the `current` block."""
    if current is None:
        ends = "never" if default_duration == FOREVER else "for"
    else:
        ends = "same" if current.permanent else "never" if default_duration == FOREVER else "by"
    action = BlockAction.MARK_BLOCKED if current is None else current.action
    duration = DEFAULT_DURATION if default_duration == FOREVER else default_duration
    initial = dict.fromkeys(FIELDS, "")
    return initial | {"action": action.short_name, "ends": ends, "for": duration, "by": duration}


def int_param(request: Request, name: str) -> int | None:
    """A whole number in the query; None if it is missing or invalid, so that every link works."""
    text = request.query_params.get(name, "")
    return int(text) if _DIGITS.fullmatch(text) else None


async def read_form(request: Request) -> Form:
    """The fields of a form. Raises InvalidError, TooLargeError."""
    return dict(reversed(await read_pairs(request)))


async def read_pairs(request: Request) -> list[tuple[str, str]]:
    """The names and values of a form, in order. Raises InvalidError, TooLargeError."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > MAX_NODE_BODY:
        raise TooLargeError(f"A form needs a Content-Length of at most {MAX_NODE_BODY // 1024} KiB.")
    try:
        # Not read_body: authentication may have read the body already, and Starlette caches it only for body().
        body = (await request.body()).decode()
        return parse_qsl(body, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError:
        raise InvalidError("The body is not a form of this page.") from None


async def _submitted_form(request: Request, _: OperatorVisitor) -> Form:
    # The operator's authentication has checked the origin and the CSRF token.
    return await read_form(request)


SubmittedForm = Annotated[Form, Depends(_submitted_form)]
"""The form of an operator. Raises ForbiddenError for a form of another site, InvalidError, TooLargeError."""


def parse_block_form(
    form: Form, now: int, current: BlockedNode | None = None, aliases: Aliases = no_aliases
) -> BlockForm:
    """Parse a form at time `now`, to extend the `current` block or, without one, to block nodes. Raises FormError.

    To extend a block never ends it earlier. Fields left out keep the value of the current block.
    """
    errors: dict[str, str] = {}

    def read(name: str, reader: Callable[[], T], default: T) -> T:
        try:
            return reader()
        except ValueError as error:
            errors[name] = str(error)
            return default

    nodes: tuple[str, ...] = read("nodes", lambda: _nodes(form, aliases), tuple[str, ...]())
    action = read("action", lambda: _action(form), BlockAction.MARK_BLOCKED)
    cause = read("cause", lambda: _cause(form, current), "")
    end = read("ends", lambda: _end(form, now, current), 0)
    if not errors and current is not None and "confirmed" not in form:
        extended = BlockedNode(id=current.id, action=action, start=current.start, end=end, cause=cause)
        if merge(current, extended) is current:
            errors["ends"] = "Nothing would change: choose a later end, another action or another reason."
    if errors:
        raise FormError(errors)
    return BlockForm(nodes=nodes, action=action, end=end, cause=cause)


def _nodes(form: Form, aliases: Aliases) -> tuple[str, ...]:
    """Nodes and ranges, as in the command, but also separated by commas."""
    words = [word.strip(",") for word in _SEPARATORS.split(form.get("nodes", ""))]
    node_ids = tuple(expand_nodes([word for word in words if word]))
    check_distinct(node_ids, aliases)
    return node_ids


def _action(form: Form) -> BlockAction:
    action = ACTION_BY_NAME.get(form.get("action", ""))
    if action is None:
        raise ValueError("Choose an action.")
    return action


def form_owner(form: Form, own: str | None) -> str | None:
    """The owner whose claims are to be removed: `own`, or None for all owners. Raises InvalidError."""
    match form.get("only"):
        case None:
            return None
        case "own":
            return own
    raise InvalidError("Choose whose claims to remove: yours, or those of all owners. Nothing was changed.")


def form_cause(form: Form) -> str:
    """The reason, empty if none is given. Raises ValueError."""
    # The reason is one line, but pasted text may contain line ends.
    cause = " ".join(form.get("cause", "").split())
    if len(cause) > MAX_CAUSE_LENGTH:
        raise ValueError(f"The reason may have at most {MAX_CAUSE_LENGTH:,} characters.")
    return check_text(cause) if cause else ""


def _cause(form: Form, current: BlockedNode | None) -> str:
    cause = form_cause(form)
    if not cause and current is not None:
        # Merging a part of the current cause changes nothing; the whole cause could be too long.
        return next((part for part in current.cause.split(",") if part), current.cause)
    if not cause:
        raise ValueError("Give a reason: it is shown to the next person on call.")
    return cause


def _end(form: Form, now: int, current: BlockedNode | None) -> int:
    if form.get("until", "").strip() and form.get("ends") != "until":
        raise ValueError("Two ends are given: choose Until, or clear its date.")
    match form.get("ends"):
        case "for" if current is None:
            return now + _duration(form, "for")
        case "until":
            end = parse_until(form.get("until", ""), now)
            return end if current is None else _later_end(end, current)
        case "never":
            return PERMANENT
        case "same" if current is not None:
            return current.end
        case "by" if current is not None:
            return _extended_end(form, current)
    raise ValueError("Choose when the block ends.")


def _extended_end(form: Form, current: BlockedNode) -> int:
    # A confirmation carries the end that the preview showed: confirming twice must not extend twice.
    confirmed = form.get("end", "") if "confirmed" in form else ""
    if _DIGITS.fullmatch(confirmed):
        return _later_end(int(confirmed), current)
    return _later_end(min(current.end + _duration(form, "by"), PERMANENT), current)


def _later_end(end: int, current: BlockedNode) -> int:
    if current.permanent:
        raise ValueError("The block is already permanent. To end it, unblock the node.")
    if end < current.end:
        raise ValueError(
            f"The block lasts until {utc(current.end)} UTC: choose a later end. To end it earlier, unblock the node."
        )
    return end


def _duration(form: Form, name: str) -> int:
    return parse_duration("".join(form.get(name, "").split()))


def parse_until(text: str, now: int) -> int:
    """A date and a time in UTC as Unix milliseconds. Raises ValueError if it is not later than `now`."""
    try:
        timestamp = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("Give a date and a time in UTC, such as 2026-11-21 18:00.") from None
    millis = (timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)).timestamp() * 1000
    if millis <= now:
        raise ValueError("The end is in the past; times are in UTC.")
    return int(millis)


# Errors as HTML pages, with the same statuses as in the API.

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_MAX_QUERY: Final = 8_000
"""Maximum length of a query; servers and proxies accept at least this."""


class HtmlRoute(APIRoute):
    """A route whose errors are HTML pages, and which redirects to /login without a session."""

    def get_route_handler(self) -> _Handler:
        handler: _Handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except UnauthorizedError:
                return await _redirect_to_login(request)
            except BlocklistError as error:
                return error_page(request, error)

        return handle


def error_page(request: Request, error: BlocklistError) -> Response:
    """The page for an error, one line for each of its messages."""
    status = STATUS[type(error)]
    return render_page(
        request, "error.html.j2", Visitor(principal=ANONYMOUS), status, title=status.phrase, lines=error.lines
    )


async def _redirect_to_login(request: Request) -> Response:
    if "hx-request" in request.headers:
        # htmx would follow a redirect and insert the login page as a fragment of this page.
        return Response(status_code=HTTPStatus.UNAUTHORIZED, headers={"HX-Redirect": "/login"})
    query = {}
    if request.method == "GET" and (here := _with_query(request.url.path, request.url.query)) != "/":
        query = {"next": here}
    elif request.method == "POST" and request.url.path.startswith("/page/"):
        # The form has the same path, and is filled in again: the session has ended, but what was typed is not lost.
        query = {"next": _with_query(request.url.path, await _typed(request)), "ended": "yes"}
    return RedirectResponse(_with_query("/login", urlencode(query, safe="/", quote_via=quote)), HTTPStatus.SEE_OTHER)


async def _typed(request: Request) -> str:
    """What was typed into the submitted form, as a query; empty if it is too long for an address, or unreadable."""
    try:
        form = await read_form(request)
    except BlocklistError:
        return ""
    query = urlencode({name: form[name] for name in FIELDS if name in form})
    return query if len(query) <= _MAX_QUERY else ""


def _with_query(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path

"""Forms: what was typed, read strictly, and said back with a sentence where it is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request

from app.api.responses import MAX_NODE_BODY, TooLargeError
from blocklist.model.durations import parse_duration
from blocklist.model.errors import InvalidError
from blocklist.model.node import ACTION_BY_NAME, MAX_CAUSE_LENGTH, PERMANENT, BlockAction, BlockedNode, check_text
from blocklist.model.node_ranges import expand_nodes

T = TypeVar("T")
Form = Mapping[str, str]
"""Fields by name, as they were sent; the first of each."""

_MAX_FIELDS: Final = 50
_SEPARATORS: Final = re.compile(r"[\s;]+")
EMPTY: Final[Form] = {"nodes": "", "action": "mark", "cause": "", "ends": "for", "for": "2h", "until": ""}
"""The form before anybody has typed."""


class FormError(Exception):
    """Some fields are wrong: name to sentence."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__(" ".join(errors.values()))
        self.errors = dict(errors)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockForm:
    """What a form asks for; `end` in Unix milliseconds."""

    nodes: tuple[str, ...]
    action: BlockAction
    end: int
    cause: str


async def read_form(request: Request) -> Form:
    """The fields of a form. Raises InvalidError, TooLargeError."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > MAX_NODE_BODY:
        raise TooLargeError(f"A form of the page has at most {MAX_NODE_BODY // 1024} KiB.")
    try:
        # Not read_body: who asks was found in the body, perhaps, and only this can read it again.
        body = (await request.body()).decode()
        pairs = parse_qsl(body, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError:
        raise InvalidError("This is not a form of the page.") from None
    return dict(reversed(pairs))


def parse_block_form(form: Form, now: int, current: BlockedNode | None = None) -> BlockForm:
    """What a form asks for at `now`; of a `present` block what is left out stays as it is. Raises FormError."""
    errors: dict[str, str] = {}

    def read(name: str, reader: Callable[[], T], instead: T) -> T:
        try:
            return reader()
        except ValueError as error:
            errors[name] = str(error)
            return instead

    nodes: tuple[str, ...] = read("nodes", lambda: _nodes(form), tuple[str, ...]())
    action = read("action", lambda: _action(form), BlockAction.MARK_BLOCKED)
    cause = read("cause", lambda: _cause(form, current), "")
    end = read("ends", lambda: _end(form, now, current), 0)
    if errors:
        raise FormError(errors)
    return BlockForm(nodes=nodes, action=action, end=end, cause=cause)


def _nodes(form: Form) -> tuple[str, ...]:
    """As the command reads them, ranges too; and commas may stand anywhere between."""
    words = [word.strip(",") for word in _SEPARATORS.split(form.get("nodes", ""))]
    return tuple(expand_nodes([word for word in words if word]))


def _action(form: Form) -> BlockAction:
    action = ACTION_BY_NAME.get(form.get("action", ""))
    if action is None:
        raise ValueError("Choose what is to happen.")
    return action


def _cause(form: Form, current: BlockedNode | None) -> str:
    # Lines of a form end with CR LF; a reason is one line.
    cause = " ".join(form.get("cause", "").split())
    if not cause and current is not None:
        # A part of a cause changes nothing when it is merged with that again; the whole may be too long.
        return next((part for part in current.cause.split(",") if part), current.cause)
    if not cause:
        raise ValueError("Give a reason: it is what the next one on call will read.")
    if len(cause) > MAX_CAUSE_LENGTH:
        raise ValueError(f"The reason may have {MAX_CAUSE_LENGTH:,} characters.")
    return check_text(cause)


def _end(form: Form, now: int, current: BlockedNode | None) -> int:
    match form.get("ends"):
        case "for":
            return now + parse_duration("".join(form.get("for", "").split()))
        case "until":
            return _until(form.get("until", ""), now)
        case "never":
            return PERMANENT
        case "same" if current is not None:
            return current.end
    raise ValueError("Choose when the node is free again.")


def _until(text: str, now: int) -> int:
    try:
        timestamp = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("Give a date and a time, as 2026-11-21 18:00.") from None
    millis = (timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)).timestamp() * 1000
    if millis <= now:
        raise ValueError("That moment has passed already; times are in UTC.")
    return int(millis)

"""Forms: what was typed, read strictly, and said back with a sentence where it is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request

from app.api.responses import ONE_NODE, TooLargeError
from blocklist.cli import ranges
from blocklist.cli.durations import duration
from blocklist.model.errors import InvalidError
from blocklist.model.node import ACTIONS, MAX_CAUSE, PERMANENT, BlockAction, BlockedNode, check_text

T = TypeVar("T")
Form = Mapping[str, str]
"""Fields by name, as they were sent; the first of each."""

_FIELDS: Final = 50
_SEPARATORS: Final = re.compile(r"[\s;]+")
EMPTY: Final[Form] = {"nodes": "", "action": "mark", "cause": "", "ends": "for", "for": "2h", "until": ""}
"""The form before anybody has typed."""


class FormError(Exception):
    """Some fields are wrong: name to sentence."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__(" ".join(faults.values()))
        self.faults = dict(faults)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What a form asks for; `end` in Unix milliseconds."""

    nodes: tuple[str, ...]
    action: BlockAction
    end: int
    cause: str


async def read_form(request: Request) -> Form:
    """The fields of a form. Raises InvalidError, TooLargeError."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > ONE_NODE:
        raise TooLargeError(f"A form of the page has at most {ONE_NODE // 1024} KiB.")
    try:
        # Not read_body: who asks was found in the body, perhaps, and only this can read it again.
        body = (await request.body()).decode()
        pairs = parse_qsl(body, keep_blank_values=True, max_num_fields=_FIELDS, errors="strict")
    except ValueError:
        raise InvalidError("This is not a form of the page.") from None
    return dict(reversed(pairs))


def read_wish(form: Form, now: int, present: BlockedNode | None = None) -> Wish:
    """What a form asks for at `now`; of a `present` block what is left out stays as it is. Raises FormError."""
    faults: dict[str, str] = {}

    def read(name: str, reader: Callable[[], T], instead: T) -> T:
        try:
            return reader()
        except ValueError as error:
            faults[name] = str(error)
            return instead

    nodes: tuple[str, ...] = read("nodes", lambda: _nodes(form), tuple[str, ...]())
    action = read("action", lambda: _action(form), BlockAction.MARK_BLOCKED)
    cause = read("cause", lambda: _cause(form, present), "")
    end = read("ends", lambda: _end(form, now, present), 0)
    if faults:
        raise FormError(faults)
    return Wish(nodes=nodes, action=action, end=end, cause=cause)


def _nodes(form: Form) -> tuple[str, ...]:
    """As the command reads them, ranges too; and commas may stand anywhere between."""
    words = [word.strip(",") for word in _SEPARATORS.split(form.get("nodes", ""))]
    return tuple(ranges.nodes([word for word in words if word]))


def _action(form: Form) -> BlockAction:
    action = ACTIONS.get(form.get("action", ""))
    if action is None:
        raise ValueError("Choose what is to happen.")
    return action


def _cause(form: Form, present: BlockedNode | None) -> str:
    # Lines of a form end with CR LF; a reason is one line.
    cause = " ".join(form.get("cause", "").split())
    if not cause and present is not None:
        # A part of a cause changes nothing when it is merged with that again; the whole may be too long.
        return next((part for part in present.cause.split(",") if part), present.cause)
    if not cause:
        raise ValueError("Give a reason: it is what the next one on call will read.")
    if len(cause) > MAX_CAUSE:
        raise ValueError(f"The reason may have {MAX_CAUSE:,} characters.")
    return check_text(cause)


def _end(form: Form, now: int, present: BlockedNode | None) -> int:
    match form.get("ends"):
        case "for":
            return now + duration("".join(form.get("for", "").split()))
        case "until":
            return _until(form.get("until", ""), now)
        case "never":
            return PERMANENT
        case "same" if present is not None:
            return present.end
    raise ValueError("Choose when the node is free again.")


def _until(text: str, now: int) -> int:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("Give a date and a time, as 2026-11-21 18:00.") from None
    millis = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000
    if millis <= now:
        raise ValueError("That moment has passed already; times are in UTC.")
    return int(millis)

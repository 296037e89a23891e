"""Body, the base of all bodies that the service sends: dataclasses whose fields are in camelCase on the wire.

The client reads them with `parse`; the API document is made of the same classes. They do without pydantic, which takes
longer to import than most commands run.

Times are Unix milliseconds as decimal strings: 9223372036854775807 does not survive a JSON number in JavaScript.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from blocklist.model.errors import InvalidError
from blocklist.model.node import MIN_TIMESTAMP, PERMANENT

# Strict reading and compact writing of JSON.

Json = dict[str, Any]


def parse_json(body: bytes) -> Any:
    """Parse a JSON document strictly: UTF-8, also with a byte order mark, no repeated field, no NaN.

    Raises InvalidError.
    """
    try:
        text = body.removeprefix(BOM_UTF8).decode().strip(_WHITESPACE)
        value, end = _decoder.raw_decode(text)
    except UnicodeDecodeError:
        raise InvalidError("The body is not UTF-8.") from None
    except RecursionError:
        raise InvalidError("The body is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise InvalidError(f"The body is not JSON: {error}.") from None
    except InvalidError:
        raise
    except ValueError:
        # Python limits integers to 4,300 digits.
        raise InvalidError("A number in the body is too long.") from None
    if end < len(text):
        raise InvalidError(f"The body is not JSON: {json.JSONDecodeError('Extra data', text, end)}.")
    return value


def dump_json(value: object) -> bytes:
    """Compact JSON in UTF-8."""
    # Ten times as fast as the standard library's, but slow to import: the command does without it.
    from pydantic_core import to_json  # noqa: PLC0415

    return to_json(value)


def _reject_repeated_fields(pairs: list[tuple[str, Any]]) -> Json:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise InvalidError(f"The field {repeated[:64]!a} is given more than once.")
    return fields


def _reject_constant(name: str) -> None:
    raise InvalidError(f"{name} is not JSON.")


_WHITESPACE: Final = " \t\n\r"
_decoder: Final = json.JSONDecoder(object_pairs_hook=_reject_repeated_fields, parse_constant=_reject_constant)


_DECIMAL: Final = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
_CAMEL: Final = re.compile(r"_([a-z])")
# Without look-ahead, which the regular expressions of Go and Rust do not have.
TEXT_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""The rule of check_text, for JSON Schema."""
ID_SCHEMA: Final[Mapping[str, Any]] = {
    "pattern": r"^(?:\.{0,2}[A-Za-z0-9_:-][A-Za-z0-9._:-]*|\.{3}[A-Za-z0-9._:-]*)$",
    "maxLength": 253,
}
"""The rule of check_id, for JSON Schema."""
MILLIS_STRING: Final = {"type": "string", "pattern": "^(0|-?[1-9][0-9]{0,18})$"}
"""A time, for JSON Schema."""


class Doc:
    """In Annotated: what the API document says about a field."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], Json]) -> Json:
        return {**handler(core_schema), "description": self.text}


class Rule:
    """In Annotated: how a value is read that its type alone does not describe.

    `read` returns it, or raises ValueError with what is expected; `schema` is the same for JSON Schema.
    """

    def __init__(self, read: Callable[[object], Any], schema: Mapping[str, Any]) -> None:
        self.read = read
        self.schema = schema

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], Json]) -> Json:
        return {**handler(core_schema), **self.schema}


def parse_millis(value: object) -> int:
    """A time in a body: decimal string or integer. Raises ValueError."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("give Unix milliseconds as an integer or a decimal string")
    if not MIN_TIMESTAMP <= value <= PERMANENT:
        raise ValueError("the time does not fit into 64 bits")
    return value


def between(low: int, high: int | None = None) -> Rule:
    """An integer from `low` to `high`."""

    def read(value: object) -> int:
        if type(value) is not int or value < low or (high is not None and value > high):
            raise ValueError(f"give an integer of at least {low}" + ("" if high is None else f" and at most {high}"))
        return value

    return Rule(read, {"minimum": low} | ({} if high is None else {"maximum": high}))


def matching(pattern: str) -> Rule:
    """A text in which this regular expression is found."""
    # `$` would also match before a final line end.
    form = re.compile(pattern.replace("$", r"\Z"))

    def read(value: object) -> str:
        if not isinstance(value, str) or not form.search(value):
            raise ValueError(f"give a text that matches {pattern}")
        return value

    return Rule(read, {"pattern": pattern})


Millis = Annotated[int, Rule(parse_millis, MILLIS_STRING)]


def camel(name: str) -> str:
    """`end_timestamp` as it is on the wire: `endTimestamp`."""
    return _CAMEL.sub(lambda match: match[1].upper(), name)


class Body:
    """A body in an answer of the service. Subclasses are dataclasses; see Doc and Rule for their fields.

    They are not frozen, which would double the time to import them.
    """

    __pydantic_config__: ClassVar[Any] = {"alias_generator": camel}
    """For the API document."""
    if TYPE_CHECKING:
        _received: Json

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read a JSON value strictly; unknown fields are ignored. Raises InvalidError, which names the first fault."""
        try:
            return cls._read(value)
        except _InvalidValueError as fault:
            where = ".".join(map(str, reversed(fault.places))) or "the body"
            raise InvalidError(f"{ascii(where)[1:-1][:80]}: {fault}.") from None

    def json_value(self) -> Json:
        """The JSON value as it was received."""
        return self._received

    @classmethod
    def _read(cls, value: object) -> Self:
        if not isinstance(value, dict):
            raise _InvalidValueError("give an object")
        values = {}
        for field in _fields_of(cls):  # type: ignore[arg-type]  # mypy: no class is hashable
            if field.alias in value:
                values[field.name] = _read_at(field.alias, field.read, value[field.alias])
            elif field.required:
                raise _InvalidValueError("this field is required", field.alias)
        body = cls(**values)
        body._received = value
        return body


@dataclass(kw_only=True)
class Page(Body):
    """A page of a list."""

    next: Annotated[str | None, Doc("`after` of the next page; null on the last page.")]


def with_example(**example: object) -> Any:
    """The `__pydantic_config__` of a body with an example in the API document."""
    return {**Body.__pydantic_config__, "json_schema_extra": {"examples": [example]}}


class _InvalidValueError(Exception):
    """`places` lead to the fault, the innermost first."""

    def __init__(self, sentence: str, *places: str | int) -> None:
        super().__init__(sentence)
        self.places = list(places)


class _Field(NamedTuple):
    name: str
    alias: str
    required: bool
    read: Callable[[Any], Any]


@cache
def _fields_of(body: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(body, include_extras=True)
    return tuple(
        _Field(
            name=field.name,
            alias=camel(field.name),
            required=field.default is MISSING and field.default_factory is MISSING,
            read=_reader(hints[field.name]),
        )
        for field in fields(body)
    )


def _reader(kind: Any) -> Callable[[Any], Any]:
    """What reads a value of this type, as the fields of bodies have it. It raises _InvalidValueError."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        rule = next((it for it in kind.__metadata__ if isinstance(it, Rule)), None)
        return _reader(arguments[0]) if rule is None else _by_rule(rule)
    if origin in (Union, UnionType):
        (some,) = (it for it in arguments if it is not NoneType)
        return _optional(_reader(some))
    if origin is list:
        return _list_of(_reader(arguments[0]))
    if origin is dict:
        return _dict_of(_reader(arguments[1]))
    if origin is Literal:
        return _one_of(arguments)
    return kind._read if issubclass(kind, Body) else _exactly(kind)  # noqa: SLF001


def _read_at(place: str | int, read: Callable[[Any], Any], value: object) -> Any:
    try:
        return read(value)
    except _InvalidValueError as fault:
        fault.places.append(place)
        raise


def _by_rule(rule: Rule) -> Callable[[Any], Any]:
    def read(value: object) -> Any:
        try:
            return rule.read(value)
        except ValueError as error:
            raise _InvalidValueError(str(error)) from None

    return read


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _list_of(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_all(value: object) -> list[Any]:
        items = _exactly(list)(value)
        return [_read_at(place, read, item) for place, item in enumerate(items)]

    return read_all


def _dict_of(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_all(value: object) -> dict[str, Any]:
        items = _exactly(dict)(value)
        return {name: _read_at(name, read, item) for name, item in items.items()}

    return read_all


def _one_of(values: tuple[Any, ...]) -> Callable[[Any], Any]:
    types = {type(value) for value in values}

    def read(value: object) -> Any:
        # Neither is `true` 1, nor is 201.0 the same as 201.
        if type(value) not in types or value not in values:
            raise _InvalidValueError(f"give one of {', '.join(map(repr, values))}")
        return value

    return read


_NAMES: Final = {str: "a text", int: "an integer", bool: "true or false", list: "a list", dict: "an object"}


def _exactly(kind: type) -> Callable[[Any], Any]:
    sentence = f"give {_NAMES[kind]}"

    def read(value: object) -> Any:
        if type(value) is not kind:
            raise _InvalidValueError(sentence)
        return value

    return read


# The types of problems (RFC 9457), by which the client tells errors with one status apart.

LIMIT_PROBLEM: Final = "urn:blocklist:problem:limit"
"""The problem type of a 409 caused by a limit. Unlike a conflict, it has no existing block to merge with."""

AMBIGUOUS_PROBLEM: Final = "urn:blocklist:problem:ambiguous-node"
"""The problem type of a 409 for a name that means several blocked nodes."""

UNKNOWN_NODE_PROBLEM: Final = "urn:blocklist:problem:unknown-node"
"""The problem type of a 409 for a node that is not known, if `strict` was given."""

DISMISSED_PROBLEM: Final = "urn:blocklist:problem:dismissed"
"""The problem type of a 409 for a claim of an owner that was dismissed after what the claim rests on was observed."""

ALREADY_BLOCKED_PROBLEM: Final = "urn:blocklist:problem:already-blocked"
"""The problem type of a 409 for nodes that are blocked, without `allowMerge`."""

FENCED_PROBLEM: Final = "urn:blocklist:problem:fenced"
"""The problem type of a 409 for a session of a listener that another one has replaced."""

LAST_ADMIN_PROBLEM: Final = "urn:blocklist:problem:last-admin"
"""The problem type of a 409 for the last token of an admin, which cannot be revoked."""

NO_PATH_PROBLEM: Final = "urn:blocklist:problem:no-such-path"
"""The problem type of a 404 for a path that the service does not have. Any other 404 is about a node, for example."""

"""Strict reading and compact writing of JSON."""

from __future__ import annotations

import json
from typing import Any, Final

from blocklist.model.errors import InvalidError

Json = dict[str, Any]


def parse_json(body: bytes) -> Any:
    """Parse a JSON document strictly: UTF-8, no repeated field, no NaN. Raises InvalidError."""
    try:
        text = body.decode().strip(_WHITESPACE)
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

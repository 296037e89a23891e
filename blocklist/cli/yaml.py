"""JSON values as YAML: a subset of YAML 1.2 that older parsers read alike."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

# Anything that a parser might take for a number, a date, a truth value or syntax is quoted.
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./@-]*(?: [A-Za-z0-9_./@-]+)*", re.ASCII)
_RESERVED: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def dump_yaml(value: object) -> str:
    """The lines of a document, without a final line end."""
    return "\n".join(_lines(value)) if isinstance(value, (dict, list)) and value else _scalar(value)


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _entry(f"{_scalar(str(key))}:", item, indent="  ")
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, (dict, list)) and item:
                first, *rest = _lines(item)
                yield f"- {first}"
                yield from (f"  {line}" for line in rest)
            else:
                yield f"- {_scalar(item)}"


def _entry(key: str, item: object, indent: str) -> Iterator[str]:
    if isinstance(item, (dict, list)) and item:
        yield key
        yield from (f"{indent}{line}" for line in _lines(item))
    else:
        yield f"{key} {_scalar(item)}"


def _scalar(value: object) -> str:
    """Text is plain where that is safe; else, and for all other values, JSON, which is YAML too."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return json.dumps(value, ensure_ascii=True)

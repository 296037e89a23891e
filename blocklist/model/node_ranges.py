"""Node ranges as in Slurm and pdsh: `worker-[01-12]`, `r[1-2]n[a,b,07-09]`, separated by commas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice, product
from typing import Final

from blocklist.model.errors import InvalidError
from blocklist.model.node import check_node_id

MAX_NODES: Final = 1000
"""Maximum number of nodes of one command, as of one request."""
_COMMA: Final = re.compile(r",(?![^\[\]]*\])")
_BRACKETS: Final = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]")
_OTHER_RANGE: Final = re.compile(r"([0-9]+)(?:\.\.|:)([0-9]+)", re.ASCII)
_RANGE: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})", re.ASCII)


def expand_nodes(words: Iterable[str]) -> list[str]:
    """The node ids of the words, in order and without duplicates.

    Raises ValueError for an invalid word or id, no nodes, or more than MAX_NODES.
    """
    node_ids = dict.fromkeys(islice(_expand_words(words), MAX_NODES + 1))
    if not node_ids:
        raise ValueError("No node is given: name at least one.")
    if len(node_ids) > MAX_NODES:
        raise ValueError(f"More than {MAX_NODES:,} nodes are given: split them into several commands.")
    return list(node_ids)


def _expand_words(words: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for word in words:
        for part in _COMMA.split(word):
            for node_id in _expand_part(part, word):
                # Duplicates do not count towards the maximum.
                if node_id not in seen:
                    seen.add(node_id)
                    yield _checked_id(node_id)


def _expand_part(part: str, word: str) -> Iterator[str]:
    """Expand a part without commas outside of brackets. Huge ranges are never held in memory."""
    pieces: list[str] = []
    values: list[list[str]] = []
    end = 0
    for match in _BRACKETS.finditer(part):
        pieces.append(match[1])
        values.append(list(islice(_bracket_values(match[2], word), MAX_NODES + 1)))
        end = match.end()
    rest = part[end:]
    if not part or "[" in rest or "]" in rest:
        raise ValueError(f"{word[:64]!a} is invalid: write several nodes as worker-[01-12] or r[1-2]n[a,b,07-09].")
    for chosen in product(*values):
        yield "".join(piece + choice for piece, choice in zip(pieces, chosen, strict=True)) + rest


def _bracket_values(brackets: str, word: str) -> Iterator[str]:
    for item in brackets.split(","):
        if match := _RANGE.fullmatch(item):
            first, last = int(match[1]), int(match[2])
            if first > last:
                raise ValueError(f"{word[:64]!a}: the range {item} is descending: write the lower number first.")
            # As in Slurm, the first number sets the number of digits.
            yield from (f"{number:0{len(match[1])}}" for number in range(first, last + 1))
        elif other := _OTHER_RANGE.fullmatch(item):
            raise ValueError(f"{word[:64]!a}: write the range {item[:64]} as {other[1]}-{other[2]}."[:200])
        elif item and "-" not in item:
            yield item
        else:
            raise ValueError(f"{word[:64]!a}: {item[:64]!a} is neither a name nor a range of numbers.")


def _checked_id(node_id: str) -> str:
    try:
        return check_node_id(node_id)
    except InvalidError as error:
        raise ValueError(error.detail) from None

"""Nodes as people write them: `worker-[01-12]`, `r[1-2]n[a,b,07-09]`, several with commas, as in Slurm and pdsh."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice, product
from typing import Final

from blocklist.model.errors import InvalidError
from blocklist.model.node import check_node_id

MAX_NODES: Final = 1000
"""So many nodes one command may name, as one request may."""
_COMMA: Final = re.compile(r",(?![^\[\]]*\])")
_BRACKETS: Final = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]")
_RANGE: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})", re.ASCII)


def expand_nodes(words: Iterable[str]) -> list[str]:
    """The node ids that the words stand for, in order, each once.

    Raises ValueError with a sentence for a word that cannot be read, an id that is none, no nodes and too many.
    """
    found = dict.fromkeys(islice(_expand_words(words), MAX_NODES + 1))
    if not found:
        raise ValueError("No node is named.")
    if len(found) > MAX_NODES:
        raise ValueError(f"More than {MAX_NODES:,} nodes are named; one command takes at most so many.")
    return list(found)


def _expand_words(words: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for word in words:
        for part in _COMMA.split(word):
            for node_id in _expand_part(part, word):
                # An id that comes again does not count.
                if node_id not in seen:
                    seen.add(node_id)
                    yield _checked_id(node_id)


def _expand_part(part: str, word: str) -> Iterator[str]:
    """A part without a comma outside of brackets. Huge ranges are walked, never held."""
    pieces: list[str] = []
    values: list[list[str]] = []
    end = 0
    for match in _BRACKETS.finditer(part):
        pieces.append(match[1])
        values.append(list(islice(_bracket_values(match[2], word), MAX_NODES + 1)))
        end = match.end()
    rest = part[end:]
    if not part or "[" in rest or "]" in rest:
        raise ValueError(f"{word[:64]!a} cannot be read: write several nodes as worker-[01-12] or r[1-2]n[a,b,07-09].")
    for chosen in product(*values):
        yield "".join(piece + choice for piece, choice in zip(pieces, chosen, strict=True)) + rest


def _bracket_values(brackets: str, word: str) -> Iterator[str]:
    for item in brackets.split(","):
        if match := _RANGE.fullmatch(item):
            first, last = int(match[1]), int(match[2])
            if first > last:
                raise ValueError(f"{word[:64]!a}: the range {item} goes down.")
            # As in Slurm, the first number says how many digits there are.
            yield from (f"{number:0{len(match[1])}}" for number in range(first, last + 1))
        elif item and "-" not in item:
            yield item
        else:
            raise ValueError(f"{word[:64]!a}: {item[:64]!a} is neither a name nor a range of numbers.")


def _checked_id(node_id: str) -> str:
    try:
        return check_node_id(node_id)
    except InvalidError as error:
        raise ValueError(error.detail) from None

"""The command line on which TAB was pressed, as the scripts of the shells pass it."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

COMPLETE: Final = "_BLOCKLIST_COMPLETE"
"""The variable with which the scripts of `blocklist completion` ask for completions."""
_QUOTES: Final = frozenset("\"'\\")
_BREAKS: Final = frozenset(":=")
"""Characters that bash makes words of their own, and of which only what follows them is replaced by a completion."""


class CompletedLine(NamedTuple):
    """The words before the one that is completed, without the command's name, and the beginning of that word.

    The shell keeps the first `kept` characters of the word; a completion replaces the others.
    """

    words: list[str]
    incomplete: str
    kept: int = 0


def read() -> CompletedLine:
    """The line, from the environment. Quotes are removed, also one that is still open."""
    if os.environ[COMPLETE] == "complete_bash":
        return _of_bash(_unquoted(os.environ.get("COMP_WORDS", "")), int(os.environ.get("COMP_CWORD", "0")))
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _unquoted(line)[1:]
    # Without the space, a word that is not finished; an open quote may contain the space.
    is_new_word = line.endswith(" ") and not (words and words[-1].endswith(" "))
    return CompletedLine(words, "") if not words or is_new_word else CompletedLine(words[:-1], words[-1])


def _of_bash(words: list[str], place: int) -> CompletedLine:
    """`fe80::1` and `--context=lab` are three words for bash, unless COMP_WORDBREAKS is another one."""
    joined: list[str] = []
    is_break, kept = True, 0
    for word in words[1 : place + 1]:
        was_break, is_break = is_break, _BREAKS.issuperset(word)
        if joined and (is_break or was_break):
            kept = len(joined[-1]) + len(word) * is_break
            joined[-1] += word
        else:
            kept = len(word) * is_break
            joined.append(word)
    return CompletedLine(joined[:-1], joined[-1], kept) if 0 < place < len(words) else CompletedLine(joined, "")


def _unquoted(line: str) -> list[str]:
    if _QUOTES.isdisjoint(line):
        return line.split()
    import shlex  # noqa: PLC0415 - rarely needed

    parser = shlex.shlex(line, posix=True)
    parser.whitespace_split, parser.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(parser)
    except ValueError:
        # A quote is still open.
        words.append(parser.token)
    return words

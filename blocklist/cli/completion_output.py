"""What TAB offers, in the form that each shell expects."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from blocklist.cli import output
from blocklist.cli.completed_line import COMPLETE

EXIT_FILES = 1
"""Exit code that asks the shell for the files of the folder instead; scripts of typer do so for fish."""


def print_completions(found: Sequence[str] | Mapping[str, str], *, kept: int = 0, files: bool = False) -> None:
    """Print the words, in this order, each with its help if it has one.

    The shell keeps the first `kept` characters of the word. With `files`, files are offered if no words are found.
    """
    texts = found if isinstance(found, Mapping) else dict.fromkeys(found, "")
    match os.environ[COMPLETE]:
        case "complete_zsh" if texts:
            items = " ".join(_for_zsh(word, text) for word, text in texts.items())
            output.print_lines(f"local -a blocklist_words=({items}); _describe -V blocklist blocklist_words")
        case "complete_zsh":
            output.print_lines("_files" if files else "")
        case "complete_fish" if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") != "is-args":
            output.print_lines(*("\t".join(filter(None, item)) for item in texts.items()))
        case "complete_bash":
            output.print_lines(*(word[kept:] for word in texts))
    if files and not texts:
        sys.exit(EXIT_FILES)


def _for_zsh(word: str, text: str) -> str:
    """An item of _describe, quoted for eval."""
    item = word.replace("\\", "\\\\").replace(":", "\\:") + (f":{text}" if text else "")
    return "'" + item.replace("'", "'\\''") + "'"

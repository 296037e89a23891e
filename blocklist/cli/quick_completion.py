"""TAB: the blocked nodes for a word on the command line, without the libraries of the commands, as in quick_list.

What is printed is what the scripts of typer expect. Everything else than a node id is left to typer.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from blocklist.cli import environment, output
from blocklist.client.quick_read import NotQuickError, quick_get
from blocklist.model.errors import BlocklistError

NODE_COMMANDS: Final = ("extend", "unblock", "is-blocked", "history", "status", "claims", "get")
"""The commands that take blocked nodes; the last only one."""
_SPECIAL: Final = frozenset("\"'\\$`")


def run() -> bool:
    """Print the completions if the word is a node id; return whether it is."""
    try:
        words, incomplete = environment.completed_line()
        if not _SPECIAL.isdisjoint("".join([*words, incomplete])):
            return False
        if not _is_node(environment.take_context(words), incomplete):
            return False
        print_completions([node_id for node_id in _node_ids() if node_id.startswith(incomplete)])
    except (NotQuickError, BlocklistError, OSError):
        return False
    return True


def print_completions(node_ids: list[str]) -> None:
    """Print them for the shell that asks. For fish, which also asks whether there are any, exit with the answer."""
    match os.environ[environment.COMPLETE]:
        case "complete_zsh" if node_ids:
            quoted = "\n".join(f'"{node_id}"'.replace(":", r"\\:") for node_id in node_ids)
            output.print_lines(f"_arguments '*: :(({quoted}))'")
        case "complete_zsh":
            output.print_lines("_files")
        case "complete_fish" if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
            sys.exit(0 if node_ids else 1)
        case _:
            output.print_lines("\n".join(node_ids))


def _is_node(words: list[str], incomplete: str) -> bool:
    if not words or words[0] not in NODE_COMMANDS or (words[0] == NODE_COMMANDS[-1] and len(words) > 1):
        return False
    return not any(word.startswith("-") for word in [*words, incomplete])


def _node_ids() -> list[str]:
    environment.check_names(os.environ)
    url, read_token = environment.service()
    body = quick_get(url, "/blocklist", read_token, environment.COMPLETION_TIMEOUT)
    if not isinstance(body, dict):
        raise NotQuickError
    return sorted(body)

"""TAB: the nodes, commands and contexts for a word on the command line, without the libraries of the commands.

Commands that block complete the nodes of the inventory, others the blocked ones.

Everything else, such as options, is left to full_completion.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from blocklist.cli import completed_line, contexts, environment
from blocklist.cli.completion_output import print_completions
from blocklist.cli.completion_words import COMMANDS, CONTEXT_COMMANDS, FLAGS, VALUED_OPTIONS
from blocklist.client.quick_read import NotQuickError, quick_get
from blocklist.model.errors import BlocklistError

NODE_COMMANDS: Final = ("extend", "unblock", "is-blocked", "history", "status", "claims", "get")
"""The commands that take blocked nodes; the last only one."""
BLOCK_COMMANDS: Final = ("block", "drain")
_CONTEXT: Final = "--context="


def run() -> bool:
    """Print the completions if it is known here which there are; return whether it is."""
    try:
        words, incomplete, kept = completed_line.read()
        print_completions(_completions(words, incomplete), kept=kept)
    except (NotQuickError, BlocklistError, OSError):
        return False
    return True


def _completions(words: list[str], incomplete: str) -> Sequence[str] | Mapping[str, str]:
    if words[-1:] == ["--context"]:
        return _contexts(incomplete)
    if incomplete.startswith(_CONTEXT):
        return [_CONTEXT + name for name in _contexts(incomplete.removeprefix(_CONTEXT))]
    words = environment.take_context(words)
    if incomplete.startswith("-"):
        raise NotQuickError
    group = " ".join(words)
    if group in COMMANDS:
        return {name: text for name, text in COMMANDS[group].items() if name.startswith(incomplete)}
    if words[0] == "config" and len(words) == 2 and words[1] in CONTEXT_COMMANDS:
        return _contexts(incomplete)
    if not _is_node(words):
        raise NotQuickError
    return (_known_nodes if words[0] in BLOCK_COMMANDS else _blocked_nodes)(incomplete)


def _contexts(incomplete: str) -> list[str]:
    """None if the file of the contexts cannot be read: an error would be printed into the line."""
    with suppress(BlocklistError):
        return [name for name in contexts.load().contexts if name.startswith(incomplete)]
    return []


def _is_node(words: list[str]) -> bool:
    """Whether the next word is a node: neither an option nor the value of one."""
    command, *others = words
    if command not in {*NODE_COMMANDS, *BLOCK_COMMANDS}:
        return False
    names, rest = 0, iter(others)
    for word in rest:
        if word in VALUED_OPTIONS:
            if next(rest, None) is None:
                return False
        elif not word.startswith("-"):
            names += 1
        elif word not in FLAGS and word.partition("=")[0] not in VALUED_OPTIONS:
            return False
    return command != NODE_COMMANDS[-1] or not names


def _blocked_nodes(incomplete: str) -> list[str]:
    return sorted(node_id for node_id in _read("/blocklist") if node_id.startswith(incomplete))


def _known_nodes(incomplete: str) -> list[str]:
    after = environment.before_completed(incomplete)
    # An id has no character that a query would have to escape.
    nodes = _read("/nodes?limit=1000" + ("" if after is None else f"&after={after}")).get("nodes")
    if not isinstance(nodes, list):
        raise NotQuickError
    return environment.free_first(incomplete, {node["id"]: bool(node["blocked"]) for node in nodes})


def _read(path: str) -> dict[str, Any]:
    environment.check_names(os.environ)
    url, read_token = environment.service()
    body = quick_get(url, path, read_token, environment.COMPLETION_TIMEOUT).body
    if not isinstance(body, dict):
        raise NotQuickError
    return body

"""The nodes that a command names, by ranges or by a selector of labels (-l)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from blocklist.cli import options
from blocklist.cli.output import print_stderr
from blocklist.model.errors import NotFoundError, UnknownNodeError
from blocklist.model.node import MAX_NODES

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient


def known_nodes(client: BlocklistClient, words: Sequence[str] | None, selector: str | None) -> list[str]:
    """The named nodes, or the known ones that the selector selects, blocked or not.

    Raises a usage error unless exactly one of both is given, NotFoundError if no node is selected, UnknownNodeError for
    a label that no node has: `rak!=r12` would select every node.
    """
    if selector is None:
        return _named(words)
    _refuse_both(words)
    _refuse_empty(selector)
    known = client.known_nodes(selector=selector)
    _refuse_unknown_labels(known.warnings)
    return _checked([node.id for node in known.nodes], selector)


def blocked_nodes(client: BlocklistClient, words: Sequence[str] | None, selector: str | None) -> list[str]:
    """As known_nodes, but of the selected nodes only those that are blocked."""
    if selector is None:
        return _named(words)
    _refuse_both(words)
    _refuse_empty(selector)
    listing = client.listing(selector=selector)
    _refuse_unknown_labels(listing.warnings)
    if not listing.nodes:
        print_stderr(f"No node that {selector} selects is blocked.")
        raise typer.Exit(0)
    return _checked([entry.node.id for entry in listing.nodes], selector)


def _named(words: Sequence[str] | None) -> list[str]:
    if not words:
        raise typer.BadParameter("name at least one node, or select nodes with -l.")
    return options.expand_nodes(words)


def _refuse_both(words: Sequence[str] | None) -> None:
    if words:
        raise typer.BadParameter("give either node names or -l, not both.")


def _refuse_empty(selector: str) -> None:
    """An unset variable of a script must not select every node."""
    if not selector.strip():
        raise typer.BadParameter("The selector is empty, which would select every node.", param_hint="-l")


def _refuse_unknown_labels(warnings: Sequence[str]) -> None:
    if warnings:
        raise UnknownNodeError(" ".join(warnings))


def _checked(node_ids: list[str], selector: str) -> list[str]:
    if not node_ids:
        raise NotFoundError(f"No node has the labels {selector}.")
    if len(node_ids) > MAX_NODES:
        raise typer.BadParameter(f"-l: {len(node_ids):,} nodes are selected; the maximum is {MAX_NODES:,}.")
    return node_ids

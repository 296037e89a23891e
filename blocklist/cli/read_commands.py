"""list, get, is-blocked, history and status."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from blocklist.cli import columns, messages, options
from blocklist.cli.output import Form, Look, clear, dumped, note, say, sentence, show
from blocklist.cli.service import connect
from blocklist.cli.times import now
from blocklist.model.changes import Snapshot
from blocklist.model.errors import NotFoundError

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient
    from blocklist.wire.listeners import StatusBody


def list_(
    at: options.At = None,
    output: options.Output = Form.TABLE,
    no_headers: options.NoHeaders = False,
    watch: options.Watching = False,
) -> None:
    """Show the blocked nodes."""
    look = Look(output, not no_headers)
    with connect() as client:
        listing = client.listing(at=at)
        show(columns.NODES, listing.nodes, look)
        if watch and at is None:
            _again(client, listing.revision, look)


def _again(client: BlocklistClient, shown: int, look: Look) -> None:
    """Show the list again after each change that is not in it yet."""
    with client.watch() as changes:
        for change in changes:
            # A snapshot begins each history, and its revisions may be lower.
            if change.revision > shown or (isinstance(change, Snapshot) and change.revision != shown):
                listing = client.listing(min_revision=change.revision)
                shown = listing.revision
                if look.tabular:
                    clear()
                show(columns.NODES, listing.nodes, look)


def get(node: options.Node, output: options.Output = Form.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show one blocked node."""
    with connect() as client:
        found = [listed for listed in client.listing().nodes if listed.node.id == node]
    if not found:
        raise NotFoundError(f"Node {node} is not blocked.")
    if output is Form.JSON:
        say(dumped(columns.listed_json(found[0]), indent=2))
    else:
        show(columns.NODES, found, Look(output, not no_headers))


def is_blocked(node: options.Node) -> None:
    """Say whether a node is blocked: exit code 0 if it is, 1 if it is not."""
    at = now()
    with connect() as client:
        try:
            sentence(messages.blocked(client.get(node), at))
        except NotFoundError:
            sentence(messages.free(node))
            raise typer.Exit(1) from None


def history(
    node: options.AnyNode = None,
    at: options.At = None,
    by: options.By = None,
    type_: options.Types = None,
    begin: options.Begin = None,
    end: options.End = None,
    output: options.Output = Form.TABLE,
    no_headers: options.NoHeaders = False,
) -> None:
    """Show what happened, the oldest first; or, with --at, the list as it was."""
    look = Look(output, not no_headers)
    with connect() as client:
        if at is None:
            changes = client.changes(node_id=node, created_by=by, types=type_ or (), begin=begin, end=end)
            show(columns.CHANGES, list(changes), look)
        elif by or type_ or begin or end:
            raise typer.BadParameter("--at shows a list: --by, --type, --from and --until are for changes.")
        else:
            listed = [own for own in client.listing(at=at).nodes if node in (None, own.node.id)]
            show(columns.NODES, listed, look)


def status(
    node: options.Node,
    output: options.Output = Form.TABLE,
    no_headers: options.NoHeaders = False,
    watch: options.Watching = False,
) -> None:
    """Show which listeners have applied the node's last change, and what of theirs is still there."""
    look = Look(output, not no_headers)
    with connect() as client:
        said = client.status(node)
        _show_status(said, look)
        while watch:
            time.sleep(1)
            if (now_said := client.status(node)) != said:
                said = now_said
                if look.tabular:
                    clear()
                _show_status(said, look)


def _show_status(said: StatusBody, look: Look) -> None:
    if look.form is Form.JSON:
        say(dumped(said.json_value(), indent=2))
        return
    if look.tabular:
        state = "blocked" if said.blocked else "not blocked"
        # On stderr, so that stdout is a table and nothing else.
        note(f"{said.id} {state}; {said.applied} of {said.of} have applied its last change (revision {said.revision}).")
    show(columns.APPLIED, said.listeners, look)

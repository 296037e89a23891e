"""list, get, is-blocked, history and status."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from blocklist.cli import columns, messages, options
from blocklist.cli.environment import connect, now_ms
from blocklist.cli.output import (
    OutputFormat,
    OutputOptions,
    clear_screen,
    format_json,
    print_items,
    print_lines,
    print_message,
    print_stderr,
)
from blocklist.model.changes import Snapshot
from blocklist.model.errors import AmbiguousNodeError, NotFoundError
from blocklist.model.host_matching import same_machine

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient
    from blocklist.wire.node_status import NodeStatusBody


def list_(
    at: options.AsOf = None,
    output: options.Output = OutputFormat.TABLE,
    no_headers: options.NoHeaders = False,
    watch: options.Watch = False,
) -> None:
    """Show the blocked nodes."""
    view_options = OutputOptions(output, not no_headers)
    with connect() as client:
        listing = client.listing(at=at)
        print_items(columns.NODES, listing.nodes, view_options)
        if watch and at is None:
            _follow_list(client, listing.revision, view_options)


def _follow_list(client: BlocklistClient, shown_revision: int, view_options: OutputOptions) -> None:
    """Show the list again after each change."""
    with client.watch() as changes:
        for change in changes:
            # Revisions of another history may be lower; it begins with a snapshot.
            if change.revision > shown_revision or (isinstance(change, Snapshot) and change.revision != shown_revision):
                listing = client.listing(min_revision=change.revision)
                shown_revision = listing.revision
                if view_options.is_table:
                    clear_screen()
                print_items(columns.NODES, listing.nodes, view_options)


def get(node: options.Node, output: options.Output = OutputFormat.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show one blocked node."""
    with connect() as client:
        node_id = client.get(node).id
        found = [listed for listed in client.listing().nodes if listed.node.id == node_id]
    if not found:
        raise NotFoundError(f"Node {node} is not blocked.")
    if output is OutputFormat.JSON:
        print_lines(format_json(columns.listed_json(found[0]), indent=2))
    else:
        print_items(columns.NODES, found, OutputOptions(output, not no_headers))


def is_blocked(node: options.Node) -> None:
    """Exit code 0 if the node is blocked, 1 if not."""
    at = now_ms()
    with connect() as client:
        try:
            print_message(messages.block_message(client.get(node), at))
        except NotFoundError:
            print_message(messages.not_blocked_message(node))
            raise typer.Exit(1) from None
        except AmbiguousNodeError as error:
            # Whichever of them this machine is, it is blocked.
            for blocked in error.blocked.values():
                print_message(messages.block_message(blocked, at))


def history(
    node: options.OptionalNode = None,
    at: options.AsOf = None,
    by: options.Author = None,
    type_: options.Types = None,
    begin: options.ChangesFrom = None,
    end: options.ChangesUntil = None,
    output: options.Output = OutputFormat.TABLE,
    no_headers: options.NoHeaders = False,
) -> None:
    """Show changes, the oldest first. With --at, show the list at that time."""
    view_options = OutputOptions(output, not no_headers)
    with connect() as client:
        if at is None:
            changes = client.changes(node_id=node, created_by=by, types=type_ or (), begin=begin, end=end)
            print_items(columns.CHANGES, list(changes), view_options)
        elif by or type_ or begin or end:
            raise typer.BadParameter("--at shows a list; --by, --type, --from and --until are for changes.")
        else:
            listed = [
                entry for entry in client.listing(at=at).nodes if node is None or same_machine(node, entry.node.id)
            ]
            print_items(columns.NODES, listed, view_options)


def status(
    node: options.Node,
    output: options.Output = OutputFormat.TABLE,
    no_headers: options.NoHeaders = False,
    watch: options.Watch = False,
) -> None:
    """Show where a node's last change is applied. For each listener: its TaskManagers and tasks on the node."""
    view_options = OutputOptions(output, not no_headers)
    with connect() as client:
        current = client.status(node)
        _print_status(current, view_options)
        while watch:
            time.sleep(1)
            if (now_said := client.status(node)) != current:
                current = now_said
                if view_options.is_table:
                    clear_screen()
                _print_status(current, view_options)


def _print_status(status: NodeStatusBody, view_options: OutputOptions) -> None:
    if view_options.format is OutputFormat.JSON:
        print_lines(format_json(status.json_value(), indent=2))
        return
    if view_options.is_table:
        state = "blocked" if status.blocked else "not blocked"
        # On stderr: stdout contains only the table.
        applied = f"{status.applied} of {status.of} listeners have applied its last change"
        print_stderr(f"{status.id} {state}; {applied} (revision {status.revision}).")
    print_items(columns.APPLIED, status.listeners, view_options)

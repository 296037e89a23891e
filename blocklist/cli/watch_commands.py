"""history, watch, listeners and evidence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from blocklist.cli import columns, options
from blocklist.cli.environment import connect
from blocklist.cli.node_selection import known_nodes
from blocklist.cli.output import (
    Json,
    OutputFormat,
    OutputOptions,
    RowFormatter,
    format_json,
    print_items,
    print_lines,
    print_stderr,
)
from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.errors import AmbiguousNodeError, NotFoundError
from blocklist.model.names import Aliases, no_aliases, normalize_name, same_machine

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient
    from blocklist.model.listing import NodeDetails

Types = Annotated[
    list[ChangeType] | None,
    options.choice_option(ChangeType, "--type", help_text="Changes of this type; can be repeated."),
]


def history(
    node: options.BlockedNodes = None,
    selector: options.Selector = None,
    at: options.AsOf = None,
    by: options.Author = None,
    type_: Types = None,
    begin: options.ChangesFrom = None,
    end: options.ChangesUntil = None,
    output: options.Output = OutputFormat.TABLE,
    no_headers: options.NoHeaders = False,
) -> None:
    """Show changes, the oldest first. With --at, show the list at that time."""
    view_options = OutputOptions(output, not no_headers)
    if at is not None and (by or type_ or begin or end):
        raise typer.BadParameter("--at shows a list; --by, --type, --from and --until are for changes.")
    if begin is not None and end is not None and end <= begin:
        raise typer.BadParameter("--until is not after --from, so no change is between them.")
    with connect() as client:
        node_ids = known_nodes(client, node, selector) if node or selector is not None else None
        if at is not None:
            print_items(columns.nodes_view(at, past=True), _listed_at(client, at, node_ids), view_options)
            return
        read = partial(client.changes, created_by=by, types=type_ or (), begin=begin, end=end)
        pages = [read(node_id=node_id) for node_id in node_ids] if node_ids is not None else [read()]
        # Two names of one machine may be given.
        changes = {change.revision: change for page in pages for change in page}
        print_items(columns.CHANGES, [changes[revision] for revision in sorted(changes)], view_options)


def _listed_at(client: BlocklistClient, at: int, node_ids: Sequence[str] | None) -> list[NodeDetails]:
    """The nodes that were blocked at a time; with `node_ids` only these, under any of their names."""
    listed = list(client.listing(at=at).nodes)
    if node_ids is None:
        return listed
    aliases = {node_id: _aliases_of(client, node_id) for node_id in node_ids}
    return [entry for entry in listed if any(same_machine(name, entry.node.id, aliases[name]) for name in aliases)]


def _aliases_of(client: BlocklistClient, node: str) -> Aliases:
    """What else the machine is called, as the service knows it."""
    try:
        known = client.known_node(node)
    except (NotFoundError, AmbiguousNodeError):
        return no_aliases
    names = {normalize_name(known.id), *known.names, *known.addresses}.difference(known.conflicts)
    return lambda _: names


def watch(output: options.Output = OutputFormat.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show changes as they happen, until Ctrl-C. JSON output begins with the list, as a snapshot."""
    view_options = OutputOptions(output, not no_headers)
    rows = RowFormatter(columns.CHANGES, view_options)
    with connect() as client:
        # Fails if the service is unreachable; the watch would retry without a message.
        snapshot = client.snapshot()
        print_stderr(f"Watching {client.url} from revision {snapshot.revision} on.")
        if not view_options.is_table:
            _print_item(snapshot, view_options, rows)
        with client.watch(since=f"{snapshot.revision}-{snapshot.history}") as changes:
            for change in changes:
                _print_item(change, view_options, rows)


def listeners(output: options.Output = OutputFormat.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show the listeners, and how far each is behind."""
    with connect() as client:
        print_items(columns.LISTENERS, client.listeners(), OutputOptions(output, not no_headers))


def evidence(output: options.Output = OutputFormat.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show what applications report about nodes. COUNTS is `no` for evidence that is ignored."""
    with connect() as client:
        print_items(columns.EVIDENCE, client.evidence(), OutputOptions(output, not no_headers))


def _print_item(item: Snapshot | Change, view_options: OutputOptions, rows: RowFormatter[Change]) -> None:
    if view_options.format is OutputFormat.NAME:
        print_lines(*(item.nodes if isinstance(item, Snapshot) else [item.node.id]))
    elif not view_options.is_table:
        print_lines(format_json(_snapshot_json(item) if isinstance(item, Snapshot) else columns.CHANGES.json(item)))
    elif isinstance(item, Change):
        print_lines(*rows.lines([item]))
    else:
        print_stderr(f"The list was reset: revision {item.revision}, {len(item.nodes)} nodes.")


def _snapshot_json(snapshot: Snapshot) -> Json:
    from blocklist.wire.nodes import node_fields  # noqa: PLC0415 - not for --version and --help

    nodes = {node_id: {"id": node_id, **node_fields(node)} for node_id, node in snapshot.nodes.items()}
    return {"type": "snapshot", "revision": snapshot.revision, "history": snapshot.history, "nodes": nodes}

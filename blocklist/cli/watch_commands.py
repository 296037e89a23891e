"""watch, listeners and evidence."""

from __future__ import annotations

from blocklist.cli import columns, options
from blocklist.cli.environment import connect
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
from blocklist.model.changes import Change, Snapshot


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

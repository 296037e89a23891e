"""watch, listeners and evidence."""

from __future__ import annotations

from blocklist.cli import columns, options
from blocklist.cli.output import Form, Json, Look, Rows, dumped, note, say, show
from blocklist.cli.service import connect
from blocklist.model.changes import Change, Snapshot


def watch(output: options.Output = Form.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show changes as they happen, until Ctrl-C. As JSON the list comes first, as a snapshot."""
    look = Look(output, not no_headers)
    rows = Rows(columns.CHANGES, look)
    with connect() as client:
        # Who waits for changes must know at once when there is no service to wait for; the watch would go on trying.
        known = client.snapshot()
        note(f"Watching {client.url} from revision {known.revision} on.")
        if not look.tabular:
            _tell(known, look, rows)
        with client.watch(since=f"{known.revision}-{known.history}") as changes:
            for change in changes:
                _tell(change, look, rows)


def listeners(output: options.Output = Form.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show who is told of changes, and how far each is behind."""
    with connect() as client:
        show(columns.LISTENERS, client.listeners(), Look(output, not no_headers))


def evidence(output: options.Output = Form.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show what running applications say of nodes, and whether it counts."""
    with connect() as client:
        show(columns.EVIDENCE, client.evidence(), Look(output, not no_headers))


def _tell(item: Snapshot | Change, look: Look, rows: Rows[Change]) -> None:
    if look.form is Form.NAME:
        say(*(item.nodes if isinstance(item, Snapshot) else [item.node.id]))
    elif not look.tabular:
        say(dumped(_snapshot_json(item) if isinstance(item, Snapshot) else columns.CHANGES.json(item)))
    elif isinstance(item, Change):
        say(*rows.lines([item]))
    else:
        note(f"The list begins anew at revision {item.revision}, with {len(item.nodes)} nodes.")


def _snapshot_json(snapshot: Snapshot) -> Json:
    from blocklist.wire.nodes import node_fields  # noqa: PLC0415 - not for --version and --help

    nodes = {node_id: {"id": node_id, **node_fields(node)} for node_id, node in snapshot.nodes.items()}
    return {"type": "snapshot", "revision": snapshot.revision, "history": snapshot.history, "nodes": nodes}

"""list, get, is-blocked and status."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from blocklist.cli import columns, messages, options
from blocklist.cli.environment import connect, service_now
from blocklist.cli.list_filter import BlockFilter, SortKey
from blocklist.cli.node_selection import known_nodes
from blocklist.cli.output import (
    OutputFormat,
    OutputOptions,
    clear_screen,
    print_document,
    print_items,
    print_message,
    print_stderr,
)
from blocklist.model.errors import (
    AmbiguousNodeError,
    BlocklistError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from blocklist.client.client import BlocklistClient
    from blocklist.model.listing import NodeListing
    from blocklist.wire.node_status import NodeStatusBody


def list_(
    at: options.AsOf = None,
    selector: options.Selector = None,
    by: options.BlockedBy = None,
    owner: options.BlockOwner = None,
    reason: options.ReasonPart = None,
    action: options.ActionFilter = None,
    sort: options.SortKey = SortKey.NODE,
    output: options.Output = OutputFormat.TABLE,
    no_headers: options.NoHeaders = False,
    watch: options.Watch = False,
) -> None:
    """Show the blocked nodes."""
    if watch and at is not None:
        raise typer.BadParameter("give only one of --at and --watch: an earlier list does not change.")
    view_options = OutputOptions(output, not no_headers)
    list_filter = BlockFilter(by=by, owner=owner, reason=reason, action=action)

    def show(listing: NodeListing) -> None:
        shown = list_filter.apply(listing.nodes, sort)
        if listing.nodes and not shown and view_options.is_table:
            print_stderr(f"No blocked node matches; {_blocked(len(listing.nodes))} in all.")
        else:
            print_items(columns.nodes_view(at or service_now(client), past=at is not None), shown, view_options)
        print_stderr(*listing.warnings)

    with connect() as client:
        listing = client.listing(at=at, selector=selector)
        show(listing)
        if watch:
            _follow_list(client, listing.revision, selector, view_options, show)


def _blocked(count: int) -> str:
    return "1 is blocked" if count == 1 else f"{count:,} are blocked"


def _follow_list(
    client: BlocklistClient,
    shown_revision: int,
    selector: str | None,
    view_options: OutputOptions,
    show: Callable[[NodeListing], None],
) -> None:
    """Show the list again after each change."""
    from blocklist.model.changes import Snapshot  # noqa: PLC0415 - only with --watch

    with client.watch() as changes:
        for change in changes:
            # Revisions of another history may be lower; it begins with a snapshot.
            if change.revision > shown_revision or (isinstance(change, Snapshot) and change.revision != shown_revision):
                listing = client.listing(min_revision=change.revision, selector=selector)
                shown_revision = listing.revision
                if view_options.is_table:
                    clear_screen()
                show(listing)


def get(node: options.Node, output: options.Output = OutputFormat.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show one blocked node."""
    with connect() as client:
        node_id = client.get(node).id
        found = [listed for listed in client.listing().nodes if listed.node.id == node_id]
        now = service_now(client)
    if not found:
        raise NotFoundError(f"Node {node} is not blocked.")
    if output is OutputFormat.JSON:
        print_document(columns.listed_json(found[0]))
    else:
        print_items(columns.nodes_view(now), found, OutputOptions(output, not no_headers))


def is_blocked(node: options.BlockedNodes = None, selector: options.Selector = None) -> None:
    """Exit code 0 if the node is blocked, 1 if not. Of several nodes: 0 if all are blocked."""
    with connect() as client:
        try:
            answers = [_is_blocked(client, node_id) for node_id in known_nodes(client, node, selector)]
        except BlocklistError as error:
            if isinstance(error, UnavailableError) or (error.title is None and isinstance(error, InvalidError)):
                raise
            raise _unanswered(error) from error
    if not all(answers):
        raise typer.Exit(1)


def _is_blocked(client: BlocklistClient, node_id: str) -> bool:
    try:
        block = client.get(node_id)
        print_message(messages.block_message(block, service_now(client)))
    except NotFoundError as error:
        print_message(messages.not_blocked_message(node_id))
        print_stderr(*error.lines[1:])
        return False
    except AmbiguousNodeError as error:
        # Whichever of them this machine is, it is blocked.
        for blocked in error.blocked.values():
            print_message(messages.block_message(blocked, service_now(client)))
    return True


def _unanswered(error: BlocklistError) -> UnavailableError:
    """The error for a question that the service has rejected, with another exit code than "not blocked"."""
    unanswered = UnavailableError(error.detail)
    unanswered.title = error.title
    return unanswered


def status(
    node: options.BlockedNodes = None,
    selector: options.Selector = None,
    output: options.Output = OutputFormat.TABLE,
    no_headers: options.NoHeaders = False,
    watch: options.Watch = False,
) -> None:
    """Show where a node's last change is applied. For each listener: its TaskManagers and tasks on the node.

    For several nodes, one line for each.
    """
    view_options = OutputOptions(output, not no_headers)
    with connect() as client:
        node_ids = known_nodes(client, node, selector)
        several = len(node_ids) > 1 or selector is not None
        current = _statuses(client, node_ids, several=several)
        _print_statuses(current, view_options, several=several)
        while watch:
            time.sleep(1)
            if (latest := _statuses(client, node_ids, several=several)) != current:
                current = latest
                if view_options.is_table:
                    clear_screen()
                _print_statuses(current, view_options, several=several)


def _statuses(client: BlocklistClient, node_ids: Sequence[str], *, several: bool) -> list[NodeStatusBody]:
    """Of several nodes, those that the change log has; the others are named on stderr."""
    if not several:
        return [client.status(node_ids[0])]
    found: list[NodeStatusBody] = []
    for node_id in node_ids:
        try:
            found.append(client.status(node_id))
        except NotFoundError:
            print_stderr(f"{node_id}: the change log has no entry for it.")
    return found


def _print_statuses(statuses: Sequence[NodeStatusBody], view_options: OutputOptions, *, several: bool) -> None:
    if several:
        print_items(columns.STATUSES, statuses, view_options)
    else:
        _print_status(statuses[0], view_options)


def _print_status(status: NodeStatusBody, view_options: OutputOptions) -> None:
    if view_options.format is OutputFormat.JSON:
        print_document(status.json_value())
        return
    if view_options.is_table:
        state = "blocked" if status.blocked else "not blocked"
        # On stderr: stdout contains only the table.
        applied = f"{status.applied} of {status.of} listeners have applied its last change"
        print_stderr(f"{status.id} {state}; {applied} (revision {status.revision}).", *_repeat_lines(status))
        print_stderr(*(f"{it.id} reports: {it.pending_reason}" for it in status.listeners if it.pending_reason))
    print_items(columns.APPLIED, status.listeners, view_options)


def _repeat_lines(status: NodeStatusBody) -> Iterator[str]:
    """What earlier automatic blocks of the node lead to."""
    if status.repeat is not None:
        yield f"Its block is the {status.repeat.value()}."
    if status.probation_end is not None:
        end = columns.format_timestamp(status.probation_end)
        yield f"It is on probation until {end}: evidence of one application blocks it."

"""list, get, is-blocked and status."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from blocklist.cli import messages, options
from blocklist.cli.environment import connect, service_now
from blocklist.cli.messages import job_notices, mode_notices, not_blocked_message
from blocklist.cli.options import known_nodes
from blocklist.cli.output import (
    APPLIED,
    CHANGES,
    DRIFT,
    EVIDENCE,
    JOBS,
    KNOWN_NODES,
    LISTENERS,
    MODES,
    STATUSES,
    Json,
    OutputFormat,
    OutputOptions,
    RowFormatter,
    claims_view,
    clear_screen,
    listed_json,
    nodes_view,
    owners_of,
    print_document,
    print_items,
    print_lines,
    print_message,
    print_stderr,
)
from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.claims import owner_matches
from blocklist.model.errors import (
    AmbiguousNodeError,
    BlocklistError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from blocklist.model.names import Aliases, no_aliases, normalize_name, same_machine
from blocklist.model.text import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from blocklist.client.client import BlocklistClient
    from blocklist.model.listing import NodeDetails, NodeListing
    from blocklist.wire.listeners import ModeRecordBody, NodeStatusBody

# Which blocked nodes `list` shows, and in which order.


class ActionName(StrEnum):
    """The actions as tables show them."""

    MARK = "mark"
    EVACUATE = "evacuate"


class SortKey(StrEnum):
    """The values of --sort."""

    NODE = "node"
    REMAINING = "remaining"
    EXPIRES = "expires"
    SINCE = "since"
    OWNER = "owner"
    BY = "by"
    REASON = "reason"
    ACTION = "action"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockFilter:
    """What a block must satisfy to be shown; None is satisfied by each."""

    by: str | None = None
    owner: str | None = None
    reason: str | None = None
    action: ActionName | None = None

    def apply(self, nodes: Iterable[NodeDetails], sort: SortKey) -> list[NodeDetails]:
        """The nodes that match, in order; nodes that are equal there stay in order of their ids."""
        return sorted(filter(self._matches, nodes), key=lambda node: _sort_value(node, sort))

    def _matches(self, listed: NodeDetails) -> bool:
        return (
            self.by in (None, listed.created_by)
            and (self.owner is None or any(owner_matches(owner, self.owner) for owner in owners_of(listed)))
            and (self.reason is None or self.reason.casefold() in listed.node.cause.casefold())
            and self.action in (None, listed.node.action.short_name)
        )


def _sort_value(listed: NodeDetails, sort: SortKey) -> tuple[int, str]:
    match sort:
        case SortKey.EXPIRES | SortKey.REMAINING:
            return listed.node.end, ""
        case SortKey.SINCE:
            return listed.node.start, ""
        case SortKey.OWNER:
            return 0, ",".join(owners_of(listed))
        case SortKey.BY:
            return 0, listed.created_by or ""
        case SortKey.REASON:
            return 0, listed.node.cause
        case SortKey.ACTION:
            return 0, listed.node.action.short_name
        case SortKey.NODE:
            return 0, listed.node.id


ActionFilter = Annotated[
    ActionName | None, options.choice_option(ActionName, "--action", help_text="Blocks with this action.")
]
Sort = Annotated[SortKey, options.choice_option(SortKey, "--sort", help_text="Order of the list.")]


def list_(
    at: options.AsOf = None,
    selector: options.Selector = None,
    by: options.BlockedBy = None,
    owner: options.BlockOwner = None,
    reason: options.ReasonPart = None,
    action: ActionFilter = None,
    sort: Sort = SortKey.NODE,
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
            print_items(nodes_view(at or service_now(client), past=at is not None), shown, view_options)
        print_stderr(*listing.warnings)

    with connect() as client:
        listing = client.listing(at=at, selector=selector)
        show(listing)
        if at is None and view_options.is_table:
            warn_of_modes(client)
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
        print_document(listed_json(found[0]))
    else:
        print_items(nodes_view(now), found, OutputOptions(output, not no_headers))


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
    pending: options.Pending = False,
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

        def read() -> list[NodeStatusBody]:
            found = _statuses(client, node_ids, several=several)
            return _only_pending(found, several=several, is_table=view_options.is_table) if pending else found

        current = read()
        _print_statuses(current, view_options, several=several)
        warn_of_modes(client)
        while watch:
            time.sleep(1)
            if (latest := read()) != current:
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


def _only_pending(statuses: Sequence[NodeStatusBody], *, several: bool, is_table: bool) -> list[NodeStatusBody]:
    """The statuses with those listeners alone that have not applied the change; of several nodes, those with any."""
    from blocklist.wire.listeners import NodeStatusBody  # noqa: PLC0415 - not for --version and --help

    left = [[it.json_value() for it in status.listeners if it.counts and not it.applied] for status in statuses]
    if any(status.of for status in statuses) and not any(left):
        print_stderr("Every live listener has applied it.")
    elif several and statuses and not any(left):
        print_stderr("There is no live listener that could apply it.")
    found = [(status, pending) for status, pending in zip(statuses, left, strict=True) if pending or not several]
    if several and is_table:
        # Its columns are about the whole node.
        return [status for status, _ in found]
    return [NodeStatusBody.parse({**status.json_value(), "listeners": pending}) for status, pending in found]


def _print_statuses(statuses: Sequence[NodeStatusBody], view_options: OutputOptions, *, several: bool) -> None:
    if several:
        if statuses or not view_options.is_table:
            print_items(STATUSES, statuses, view_options)
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
        if not status.of:
            none = "there is no live listener that could apply its last change"
            applied = "no live listener has the node" if status.listeners else none
        print_stderr(f"{status.id} {state}; {applied} (revision {status.revision}).", *_repeat_lines(status))
        if status.blocked and status.state == "unknown":
            print_stderr("It is not known whether tasks run there: not every job reports them.")
        if status.blocked and status.state == "not-here":
            print_stderr("No cluster has this node.")
        print_stderr(*(f"{it.id} reports: {it.pending_reason}" for it in status.listeners if it.pending_reason))
    if status.listeners or not status.of or not view_options.is_table:
        print_items(APPLIED, status.listeners, view_options)


def _repeat_lines(status: NodeStatusBody) -> Iterator[str]:
    """What earlier automatic blocks of the node lead to."""
    if status.repeat is not None:
        yield f"Its block is the {status.repeat.value()}."


# nodes, claims and drift.

ClaimOwner = Annotated[
    str | None, typer.Option("--owner", metavar="NAME", help="Claims of this owner; a final * stands for any end.")
]


def nodes(
    selector: options.Selector = None,
    output: options.Output = OutputFormat.TABLE,
    no_headers: options.NoHeaders = False,
) -> None:
    """Show the nodes that anybody reports, blocked or not, with their labels and running tasks."""
    with connect() as client:
        known = client.known_nodes(selector=selector)
    print_items(KNOWN_NODES, known.nodes, OutputOptions(output, not no_headers))
    print_stderr(*known.warnings, *messages.cluster_conflicts(known.nodes))


def claims(
    node: options.BlockedNodes = None,
    owner: ClaimOwner = None,
    output: options.Output = OutputFormat.TABLE,
    no_headers: options.NoHeaders = False,
) -> None:
    """Show who claims which node, until when and why; a node is free when its last claim ends."""
    wanted = None if not node else options.expand_nodes(node)
    with connect() as client:
        found = client.all_claims(owner=owner)
        if wanted is not None:
            ids = _blocked_ids(client, wanted)
            found = [claim for claim in found if claim.node in ids]
        if not found and owner is not None and output in (OutputFormat.TABLE, OutputFormat.WIDE):
            print_stderr(f"No claim of {owner} is found; blocklist claims shows those of all owners.")
            return
        now = service_now(client)
    print_items(claims_view(now), found, OutputOptions(output, not no_headers))


def _blocked_ids(client: BlocklistClient, node_ids: Sequence[str]) -> set[str]:
    """The names under which the nodes are blocked. Of several, those that are not are named on stderr.

    Raises NotFoundError if none is blocked.
    """
    ids: set[str] = set()
    for node_id in node_ids:
        try:
            ids.add(client.get(node_id).id)
        except NotFoundError:
            if len(node_ids) == 1:
                raise
            print_stderr(not_blocked_message(node_id))
    if not ids:
        raise NotFoundError("None of these nodes is blocked.")
    return ids


def drift(output: options.Output = OutputFormat.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show where listeners report something else than the list says: tasks on evacuated nodes, for example."""
    with connect() as client:
        report = client.drift()
    print_items(DRIFT, report.drift, OutputOptions(output, not no_headers))
    if output in (OutputFormat.TABLE, OutputFormat.WIDE):
        if report.observed_at is None:
            print_stderr("The service has not observed anything yet.")
        for each in report.unknown:
            print_stderr(f"{each.node}: {each.listener} does not report whether tasks run there.")


# history, watch, listeners and evidence.

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
    last: options.Last = None,
    output: options.Output = OutputFormat.TABLE,
    no_headers: options.NoHeaders = False,
) -> None:
    """Show changes, the oldest first. With --at, show the list at that time."""
    view_options = OutputOptions(output, not no_headers)
    if at is not None and (by or type_ or begin or end or last is not None):
        raise typer.BadParameter("--at shows a list; --by, --type, --from, --until and -n are for changes.")
    if begin is not None and end is not None and end <= begin:
        raise typer.BadParameter("--until is not after --from, so no change is between them.")
    with connect() as client:
        node_ids = known_nodes(client, node, selector) if node or selector is not None else None
        if at is not None:
            print_items(nodes_view(at, past=True), _listed_at(client, at, node_ids), view_options)
            return
        shown = options.LAST_ON_TERMINAL if last is None and sys.stdout.isatty() else last or options.ALL
        # One more says whether there are others.
        limit = shown + 1 if shown else None
        read = partial(client.changes, created_by=by, types=type_ or (), begin=begin, end=end, last=limit)
        pages = [read(node_id=node_id) for node_id in node_ids] if node_ids is not None else [read()]
        # Two names of one machine may be given.
        changes = {change.revision: change for page in pages for change in page}
    found = [changes[revision] for revision in sorted(changes)]
    if last is None and options.ALL < shown < len(found):
        print_stderr(f"These are the last {shown} changes; -n all shows all of them.")
    print_items(CHANGES, found[-shown:] if shown else found, view_options)


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
    rows = RowFormatter(CHANGES, view_options)
    with connect() as client:
        # Fails if the service is unreachable; the watch would retry without a message.
        snapshot = client.snapshot()
        print_stderr(f"Watching {client.url} from revision {snapshot.revision} on.")
        if not view_options.is_table:
            _print_item(snapshot, view_options, rows)
        with client.watch(since=f"{snapshot.revision}-{snapshot.history}") as changes:
            for change in changes:
                _print_item(change, view_options, rows)


ModeWord = Annotated[
    str | None,
    typer.Argument(metavar="[mode", help="`mode`: show the modes that are set; with PATTERN and MODE, set one."),
]
ModePattern = Annotated[
    str | None, typer.Argument(metavar="[PATTERN", help="A listener's id, or the beginning of ids and *, or '*'.")
]
ModeName = Annotated[
    str | None,
    typer.Argument(
        metavar="MODE]]",
        help="apply; observe: say what would be done, and change nothing; off: free all nodes.",
    ),
]
RemoveMode = Annotated[bool, typer.Option("--remove", help="With mode PATTERN: the next pattern that matches counts.")]


def listeners(
    word: ModeWord = None,
    pattern: ModePattern = None,
    mode: ModeName = None,
    remove: RemoveMode = False,
    output: options.Output = OutputFormat.TABLE,
    no_headers: options.NoHeaders = False,
) -> None:
    """Show the listeners, and how far each is behind.

    Or show and set how they act: `listeners mode 'app-*' observe`. The mode reaches listeners with their next
    heartbeat, within 10 s. The most exact pattern counts. It stays until it is set again, and needs the role admin.
    """
    view_options = OutputOptions(output, not no_headers)
    with connect() as client:
        if word is not None:
            print_items(MODES, _modes(client, word, pattern, mode, remove=remove), view_options)
            return
        print_items(LISTENERS, client.listeners(), view_options)
        warn_of_modes(client)


def _modes(
    client: BlocklistClient, word: str, pattern: str | None, mode: str | None, *, remove: bool
) -> list[ModeRecordBody]:
    """All modes that are set, after one was set or removed."""
    from blocklist.model.listener import Mode  # noqa: PLC0415 - not for --version and --help

    if word != "mode":
        raise typer.BadParameter(f"{word!r} is not `mode`: `blocklist listeners` shows all listeners.")
    if (pattern is None) != (mode is None and not remove) or (remove and mode is not None):
        raise typer.BadParameter("give a pattern and a mode, such as mode 'app-*' observe; or mode 'app-*' --remove.")
    if pattern is None:
        return client.modes()
    if mode is None:
        return client.remove_mode(pattern)
    if mode not in list(Mode):
        raise typer.BadParameter(f"{mode!r} is not a mode: give apply, observe or off.")
    return client.set_mode(pattern, Mode(mode))


def warn_of_modes(client: BlocklistClient) -> None:
    """Say on stderr that listeners do not apply blocks because somebody has set so."""
    # What was asked is answered, so an error here must not hide it.
    with suppress(BlocklistError):
        print_stderr(*mode_notices(client.modes()))


def jobs(output: options.Output = OutputFormat.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show the jobs that run; those without an agent, which do not obey the list, first.

    Jobs without an agent are known where a manager reports the applications of its cluster: yarn, kubernetes or
    standalone.
    """
    with connect() as client:
        found = client.jobs()
        print_items(JOBS, found.jobs, OutputOptions(output, not no_headers))
        print_stderr(*job_notices(found))


def evidence(output: options.Output = OutputFormat.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show what applications report about nodes. COUNTS is `no` for evidence that is ignored."""
    with connect() as client:
        print_items(EVIDENCE, client.evidence(), OutputOptions(output, not no_headers))


def _print_item(item: Snapshot | Change, view_options: OutputOptions, rows: RowFormatter[Change]) -> None:
    if view_options.format is OutputFormat.NAME:
        print_lines(*(item.nodes if isinstance(item, Snapshot) else [item.node.id]))
    elif not view_options.is_table:
        print_lines(json_text(_snapshot_json(item) if isinstance(item, Snapshot) else CHANGES.json(item)))
    elif isinstance(item, Change):
        print_lines(*rows.lines([item]))
    else:
        print_stderr(f"The list was reset: revision {item.revision}, {len(item.nodes)} nodes.")


def _snapshot_json(snapshot: Snapshot) -> Json:
    from blocklist.wire.nodes import node_fields  # noqa: PLC0415 - not for --version and --help

    nodes = {node_id: {"id": node_id, **node_fields(node)} for node_id, node in snapshot.nodes.items()}
    return {"type": "snapshot", "revision": snapshot.revision, "history": snapshot.history, "nodes": nodes}

"""nodes, claims and drift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from blocklist.cli import columns, options
from blocklist.cli.environment import connect, service_now
from blocklist.cli.messages import not_blocked_message
from blocklist.cli.output import OutputFormat, OutputOptions, print_items, print_stderr
from blocklist.model.errors import NotFoundError

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient

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
    print_items(columns.KNOWN_NODES, known.nodes, OutputOptions(output, not no_headers))
    print_stderr(*known.warnings)


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
    print_items(columns.claims_view(now), found, OutputOptions(output, not no_headers))


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
    print_items(columns.DRIFT, report.drift, OutputOptions(output, not no_headers))
    if output in (OutputFormat.TABLE, OutputFormat.WIDE):
        if report.observed_at is None:
            print_stderr("The service has not observed anything yet.")
        for each in report.unknown:
            print_stderr(f"{each.node}: {each.listener} does not report whether tasks run there.")

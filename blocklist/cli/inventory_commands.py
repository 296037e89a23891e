"""nodes, claims and drift."""

from __future__ import annotations

from typing import Annotated

import typer

from blocklist.cli import columns, options
from blocklist.cli.environment import connect, now_ms
from blocklist.cli.output import OutputFormat, OutputOptions, print_items, print_stderr

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
            ids = {client.get(node_id).id for node_id in wanted}
            found = [claim for claim in found if claim.node in ids]
    print_items(columns.claims_view(now_ms()), found, OutputOptions(output, not no_headers))


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

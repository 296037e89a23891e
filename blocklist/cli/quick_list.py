"""`blocklist list` without the libraries of the other commands: most of its time would be their import.

Any option that is not known here, and anything that goes wrong, is left to the ordinary command. What is printed is
the same.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from blocklist.cli import columns, environment, output
from blocklist.cli.output import OutputFormat, OutputOptions
from blocklist.client.clock import clock_offset
from blocklist.client.quick_read import NotQuickError, quick_get
from blocklist.model.errors import BlocklistError, InvalidError
from blocklist.model.listing import NodeDetails
from blocklist.model.node import BlockAction, BlockedNode

_FORMATS = {"table": OutputFormat.TABLE, "wide": OutputFormat.WIDE, "name": OutputFormat.NAME}


def run(arguments: list[str]) -> bool:
    """Print the list if that is what the arguments ask for; return whether it was."""
    try:
        options = _options(environment.take_context(arguments))
        nodes, now = _read_nodes()
    except (NotQuickError, BlocklistError, OSError):
        return False
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    output.print_items(columns.nodes_view(now), nodes, options)
    return True


def _options(arguments: list[str]) -> OutputOptions:
    if arguments[:1] != ["list"]:
        raise NotQuickError
    shown, headers = OutputFormat.TABLE, True
    words = iter(arguments[1:])
    for word in words:
        if word == "--no-headers":
            headers = False
        elif word in ("-o", "--output") and (value := next(words, "")) in _FORMATS:
            shown = _FORMATS[value]
        else:
            raise NotQuickError
    return OutputOptions(shown, headers)


def _read_nodes() -> tuple[list[NodeDetails], int]:
    """The blocked nodes, and the service's time in Unix milliseconds."""
    environment.check_names(os.environ)
    url, read_token = environment.service()
    body, date = quick_get(url, "/blocklist?details=true", read_token, environment.request_timeout())
    now = environment.now_ms() + clock_offset(date)
    try:
        return [_node(node_id, fields) for node_id, fields in sorted(body.items())], now
    except (AttributeError, KeyError, TypeError, ValueError, InvalidError) as error:
        raise NotQuickError from error


def _node(node_id: str, fields: dict[str, Any]) -> NodeDetails:
    return NodeDetails(
        node=BlockedNode(
            id=node_id,
            action=BlockAction[fields["action"]],
            start=int(fields["startTimestamp"]),
            end=int(fields["endTimestamp"]),
            cause=fields["cause"],
            canary=_of_type(fields.get("canary", False), bool),
        ),
        created_by=_of_type(fields["createdBy"], str, type(None)),
        revision=_of_type(fields["revision"], int) or None,
        task_managers=_texts(fields["taskManagers"]),
        owners=() if fields["owners"] is None else _texts(fields["owners"]),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_of_type(text, str) for text in _of_type(value, list))


def _of_type(value: Any, *types: type) -> Any:
    if type(value) not in types:
        raise TypeError
    return value

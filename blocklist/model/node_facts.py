"""What managers and agents report about nodes: names, addresses and labels that tell them apart. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from itertools import islice
from typing import Final

from blocklist.model.errors import InvalidError
from blocklist.model.host_matching import normalize_address, normalize_name
from blocklist.model.node import is_node_id
from blocklist.model.reported_node import MAX_LABELS, MAX_NAMES, ReportedNode, make_reported_node
from blocklist.model.selector import check_label_key, check_label_value

_INVALID: Final = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """A node as a manager or an agent describes it. `names` may contain addresses; `labels` are pairs of key and value.

    Only facts that rarely change belong here: each change is a report.
    """

    id: str
    names: Sequence[str] = ()
    labels: Sequence[tuple[str, str]] = field(default=())


def make_label_value(text: str) -> str:
    """The text as the value of a label: without slashes around it, others as dots, other characters as underscores.

    YARN's rack `/dc1/rack-2` is `dc1.rack-2`. Empty if nothing is left.
    """
    return _INVALID.sub("_", text.strip().strip("/").replace("/", ".")).strip("_.-")


def report_nodes(nodes: Iterable[NodeFacts]) -> list[str | ReportedNode]:
    """The nodes for a heartbeat, by id. What the service would reject, or what cannot tell nodes apart, is left out.

    That are names and addresses that several nodes have, loopback addresses, and labels with invalid or long texts.
    """
    by_id = {normalize_name(node.id): node for node in nodes if is_node_id(node.id)}
    known = [by_id[node_id] for node_id in sorted(by_id)]
    uses = Counter(name for node in known for name in set(map(normalize_name, [node.id, *node.names])))
    return [_report(node, uses) for node in known]


def _report(node: NodeFacts, uses: Counter[str]) -> str | ReportedNode:
    further = [name for name in map(normalize_name, node.names) if uses[name] == 1 and _identifies(name)]
    names = [name for name in further if normalize_address(name) is None]
    addresses = [name for name in further if normalize_address(name) is not None]
    labels = dict(islice((label for label in node.labels if _is_label(*label)), MAX_LABELS))
    reported = make_reported_node(node.id, names[:MAX_NAMES], addresses[:MAX_NAMES], labels)
    return node.id if reported.is_bare else reported


def _identifies(name: str) -> bool:
    """Whether a name or an address can mean one machine only."""
    if normalize_address(name) is None:
        return is_node_id(name) and name.partition(".")[0] != "localhost"
    address = ip_address(name)
    return not (address.is_loopback or address.is_unspecified or address.is_link_local)


def _is_label(key: str, value: str) -> bool:
    try:
        check_label_key(key)
        check_label_value(value)
    except InvalidError:
        return False
    return True

"""What the ResourceManager's REST API says of nodes and labels, as values. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from blocklist.managers.yarn.mark import Capacity, Further

RUNNING: Final = "RUNNING"
LIVE_STATES: Final = frozenset({RUNNING, "UNHEALTHY", "DECOMMISSIONING"})
"""Of a node whose NodeManager is there, and which may have containers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class YarnNode:
    """A NodeManager: `id` is host:port, and there may be several of a host. `label` is its label in effect."""

    id: str
    host: str
    state: str
    rack: str = ""
    label: str = ""
    containers: int = 0
    capacity: Capacity = field(default_factory=lambda: Capacity(megabytes=0, vcores=0))

    @property
    def live(self) -> bool:
        return self.state in LIVE_STATES


@dataclass(frozen=True, kw_only=True, slots=True)
class YarnState:
    """All nodes in any state, and what labels there are.

    `host_labels` has the labels of hosts, which each NodeManager there has unless it has one of its own: an empty one
    is left out. `labels` maps the name of each label to whether it is exclusive.
    """

    nodes: Sequence[YarnNode] = ()
    host_labels: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, bool] = field(default_factory=dict)

    def by_host(self) -> dict[str, list[YarnNode]]:
        """The nodes of each host, also of hosts that only have a label."""
        found: defaultdict[str, list[YarnNode]] = defaultdict(list)
        for host in self.host_labels:
            found[host] = []
        for node in self.nodes:
            found[node.host].append(node)
        return dict(found)


def parse_state(nodes: object, labels: object, node_labels: object) -> YarnState:
    """The answers to `/nodes`, `/get-node-labels` and `/get-node-to-labels`. Raises ValueError for unexpected ones."""
    return YarnState(
        nodes=parse_nodes(nodes), host_labels=_parse_host_labels(node_labels), labels=_parse_labels(labels)
    )


def parse_nodes(body: object) -> list[YarnNode]:
    """The answer to `/nodes`. Raises ValueError for an unexpected one."""
    if not isinstance(body, dict) or "nodes" not in body:
        raise ValueError("the answer is not a list of nodes")
    # Without any node, `nodes` is null or empty.
    return [_node(fields) for fields in _entries(body["nodes"] or {}, "node")]


def parse_masters(body: object) -> dict[str, list[str]]:
    """The answer to `/apps`: for each node, by id, the applications whose ApplicationMaster runs there.

    Raises ValueError for an unexpected one.
    """
    if not isinstance(body, dict) or "apps" not in body:
        raise ValueError("the answer is not a list of applications")
    found: defaultdict[str, list[str]] = defaultdict(list)
    for fields in _entries(body["apps"] or {}, "app"):
        if isinstance(node := fields.get("masterNodeId"), str):
            found[node].append(str(fields.get("id", "")))
    return dict(found)


def host_of(target: str) -> str:
    """Of a NodeManager or of a label's target: `host:port`, where port 0 means the host."""
    return target.rpartition(":")[0]


def states_out_of_service(nodes: Iterable[YarnNode]) -> dict[str, str]:
    """The hosts without a RUNNING NodeManager: host to state, as people read it."""
    states: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for node in nodes:
        states[node.host][node.state] += 1
    return {host: "+".join(sorted(found)) for host, found in states.items() if RUNNING not in found}


def _node(fields: Mapping[str, Any]) -> YarnNode:
    host, node_id = fields.get("nodeHostName"), fields.get("id")
    if not isinstance(host, str):
        raise ValueError("a node has no nodeHostName")
    labels = _list(fields.get("nodeLabels"))
    return YarnNode(
        id=node_id if isinstance(node_id, str) else host,
        host=host,
        state=str(fields.get("state", "")),
        rack=str(fields.get("rack") or ""),
        label=str(labels[0]) if labels else "",
        containers=_number(fields.get("numContainers")),
        capacity=_capacity(fields),
    )


def _capacity(fields: Mapping[str, Any]) -> Capacity:
    total = fields.get("totalResource")
    if not isinstance(total, dict):  # Before Hadoop 3.
        used = [_number(fields.get(key)) for key in ("usedMemoryMB", "usedVirtualCores")]
        free = [_number(fields.get(key)) for key in ("availMemoryMB", "availableVirtualCores")]
        return Capacity(megabytes=max(0, used[0] + free[0]), vcores=max(0, used[1] + free[1]))
    further = [
        Further(str(it.get("name")), str(it.get("units") or ""), _number(it.get("value")))
        for it in _entries(total.get("resourceInformations") or {}, "resourceInformation")
        if it.get("name") not in {"memory-mb", "vcores"}
    ]
    return Capacity(megabytes=_number(total.get("memory")), vcores=_number(total.get("vCores")), further=tuple(further))


def _parse_labels(body: object) -> dict[str, bool]:
    return {str(it.get("name")): str(it.get("exclusivity")).lower() != "false" for it in _label_entries(body)}


def _parse_host_labels(body: object) -> dict[str, str]:
    """Of the entries, those of port 0."""
    if not isinstance(body, dict):
        raise ValueError("the answer is not a list of labels")
    found = {}
    for entry in _entries(body.get("nodeToLabels") or {}, "entry"):
        host, _, port = str(entry.get("key", "")).rpartition(":")
        names = [str(it.get("name")) for it in _label_entries(entry.get("value") or {})]
        if port == "0" and names:
            found[host] = names[0]
    return found


def _label_entries(body: object) -> Iterator[Mapping[str, Any]]:
    if not isinstance(body, dict):
        raise ValueError("the answer is not a list of labels")
    inner = body.get("nodeLabelsInfo", body)
    yield from _entries(inner or {}, "nodeLabelInfo")


def _entries(body: object, key: str) -> Iterator[Mapping[str, Any]]:
    """The entries of a list; versions before 3.5 write one entry without a list around it."""
    entries = _list(body.get(key)) if isinstance(body, dict) else None
    if entries is None or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"the answer has no list of {key} entries")
    yield from entries


def _list(value: object) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0

"""What one source, as the file of nodes, reports about a node: its names, addresses and labels. Pure."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from ipaddress import ip_address
from itertools import islice
from sys import intern
from types import MappingProxyType
from typing import Final, NamedTuple

from blocklist.model.errors import InvalidError
from blocklist.model.names import normalize_address, normalize_name
from blocklist.model.node import check_node_id, is_id, is_node_id
from blocklist.model.selector import check_label_key, check_label_value

MAX_NAMES: Final = 16
"""Maximum number of further names, and of addresses, of a node in one report."""
MAX_LABELS: Final = 32
"""Maximum number of labels of a node in one report."""
_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


class SourceKind(IntEnum):
    """Who reports a node; the first one is believed where two differ."""

    FILE = 0
    MANAGER = 1
    AGENT = 2


class NodeSource(NamedTuple):
    """A source of nodes; `name` is the id of the listener. Sources are sorted in the order in which they count."""

    kind: SourceKind
    name: str


FILE_SOURCE: Final = NodeSource(SourceKind.FILE, "file")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedNode:
    """A node as one source reports it. Make it with `make_reported_node`: names and addresses are in normal form."""

    id: str
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)

    def aliases(self) -> set[str]:
        """The further names and the addresses."""
        return {*self.names, *self.addresses}

    @property
    def is_bare(self) -> bool:
        """Whether only the id is reported."""
        return not (self.names or self.addresses or self.labels)


def make_reported_node(
    node_id: str, names: Iterable[str] = (), addresses: Iterable[str] = (), labels: Mapping[str, str] | None = None
) -> ReportedNode:
    """A node as it is kept: validated, each name and address once, equal labels as one object.

    A name that is an address counts as one. Raises InvalidError with what is wrong, without the place.
    """
    node_id = check_node_id(node_id)
    further, found = set[str](), {normalize_address(name) or _no_address(name) for name in addresses}
    for name in map(check_node_id, names):
        if (address := normalize_address(name)) is None:
            further.add(normalize_name(name))
        else:
            found.add(address)
    own = normalize_name(node_id)
    further.discard(own)
    found.discard(own)
    _check_number("names", further, MAX_NAMES)
    _check_number("addresses", found, MAX_NAMES)
    _check_number("labels", labels or (), MAX_LABELS)
    checked = _checked_labels(tuple(sorted(labels.items())) if labels else ())
    return ReportedNode(id=node_id, names=tuple(sorted(further)), addresses=tuple(sorted(found)), labels=checked)


CLUSTER_LABEL: Final = "cluster"
"""The label of the nodes that the manager of a cluster reports."""


def in_cluster(nodes: Sequence[str | ReportedNode], cluster: str | None) -> Sequence[str | ReportedNode]:
    """These nodes with the label of their cluster, if it is known; it replaces one that a node has by itself."""
    if cluster is None:
        return nodes
    # One object for equal labels: a rack has many nodes.
    made: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}

    def labels(given: Mapping[str, str]) -> Mapping[str, str]:
        return made.setdefault(tuple(given.items()), {**given, CLUSTER_LABEL: cluster})

    return [
        ReportedNode(id=node, labels=labels({})) if isinstance(node, str) else replace(node, labels=labels(node.labels))
        for node in nodes
    ]


def node_ids(nodes: Iterable[str | ReportedNode]) -> list[str]:
    """The ids of reported nodes, some of which are only ids."""
    return [node if isinstance(node, str) else node.id for node in nodes]


@lru_cache(maxsize=4096)
def _checked_labels(labels: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    # Thousands of nodes have the same labels: they are checked, and kept, once.
    return dict(_checked_label(*label) for label in labels)


@lru_cache(maxsize=4096)
def _checked_label(key: str, value: str) -> tuple[str, str]:
    # Of labels that differ from node to node, as the name of the host, most are the same.
    return intern(check_label_key(key)), intern(check_label_value(value))


def _no_address(text: str) -> str:
    raise InvalidError(f"{text[:80]!a} is not an IP address.")


def _check_number(what: str, values: Collection[str], maximum: int) -> None:
    if len(values) > maximum:
        raise InvalidError(f"{len(values)} {what} are too many: at most {maximum} are allowed.")


# What managers and agents report about nodes: names, addresses and labels that tell them apart. Pure.

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
    return reported.id if reported.is_bare else reported


def _identifies(name: str) -> bool:
    """Whether a name or an address can mean one machine only."""
    if normalize_address(name) is None:
        return is_id(name) and name.partition(".")[0] != "localhost"
    address = ip_address(name)
    return not (address.is_loopback or address.is_unspecified or address.is_link_local)


def _is_label(key: str, value: str) -> bool:
    try:
        check_label_key(key)
        check_label_value(value)
    except InvalidError:
        return False
    return True


# The file of nodes: CSV with the header `id,names,addresses,labels`. Pure.
#
# Several names, addresses or labels `key=value` are separated by spaces or `;`. Empty lines, and lines that begin
# with `#`, are skipped. Columns may be in any order; `id` is required.

MAX_NODES: Final = 100_000
"""Maximum number of nodes in the file."""
MAX_FAULTS: Final = 10
"""Maximum number of faults that an error names."""
COLUMNS: Final = ("id", "names", "addresses", "labels")


class _FaultError(Exception):
    """What is wrong with the value of a column."""

    def __init__(self, column: str, message: str) -> None:
        super().__init__(message)
        self.column = column


def parse_nodes_file(text: str) -> list[ReportedNode]:
    """The nodes in the file. Raises InvalidError with line and column of each fault, both counted from 1."""
    rows = _rows(text.removeprefix("\ufeff"))
    number, header = next(rows, (1, []))
    columns = [name.strip().lower() for name in header]
    if "id" not in columns or len(set(columns)) < len(columns) or not set(columns) <= set(COLUMNS):
        raise InvalidError(f"line {number}: the header must be {','.join(COLUMNS)}, without others; id is required.")
    nodes: dict[str, tuple[int, ReportedNode]] = {}
    faults: list[str] = []
    for number, row in rows:
        if len(faults) >= MAX_FAULTS or len(nodes) > MAX_NODES:
            break
        try:
            node = _node(columns, row)
        except _FaultError as fault:
            faults.append(_fault_line(number, columns, fault))
            continue
        earlier, _ = nodes.setdefault(normalize_name(node.id), (number, node))
        if earlier != number:
            faults.append(_fault_line(number, columns, _FaultError("id", f"{node.id} is also in line {earlier}.")))
    if len(nodes) > MAX_NODES:
        faults.append(f"there are more than {MAX_NODES:,} nodes.")
    if faults:
        raise InvalidError(faults[0], faults)
    return [node for _, node in nodes.values()]


def _fault_line(number: int, columns: Sequence[str], fault: _FaultError) -> str:
    return f"line {number}, column {columns.index(fault.column) + 1} ({fault.column}): {fault}"


def _rows(text: str) -> Iterator[tuple[int, Sequence[str]]]:
    """The rows that are not empty and no comments, with the numbers of their lines."""
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        for row in reader:
            if any(row) and not row[0].lstrip().startswith("#"):
                yield reader.line_num, row
    except csv.Error as error:
        raise InvalidError(f"line {reader.line_num}: {error}.") from None


def _node(columns: Sequence[str], row: Sequence[str]) -> ReportedNode:
    if len(row) > len(columns):
        raise _FaultError(columns[-1], f"there are {len(row)} values, but {len(columns)} columns.")
    values = dict(zip(columns, [value.strip() for value in row], strict=False))
    node_id = values.get("id", "")
    names, addresses = _split(values.get("names", "")), _split(values.get("addresses", ""))
    labels = _labels(_split(values.get("labels", "")))
    try:
        return make_reported_node(node_id, names, addresses, labels)
    except InvalidError as error:
        raise _FaultError(_faulty_column(node_id, names, addresses), error.detail) from None


def _faulty_column(node_id: str, names: Sequence[str], addresses: Sequence[str]) -> str:
    """The first column that is not valid; the others are valid up to the labels."""
    for column, given in (("id", ([], [])), ("names", (names, [])), ("addresses", (names, addresses))):
        try:
            make_reported_node(node_id, *given)
        except InvalidError:
            return column
    return "labels"


def _labels(texts: Sequence[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise _FaultError("labels", f"write {text[:80]!a} as key=value.")
        if key in labels:
            raise _FaultError("labels", f"the label {key[:80]!a} is given twice.")
        labels[key] = value
    return labels


def _split(text: str) -> list[str]:
    return text.replace(";", " ").split()

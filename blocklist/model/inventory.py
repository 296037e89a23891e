"""Inventory: the nodes that anybody knows, with their names, addresses and labels. Pure.

Several sources report the same machine under different ids. Which of these ids are one node is decided locally, from
what is reported about them and their aliases, so that a change costs no more than what it touches, and the order of
reports never matters. The rules, in this order:

1. An alias (a further name, or an address) belongs to the node that has it. What managers report counts only where the
   file does not report the alias, and what agents report only where neither does. Several nodes that have it make it
   ambiguous: it belongs to none.
2. An id that is itself reported keeps its own node, unless a source that counts more reports it as an alias; or one
   that counts as much, if it is the file or a manager and nothing but the id is reported.
3. A short name is the node of its full name, if only one full name of it is reported.
4. What agents call a node counts only while neither the file nor a manager has a name or an address for it, and their
   labels only while neither reports it, under whichever of its names agents report: a job must not rename the nodes of
   a cluster.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, islice
from typing import Final, Literal

from blocklist.model.errors import InvalidError, NotFoundError, UnknownNodeError
from blocklist.model.names import Multimap, NameSet, normalize_address, normalize_name, short_name
from blocklist.model.reported_node import NodeSource, ReportedNode, SourceKind
from blocklist.model.selector import Selector, unknown_keys

# SourceNodes: what one source reports, and what of it is believed. Pure.


class _Absent(Enum):
    ABSENT = "absent"


ABSENT: Final = _Absent.ABSENT
"""A node that a source does not report."""
Absent = Literal[_Absent.ABSENT]
Believed = ReportedNode | str | Absent
"""What counts of a report about one node: all of it; its id only; or it is not reported."""


class SourceNodes:
    """The nodes that a source reports, and those on which it runs, under their ids in normal form.

    What a source that is not `trusted` reports about a node, besides its id, counts while it runs there.
    """

    def __init__(self, *, trusted: bool) -> None:
        self._trusted = trusted
        self._nodes: dict[str, ReportedNode | str] = {}
        self._described = NameSet()
        self._running: dict[str, str] = {}
        self._running_names = NameSet()

    def set_nodes(self, nodes: Iterable[str | ReportedNode]) -> Mapping[str, Believed]:
        """Replace the reported nodes; what counts now of those that changed."""
        after = _by_id(nodes)
        before = self._nodes
        changed = [key for key in {**before, **after} if before.get(key, ABSENT) != after.get(key, ABSENT)]
        earlier = {key: self._believed(key) for key in changed}
        self._nodes = after
        for key in changed if not self._trusted else ():
            self._described.discard(key)
            if isinstance(after.get(key), ReportedNode):
                self._described.add(key)
        return self._changes(earlier)

    def set_running(self, node_ids: Iterable[str]) -> Mapping[str, Believed]:
        """Replace the nodes on which it runs; what counts now of those that changed."""
        # Of several spellings always the same one: the order in which they are reported must not matter.
        after = {normalize_name(name): name for name in sorted(set(node_ids))}
        changed = {name for name in {**self._running, **after} if self._running.get(name) != after.get(name)}
        matching = (key for name in changed for key in self._described.matching(name))
        earlier = {key: self._believed(key) for key in changed.union(matching)}
        for name in changed:
            (self._running_names.add if name in after else self._running_names.discard)(name)
        self._running = after
        return self._changes(earlier)

    def _changes(self, earlier: Mapping[str, Believed]) -> Mapping[str, Believed]:
        return {key: now for key, before in earlier.items() if (now := self._believed(key)) != before}

    def _believed(self, key: str) -> Believed:
        node = self._nodes.get(key, ABSENT)
        if node is ABSENT:
            return self._running.get(key, ABSENT)
        if isinstance(node, str) or self._trusted or any(self._running_names.matching(key)):
            return node
        return node.id


def _by_id(nodes: Iterable[str | ReportedNode]) -> dict[str, ReportedNode | str]:
    """The nodes by their ids in normal form; only the id where nothing else is reported."""
    found: dict[str, ReportedNode | str] = {}
    for node in nodes:
        if isinstance(node, str):
            found.setdefault(normalize_name(node), node)
        else:
            found[normalize_name(node.id)] = node.id if node.is_bare else node
    return found


MAX_SHARING: Final = 16
"""Maximum number of ids that may share an alias: more are ambiguous, without a comparison of each."""
_MAX_CACHED: Final = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class InventoryNode:
    """A node: its id as it is reported, its other names, its addresses and labels, and who reports it.

    `conflicts` maps each name or address that is ambiguous to the ids of the other nodes that have it.
    """

    id: str
    names: Sequence[str]
    addresses: Sequence[str]
    labels: Mapping[str, str]
    sources: Sequence[NodeSource]
    conflicts: Mapping[str, Sequence[str]]


@dataclass(slots=True)
class _ReportedId:
    """An id, and what each source reports about it; of a source that is not believed only the id, as it spells it."""

    trusted: dict[NodeSource, ReportedNode | str] = field(default_factory=dict)
    agents: dict[NodeSource, ReportedNode | str] = field(default_factory=dict)

    def of_kind(self, kind: SourceKind) -> dict[NodeSource, ReportedNode | str]:
        return self.agents if kind is SourceKind.AGENT else self.trusted

    @property
    def rank(self) -> SourceKind:
        """The kind of the source that counts most."""
        return min(self.trusted).kind if self.trusted else SourceKind.AGENT

    @property
    def is_bare(self) -> bool:
        """Whether nothing but the id is reported."""
        return all(isinstance(report, str) for report in (*self.trusted.values(), *self.agents.values()))

    def reports(self) -> Iterator[tuple[NodeSource, ReportedNode | str]]:
        yield from self.trusted.items()
        yield from self.agents.items()

    def aliases_by(self, kind: SourceKind) -> set[str]:
        reports = [node for source, node in self.of_kind(kind).items() if source.kind is kind]
        return {alias for node in reports if isinstance(node, ReportedNode) for alias in node.aliases()}

    def trusted_aliases(self) -> set[str]:
        """The aliases that the file and managers report."""
        return {alias for node in self.trusted.values() if isinstance(node, ReportedNode) for alias in node.aliases()}

    @property
    def spelling(self) -> str:
        """The id as the source spells it that counts most."""
        reports = self.trusted or self.agents
        report = reports[min(reports)]
        return report if isinstance(report, str) else report.id


class Inventory:
    """Updated one source at a time; not thread-safe. The length is the number of nodes.

    `version` grows with each change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._sources: dict[NodeSource, SourceNodes] = {}
        self._staged: dict[tuple[NodeSource, str], Believed] = {}
        self._ids: dict[str, _ReportedId] = {}
        self._names = NameSet()
        self._by_alias = {kind: NodesByAlias() for kind in SourceKind}
        self._order: list[str] | None = None
        self._node: dict[str, str] = {}
        self._further_ids = Multimap()
        self._labels: dict[str, Mapping[str, str]] = {}
        self._with_label: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._aliases: dict[str, tuple[str, ...]] = {}
        self._machines: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._labels)

    def __iter__(self) -> Iterator[str]:
        """The ids of all nodes, sorted."""
        return iter(self._sorted())

    def _sorted(self) -> list[str]:
        if self._order is None:
            self._order = sorted(self._labels)
        return self._order

    # Sources.

    def stage_nodes(self, source: NodeSource, nodes: Iterable[str | ReportedNode]) -> None:
        """Replace all nodes that a source reports, with the next calls of `apply_staged`."""
        self._stage(source, self._source(source).set_nodes(nodes))

    def stage_running(self, source: NodeSource, node_ids: Iterable[str]) -> None:
        """Replace the nodes on which a listener runs: an agent is believed for these only. As `stage_nodes`."""
        self._stage(source, self._source(source).set_running(node_ids))

    def stage_removal(self, source: NodeSource) -> bool:
        """Forget a source and all that it reports; whether there was something. As `stage_nodes`."""
        if source not in self._sources:
            return False
        self.stage_nodes(source, ())
        self.stage_running(source, ())
        del self._sources[source]
        return True

    @property
    def has_staged(self) -> bool:
        """Whether something is still to be applied."""
        return bool(self._staged)

    def apply_staged(self, limit: int | None = None) -> set[str]:
        """Apply what is staged, of at most `limit` reported ids; the names that this may change, in normal form.

        In between, the inventory is as if only these had been reported.
        """
        staged = list(islice(self._staged, limit))
        if not staged:
            return set()
        reported_ids = dict.fromkeys(reported_id for _, reported_id in staged)
        if not self._ids:
            # As at a start, which brings all at once: these are affected, and there is nothing else.
            self._replace_staged(staged)
            self._update_nodes(reported_ids)
            return set(self._ids).union(*self._by_alias.values())
        affected = self._affected(reported_ids)
        names = self._identifiers_around(affected)
        self._replace_staged(staged)
        affected |= self._affected(reported_ids)
        names |= self._identifiers_around(affected)
        changed = self._update_nodes(affected)
        return names.union(changed, self._identifiers_around(affected))

    # Questions.

    def page(self, after: str | None, limit: int) -> list[InventoryNode]:
        """At most `limit` nodes in order of their ids; those behind `after`, if that is given."""
        order = self._sorted()
        begin = 0 if after is None else bisect_right(order, normalize_name(after))
        return [self.get(node_id) for node_id in order[begin : begin + limit]]

    def get(self, node_id: str) -> InventoryNode:
        """The node with this id, as `page` and `known_as` return it. Raises KeyError."""
        labels = self._labels[node_id]
        identifiers = self._identifiers(node_id) - {node_id}
        sources = {source for it in self._reported(node_id) for source, _ in it.reports()}
        return InventoryNode(
            id=self.spelling(node_id),
            names=sorted(name for name in identifiers if normalize_address(name) is None),
            addresses=sorted(name for name in {*identifiers, node_id} if normalize_address(name) is not None),
            labels=labels,
            sources=sorted(sources),
            conflicts={
                name: others for name in sorted({*identifiers, node_id}) if (others := self._others(name, node_id))
            },
        )

    def identities_by_manager(self, name: str) -> dict[NodeSource, set[str]]:
        """For each manager that reports a node, what tells it from other machines: addresses and full names."""
        found = defaultdict[NodeSource, set[str]](set)
        for member in self._members(self.machine_of(name)):
            for source, report in self._ids[member].trusted.items():
                if source.kind is SourceKind.MANAGER:
                    names = {member} if isinstance(report, str) else {member, *report.aliases()}
                    found[source] |= {it for it in names if short_name(it)[1] or normalize_address(it) is not None}
        return found

    def spelling(self, node_id: str) -> str:
        """The id of a node as the source spells it that counts most."""
        return self._ids[node_id].spelling

    def known_as(self, name: str) -> Collection[str]:
        """The ids of the nodes that a name or an address means: one, none, or several that a short name means.

        None if it is ambiguous, see `sharing`.
        """
        named = self._named(name)
        found = named or self._by_alias_of(name)
        return found if len(found) == 1 else named

    def sharing(self, name: str) -> Collection[str]:
        """The ids of the nodes that share an ambiguous name or address, which means none of them; else none."""
        found = () if self._named(name) else self._by_alias_of(name)
        return found if len(found) > 1 else ()

    def _named(self, name: str) -> set[str]:
        """The nodes with a reported id of this name, short or full."""
        normal = normalize_name(name)
        if normal in self._ids:
            return {self._node[normal]}
        found = {self._node[match] for match in islice(self._names.matching(normal), MAX_SHARING + 1)}
        return {node for node in found if not _differ(normal, node)}

    def _by_alias_of(self, name: str) -> set[str]:
        """The nodes with this further name, or address."""
        having, _ = self._having(normalize_name(name))
        return {self._node[match] for match in islice(having, MAX_SHARING + 1)}

    def find(self, name: str) -> str | None:
        """The id of the only node that a name or an address means; None if there is none, or several."""
        found = self.known_as(name)
        return next(iter(found)) if len(found) == 1 else None

    def aliases(self, name: str) -> tuple[str, ...]:
        """The other ids, names and addresses of the machine with this name, sorted; without those that are ambiguous.

        Empty if the machine is not known, or the name means several.
        """
        if not self._labels:  # Every new block asks, and most clusters report nothing.
            return ()
        found = self._aliases.get(name)
        if found is None:
            if len(self._aliases) >= _MAX_CACHED:
                self._aliases.clear()
            found = self._aliases[name] = self._aliases_of(name)
        return found

    def identifiers(self, name: str) -> Collection[str]:
        """All ids, names and addresses of the machine with this name, also those that are ambiguous.

        Empty if the machine is not known, or the name means several.
        """
        if not self._labels or (node_id := self.find(name)) is None:
            return ()
        return self._identifiers(node_id)

    def machine_of(self, name: str) -> str:
        """The id of the only node that a name or an address means, else the name itself; in normal form."""
        found = self._machines.get(name)
        if found is None:
            if len(self._machines) >= _MAX_CACHED:
                self._machines.clear()
            found = self._machines[name] = self.find(name) or normalize_name(name)
        return found

    def labels_of(self, node_id: str) -> Mapping[str, str]:
        """The labels of the machine with this name; empty if it is not known, or the name is ambiguous."""
        node = node_id if node_id in self._labels else self.find(node_id)
        return {} if node is None else self._labels[node]

    def labels_if_known(self, node_id: str) -> Mapping[str, str] | None:
        """The labels of the node with this id; None if there is no such node, for example not any more."""
        return self._labels.get(node_id)

    def with_label(self, key: str, value: str) -> Collection[str]:
        """The ids of the nodes that have this label with this value."""
        return self._with_label.get((key, value), ())

    def label_keys(self) -> set[str]:
        return {key for key, _ in self._with_label}

    # Which ids are one node. Each step leads to an id whose sources count more, or is the last one: so it ends.

    def _node_of(self, reported_id: str) -> str:
        """The id of the node to which a reported id belongs."""
        other = self._other_node_with(reported_id)
        if other is not None:
            return other
        full = self._only_full_name(reported_id)
        return reported_id if full is None else full

    def _other_node_with(self, reported_id: str) -> str | None:
        """The other node to which a reported id belongs by rules 1 and 2."""
        reported = self._ids[reported_id]
        if reported.rank is SourceKind.FILE and not reported.is_bare:
            return None  # No source counts more.
        having, kind = self._having(reported_id)
        if not self._yields_to(reported, kind) or not self._all_count_more(having, reported_id):
            return None
        nodes = self._nodes_of(having - {reported_id})
        return next(iter(nodes)) if len(nodes) == 1 else None

    def _all_count_more(self, having: Collection[str], reported_id: str) -> bool:
        """Whether the question which node each of them is ends: it cannot lead back to this id."""
        reported = self._ids[reported_id]
        if len(having) > MAX_SHARING or reported.is_bare:
            return len(having) <= MAX_SHARING
        return all(self._ids[each].rank < reported.rank for each in having if each != reported_id)

    def _yields_to(self, reported: _ReportedId, kind: SourceKind) -> bool:
        rank = reported.rank
        return kind < rank or (kind == rank and kind is not SourceKind.AGENT and reported.is_bare)

    def _only_full_name(self, reported_id: str) -> str | None:
        """The full name of a short one, by rule 3."""
        label, is_full = short_name(reported_id)
        if not label or is_full:
            return None
        full_names = self._names.full_names(label)
        if len(full_names) != 1:
            return None
        [full] = full_names
        having, kind = self._having(full)
        # If its node is another one, it says nothing about the short name.
        has_other = bool(having - {full}) and self._yields_to(self._ids[full], kind)
        return None if has_other else full

    def _having(self, alias: str) -> tuple[set[str], SourceKind]:
        """The ids that have this alias in the reports that count, and the kind of their sources."""
        for kind in (SourceKind.FILE, SourceKind.MANAGER):
            if having := self._by_alias[kind].matching(alias):
                return having, kind
        having = self._by_alias[SourceKind.AGENT].matching(alias)
        return {each for each in having if self._may_be_named_by_agents(each)}, SourceKind.AGENT

    def _may_be_named_by_agents(self, reported_id: str) -> bool:
        """Whether neither the file nor a manager has names for the node of this id: rule 4."""
        return not any(it.trusted_aliases() for it in self._reported(self._node.get(reported_id, reported_id)))

    def _nodes_of(self, reported_ids: set[str]) -> set[str]:
        return {self._node_of(each) for each in reported_ids} if len(reported_ids) <= MAX_SHARING else reported_ids

    # The nodes.

    def _members(self, node_id: str) -> set[str]:
        """The reported ids that belong to a node."""
        return {node_id, *self._further_ids[node_id]}

    def _identifiers(self, node_id: str) -> set[str]:
        """The ids of a node, and its names and addresses that count."""
        trusted = {alias for it in self._reported(node_id) for alias in it.trusted_aliases()}
        return self._members(node_id) | (
            trusted or {alias for it in self._reported(node_id) for alias in it.aliases_by(SourceKind.AGENT)}
        )

    def _reported(self, node_id: str) -> list[_ReportedId]:
        """What is reported about the ids of a node."""
        return [self._ids[each] for each in self._members(node_id) if each in self._ids]

    def _identifiers_around(self, reported_ids: Iterable[str]) -> set[str]:
        """The names of all nodes to which these ids belong."""
        nodes = {self._node[each] for each in reported_ids if each in self._node}
        return {name for node in nodes for name in self._identifiers(node)}

    def _others(self, alias: str, node_id: str) -> list[str]:
        """The other nodes with an alias of a node, whoever reports it."""
        having = {each for index in self._by_alias.values() for each in islice(index.having(alias), MAX_SHARING)}
        reported = {alias} if alias in self._ids else set()
        return sorted({self._node[each] for each in having | reported} - {node_id})[:MAX_SHARING]

    def _aliases_of(self, name: str) -> tuple[str, ...]:
        if (node_id := self.find(name)) is None:
            return ()
        own = (each for each in self.identifiers(node_id) if self.known_as(each) == {node_id})
        return tuple(sorted(set(own) - {normalize_name(name)}))

    # Updates.

    def _source(self, source: NodeSource) -> SourceNodes:
        return self._sources.setdefault(source, SourceNodes(trusted=source.kind is not SourceKind.AGENT))

    def _stage(self, source: NodeSource, changed: Mapping[str, Believed]) -> None:
        self._staged.update(((source, reported_id), node) for reported_id, node in changed.items())

    def _update_nodes(self, reported_ids: Collection[str]) -> Collection[str]:
        """Find the nodes of these ids again; the ids of all nodes that may have changed."""
        moved = list(chain.from_iterable(map(self._move, reported_ids)))
        changed = dict.fromkeys(chain(reported_ids, moved))
        for each in changed:
            self._update_node(each)
        return changed

    def _move(self, reported_id: str) -> list[str]:
        """Find the node of an id again; the other nodes to which it belonged and belongs."""
        before = self._node.pop(reported_id, None)
        if before is not None and before != reported_id:
            self._further_ids.discard(before, reported_id)
        after = self._node_of(reported_id) if reported_id in self._ids else None
        if after is not None:
            self._node[reported_id] = after
            if after != reported_id:
                self._further_ids.add(after, reported_id)
        return [node for node in (before, after) if node is not None and node != reported_id]

    def _replace_staged(self, staged: Iterable[tuple[NodeSource, str]]) -> None:
        for source, reported_id in staged:
            self._replace(source, reported_id, self._staged.pop((source, reported_id)))
        self._aliases.clear()
        self._machines.clear()
        self.version += 1

    def _replace(self, source: NodeSource, reported_id: str, node: Believed) -> None:
        """Change what a source reports about an id, and the indexes of ids and aliases."""
        kind = source.kind
        reported = self._ids.get(reported_id)
        if reported is None:
            reported = self._ids[reported_id] = _ReportedId()
            self._names.add(reported_id)
        before = reported.aliases_by(kind)
        if node is ABSENT:
            reported.of_kind(kind).pop(source, None)
        else:
            reported.of_kind(kind)[source] = node
        after = reported.aliases_by(kind)
        for alias in after - before:
            self._by_alias[kind].add(alias, reported_id)
        for alias in before - after:
            self._by_alias[kind].discard(alias, reported_id)
        if not reported.trusted and not reported.agents:
            del self._ids[reported_id]
            self._names.discard(reported_id)

    def _affected(self, reported_ids: Collection[str]) -> set[str]:
        """The ids whose node may be another one once these ids are reported otherwise, and themselves."""
        affected = set(reported_ids)
        rest = [each for given in affected for each in (*self._named_ids(given), *self._short_name_of(given))]
        while rest:
            current = rest.pop()
            if current in affected:
                continue
            affected.add(current)
            rest += self._short_name_of(current)
            rest += (each for each in self._named_ids(current) if self._may_follow(each, current))
        return affected

    def _may_follow(self, reported_id: str, having: str) -> bool:
        """Whether an id that is an alias of another one can belong to the node of that."""
        return self._ids[reported_id].is_bare or self._ids[having].rank < self._ids[reported_id].rank

    def _named_ids(self, reported_id: str) -> Iterator[str]:
        """The other reported ids that the file or managers report as names or addresses of this one."""
        if (reported := self._ids.get(reported_id)) is not None:
            for alias in reported.trusted_aliases():
                yield from (each for each in self._names.matching(alias) if each != reported_id)

    def _short_name_of(self, reported_id: str) -> list[str]:
        """The short name of a full one, if it is reported as well."""
        label, is_full = short_name(reported_id)
        return [label] if label and is_full and label in self._ids else []

    def _update_node(self, reported_id: str) -> None:
        """Whether this id is a node now, and its labels."""
        before, after = self._labels.pop(reported_id, None), None
        for label in (before or {}).items():
            self._with_label[label].discard(reported_id)
            if not self._with_label[label]:
                del self._with_label[label]
        if self._node.get(reported_id) == reported_id:
            after = self._labels[reported_id] = self._merged_labels(reported_id)
            for label in after.items():
                self._with_label[label].add(reported_id)
        if (before is None) != (after is None):
            self._order = None

    def _merged_labels(self, node_id: str) -> Mapping[str, str]:
        """For each key the value of the source that counts most."""
        reported = self._reported(node_id)
        reports = [report for it in reported for report in it.trusted.items()]
        reports = reports or [report for it in reported for report in it.agents.items()]
        described = [(source, node) for source, node in reports if isinstance(node, ReportedNode) and node.labels]
        if len(described) == 1:
            return described[0][1].labels
        merged: dict[str, str] = {}
        for _, node in sorted(described, key=lambda report: (report[0], report[1].id), reverse=True):
            merged |= node.labels
        return merged


def _differ(name: str, node_id: str) -> bool:
    """Whether two names have the same first label and are both full: then they are two machines."""
    (label, is_full), (other, other_is_full) = short_name(name), short_name(node_id)
    return bool(label and is_full and other_is_full) and label == other and name != node_id


# NodesByAlias: which nodes have a further name or an address. Pure.


class NodesByAlias:
    """Further names and addresses, in normal form, with the ids of the nodes that have each."""

    def __init__(self) -> None:
        self._names = NameSet()
        self._nodes = Multimap()

    def add(self, alias: str, node: str) -> None:
        self._nodes.add(alias, node)
        if short_name(alias)[0]:  # Nothing else means the same as an address.
            self._names.add(alias)

    def discard(self, alias: str, node: str) -> None:
        self._nodes.discard(alias, node)
        if alias not in self._nodes:
            self._names.discard(alias)

    def __iter__(self) -> Iterator[str]:
        """The aliases."""
        return iter(self._nodes)

    def having(self, alias: str) -> Collection[str]:
        """The nodes with this very alias."""
        return self._nodes[alias]

    def matching(self, name: str) -> set[str]:
        """The nodes with a name of the same machine: short or full, as NameSet compares names."""
        return {node for alias in (name, *self._names.matching(name)) for node in self.having(alias)}


# What a selector selects among the known nodes, and hints for labels that no node has. Pure.


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The selected nodes, sorted, under the ids by which they are known and as these are spelt.

    `hints` has a sentence for each label in the selector that no node has.
    """

    selector: Selector
    nodes: Sequence[str]
    spelt: Sequence[str]
    hints: Sequence[str]

    def require_nodes(self, max_nodes: int | None = None) -> Sequence[str]:
        """The nodes as they are spelt, to be changed.

        Raises NotFoundError if there are none, InvalidError for more than the maximum.
        """
        if not self.nodes:
            sentence = f"The selector {self.selector} selects no node. Nothing was changed."
            raise NotFoundError(" ".join([sentence, *self.hints]))
        if max_nodes is not None and len(self.nodes) > max_nodes:
            raise InvalidError(
                f"The selector {self.selector} selects {len(self.nodes):,} nodes; at most {max_nodes:,} can be changed"
                " at once. Nothing was changed."
            )
        return self.spelt

    def require_known_labels(self) -> None:
        """Raise UnknownNodeError if no node has one of the labels."""
        if self.hints:
            raise UnknownNodeError(self.hints[0], self.hints)


def select_nodes(selector: Selector, nodes: Inventory) -> Selection:
    """The known nodes with labels that satisfy the selector."""
    selected = sorted(node for node in nodes if selector.matches(nodes.labels_of(node)))
    spelt = [nodes.spelling(node) for node in selected]
    return Selection(selector=selector, nodes=selected, spelt=spelt, hints=label_hints(selector, nodes))


def selects(selector: Selector, nodes: Inventory, node_id: str) -> bool:
    """Whether a machine that `node_id` means is selected. A node that is not known has no labels."""
    labels: list[Mapping[str, str]] = [nodes.labels_of(known) for known in nodes.known_as(node_id)]
    return any(selector.matches(each) for each in labels or [{}])


def label_hints(selector: Selector, nodes: Inventory) -> list[str]:
    """A sentence for each label in the selector that no known node has."""
    return [
        f"No node has the label {key}" + ("." if similar is None else f"; did you mean {similar}?")
        for key, similar in unknown_keys(selector, nodes.label_keys()).items()
    ]

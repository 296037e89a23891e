"""The plan that every manager makes, and the interface of a manager. Pure.

A manager reconciles: it compares the list with the current state of the cluster manager and applies the difference. It
has no state of its own that a restart would lose, so it may be stopped at any point, and applying twice is harmless.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from typing import Final, Generic, Protocol, TypeVar, runtime_checkable

from blocklist.model.claims import Claims
from blocklist.model.inventory import Inventory
from blocklist.model.names import ambiguous_message, normalize_name
from blocklist.model.node import BlockedNode, merge, to_utc
from blocklist.model.reported_node import NodeFacts, NodeSource, SourceKind, report_nodes

DEFAULT_INTERVAL: Final = 60.0
"""Seconds between reconciliations while the list does not change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotInForce:
    """What of the list is not in force, node id to reason.

    `refused`: nothing will happen unless somebody acts. `pending`: it is being tried, what runs is ending, or it is not
    known whether it is in force. `not_here`: the whole inventory was read, and has no node with such a name.
    """

    refused: Mapping[str, str] = field(default_factory=dict)
    pending: Mapping[str, str] = field(default_factory=dict)
    not_here: frozenset[str] = frozenset()

    def __or__(self, other: NotInForce) -> NotInForce:
        """Both; what the second one says of a node replaces what the first one says."""
        refused = {**self.refused, **other.refused}
        pending = {**self.pending, **other.pending}
        return NotInForce(
            refused={node: why for node, why in refused.items() if node not in other.pending},
            pending={node: why for node, why in pending.items() if node not in other.refused},
            not_here=(self.not_here | other.not_here).difference(refused, pending),
        )

    def __bool__(self) -> bool:
        return bool(self.refused or self.pending)

    @property
    def sentences(self) -> list[str]:
        """One for each node, in the order refused, pending, not here."""
        absent = [f"Not here: {', '.join(sorted(self.not_here))}."] if self.not_here else []
        return [*self.refused.values(), *self.pending.values(), *absent]


@dataclass(frozen=True, slots=True)
class NotDone:
    """Why something was not carried out; `for_good`: unless somebody acts."""

    why: str
    for_good: bool = False

    def for_ids(self, ids: Iterable[str]) -> NotInForce:
        """As the state of these ids on the list."""
        reasons = dict.fromkeys(ids, self.why)
        return NotInForce(refused=reasons) if self.for_good else NotInForce(pending=reasons)


class ManagerError(Exception):
    """The cluster manager could not be read or changed; retry later. The message is a sentence for the operator.

    `known` is all that is known not to be in force, or no longer known to be: it is reported without an
    acknowledgement. None: it is not known of any block whether it is in force.
    """

    def __init__(self, message: str, *, known: NotInForce | None = None) -> None:
        super().__init__(message)
        self.known = known


class TransientError(ManagerError):
    """An outage that is too short to say that anything is unknown: the last report stands."""


class StepAction(StrEnum):
    BLOCK = "block"
    EVACUATE = "evacuate"
    FREE = "free"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanStep:
    """One action. `name` is the node's name in the cluster manager; `reason` is a sentence."""

    action: StepAction
    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagerPlan:
    """The steps that are missing, and what is not in force however they end.

    `all_nodes` are all nodes of the cluster manager with what it knows about them, `unschedulable` those that get no
    work for another reason than a block, with their states, `schedulable` blocked ones that get work although the block
    was applied, with reasons, `replaced` blocked ones whose name another machine has since, `new_machines` those of
    which that is certain, with the time since when (Unix ms); None if planning does not show them. `containers` is what
    runs on blocked nodes: an id for each group of containers to its node and their number, None if that is not known;
    None if nothing is known. `unmatched` are the ids on the list that mean no node. `withheld` are blocked nodes that
    no known name on the list means and that are not freed, as one of the `unresolved` ids may mean them.
    `platform` is the cluster manager with its version, None if unknown; `verb` is what it does with a blocked node.
    """

    steps: tuple[PlanStep, ...] = ()
    not_in_force: NotInForce = field(default_factory=NotInForce)
    all_nodes: Sequence[NodeFacts] | None = None
    unschedulable: Mapping[str, str] | None = None
    schedulable: Mapping[str, str] | None = None
    replaced: Mapping[str, str] | None = None
    new_machines: Mapping[str, int] | None = None
    containers: Mapping[str, tuple[str, int | None]] | None = None
    unmatched: Collection[str] = ()
    withheld: Sequence[str] = ()
    unresolved: Sequence[str] = ()
    platform: str | None = None
    verb: str = "block"

    def would(self) -> dict[str, str]:
        """What carrying it out would do for blocks: the id or the name of a node to a sentence."""
        done = {
            StepAction.BLOCK: f"would {self.verb} the node.",
            StepAction.EVACUATE: f"would {self.verb} and evacuate the node.",
        }
        steps = {step.name: done[step.action] for step in self.steps if step.action in done}
        refused = {node_id: f"would refuse: {why}" for node_id, why in self.not_in_force.refused.items()}
        return steps | refused


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherNames:
    """What else the service calls the nodes on the list.

    `known` has the names of those that it was asked for and has answered; None if it is not asked. `since_start` are
    the ids that were on the list when this process began: a former one may have blocked a node for them.
    """

    known: Mapping[str, Collection[str]] | None = None
    since_start: Collection[str] = ()

    def of(self, node_id: str) -> Collection[str]:
        """Empty if there are none, or they are not known."""
        return (self.known or {}).get(node_id, ())

    def unknown(self, node_ids: Iterable[str]) -> list[str]:
        """Those of these ids for which the service has not answered yet, sorted."""
        return [] if self.known is None else sorted(it for it in node_ids if it not in self.known)

    def unresolved(self, unmatched: Iterable[str]) -> list[str]:
        """Those of these ids that mean no node, for which a former process may have blocked one."""
        return [it for it in self.unknown(unmatched) if it in self.since_start]

    def checked(self, found: NotInForce) -> NotInForce:
        """What is found, but pending instead of not here while a node may have a name that is not known yet."""
        why = "Not known to be in force: the service has not said yet what else it calls node {}."
        return found | NotInForce(pending={it: why.format(it) for it in self.unknown(found.not_here)})


NO_OTHER_NAMES: Final = OtherNames()


@dataclass(frozen=True, kw_only=True, slots=True)
class DesiredState:
    """The blocked nodes at a revision of a history, by id. `claims` are those on them, as far as they are known."""

    revision: int
    history: str | None = None
    nodes: Mapping[str, BlockedNode] = field(default_factory=dict)
    claims: Mapping[str, Claims] = field(default_factory=dict)
    others: OtherNames = NO_OTHER_NAMES


P = TypeVar("P", bound=ManagerPlan)


class Manager(Protocol[P]):
    """One cluster manager. Both methods block while their commands run."""

    def plan(self, desired: DesiredState) -> P:
        """Compare the cluster manager with `desired`. Changes nothing. Raises ManagerError.

        What is not here may be so by another name: `desired.others` decides, and withholds what would be freed.
        """

    def apply(self, plan: P) -> NotInForce:
        """Carry out the plan; returns what is not in force besides what the plan says.

        Raises ManagerError; steps that were carried out before it remain.
        """


@runtime_checkable
class Stoppable(Protocol):
    """A manager that can end a plan or an application early."""

    def stop(self) -> None:
        """End it with a ManagerError, within a second, or as soon as what must not stay half done is finished.

        Call it from any thread or signal handler.
        """


NOT_LISTED_SECONDS: Final = 3600.0
"""After this time the cluster manager is believed that a node which it no longer lists is gone."""
T = TypeVar("T")


class ListedNodes(Generic[T]):
    """What a cluster manager lists, by name: an answer without a node that was there says nothing about the node.

    `system` is what the cluster manager is called in sentences.
    """

    def __init__(self, system: str) -> None:
        self._system = system
        self._seen: dict[str, tuple[T, float]] = {}

    def not_listed(self, listed: Mapping[str, T], now: float) -> dict[str, T]:
        """The nodes that were listed before `now` (seconds, monotonic) and are not now, as they were then.

        Raises ManagerError if none is listed at all: that is no cluster, whatever the reason.
        """
        if not listed:
            raise ManagerError(f"{self._system} lists no nodes at all.")
        self._seen |= {name: (node, now) for name, node in listed.items()}
        self._seen = {name: each for name, each in self._seen.items() if now - each[1] < NOT_LISTED_SECONDS}
        return {name: node for name, (node, _) in self._seen.items() if name not in listed}


def absent(system: str, ids: Iterable[str], listed: Collection[str], missing: Collection[str] = ()) -> NotInForce:
    """The state of ids that mean no node: not here, if the answer with the `listed` nodes is the whole inventory.

    It is not if it has none, or if at least half of the nodes that there were are `missing` from it, of two or more.
    """
    if not listed:
        why = f"Not known to be in force: {system} lists no nodes at all."
    elif len(missing) >= max(2, len(listed)):
        why = f"Not known to be in force: {system} lists {len(listed)} nodes now, and {len(missing)} fewer than before."
    else:
        return NotInForce(not_here=frozenset(ids))
    return NotInForce(pending=dict.fromkeys(ids, why))


# Which nodes of a cluster manager a node id on the list means: the rules of the service's inventory. Pure.


class NodeNames:
    """The nodes of one cluster under all their names and addresses. Not thread-safe."""

    def __init__(self, nodes: Iterable[NodeFacts] = ()) -> None:
        self._inventory = Inventory()
        self._names: dict[str, str] = {}
        self._facts: Sequence[NodeFacts] = ()
        self._shared: dict[str, list[str]] = {}
        self.others = NO_OTHER_NAMES
        self.update(nodes)

    def update(self, facts: Iterable[NodeFacts]) -> None:
        """Replace the nodes; costs little if none has changed."""
        nodes = tuple(facts)
        if nodes == self._facts:
            return
        self._facts = nodes
        self._names = {normalize_name(node.id): node.id for node in nodes}
        self._inventory.stage_nodes(_SOURCE, report_nodes(nodes))
        self._inventory.apply_staged()
        users: defaultdict[str, list[str]] = defaultdict(list)
        for node in nodes:
            for name in set(map(normalize_name, node.names)):
                users[name].append(node.id)
        # What several nodes have is not reported, as it tells none of them apart.
        self._shared = {name: sorted(using) for name, using in users.items() if len(using) > 1}

    def meant_by(self, node_id: str) -> list[str]:
        """The names of the nodes that an id means: one, none, or all those of which it is the short name.

        If none has the id, those that have one of the `others` of it.
        """
        return self._named(node_id) or sorted(meant_otherwise(self.others.of(node_id), self._named)[0])

    def ambiguity(self, node_id: str) -> str | None:
        """Why an id means no node although several have the name or address; None if none has."""
        if self.meant_by(node_id):
            return None
        names = (node_id, *self.others.of(node_id))
        return meant_otherwise(names, lambda it: self._named(it) or self._shared.get(normalize_name(it), ()))[1]

    def _named(self, name: str) -> list[str]:
        return sorted(self._names[name] for name in self._inventory.known_as(name) if name in self._names)


_SOURCE: Final = NodeSource(SourceKind.MANAGER, "manager")


def meant_otherwise(names: Iterable[str], meant_by: Callable[[str], Collection[str]]) -> tuple[set[str], str | None]:
    """The nodes that other names of an id mean; if none, why not, if one is the name of several nodes.

    Such a name, as a short one may be, does not tell which of them the id means.
    """
    found, ambiguity = set[str](), None
    for name in sorted(names):
        nodes = meant_by(name)
        if len(nodes) == 1:
            found |= {*nodes}
        elif nodes:
            ambiguity = ambiguity or ambiguous_message(name, sorted(nodes))
    return found, None if found else ambiguity


def withheld_message(plan: ManagerPlan) -> str:
    """Why the `withheld` nodes are not freed."""
    node_id = plan.unresolved[0]
    why = plan.not_in_force.pending.get(node_id, "")
    return (
        f"Node {plan.withheld[0]} is not freed, nor any other: it may be the one that {node_id} on the list means."
        f" {why}"
    ).rstrip()


def not_listed_reason(system: str, name: str) -> str:
    """Why it is not known whether the block of a node is in force that was listed before, and is not now."""
    return f"Not known to be in force: {system} does not list node {name} now, but did before."


def merged_block(name: str, blocks: Iterable[BlockedNode]) -> BlockedNode:
    """One block for a node that several ids mean, with the node's name as its id."""
    return reduce(merge, (replace(block, id=name) for block in blocks))


def block_step(name: str, node: BlockedNode, reason: str) -> PlanStep:
    """A step for a node that is blocked or evacuated."""
    return PlanStep(action=StepAction.EVACUATE if node.evacuates else StepAction.BLOCK, name=name, reason=reason)


def free_steps(names: Iterable[str]) -> list[PlanStep]:
    """A step for each node that is no longer blocked."""
    return [PlanStep(action=StepAction.FREE, name=name, reason=f"Node {name} is no longer blocked.") for name in names]


def format_end(node: BlockedNode) -> str:
    """`until 2026-11-21T12:00:00Z`, in UTC and rounded up to the second, or `without end`."""
    if node.permanent:
        return "without end"
    end = to_utc(-(-node.end // 1000) * 1000)
    return f"until {node.end}" if end is None else f"until {end:%Y-%m-%dT%H:%M:%SZ}"

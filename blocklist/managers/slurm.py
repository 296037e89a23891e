"""Slurm: blocked nodes are set to DRAIN, with a mark in the reason, which ends with their block.

Only nodes with the mark are undrained or updated, so a restarted manager recognises its nodes. A node that others
drained, or that is down, is left unchanged: a new reason would hide theirs, and ReturnToService depends on the reason.
DRAIN lets running jobs finish, also for an evacuation, which is pending until then.

Tested with Debian's slurmctld and slurmd 22.05.8: `show nodes --oneliner` has one line for each node, without brackets
to expand; it shows a reason unchanged, except for surrounding quotes, followed by ` [user@time]`; an update that names
an unknown node changes no node. `resume` would make a node IDLE that went down meanwhile; `undrain` leaves it down, and
clears the reason only of a node that is not.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from blocklist.managers.command import run
from blocklist.managers.plan import (
    DesiredState,
    ListedNodes,
    ManagerError,
    ManagerPlan,
    NodeNames,
    NotInForce,
    absent,
    block_step,
    format_end,
    free_steps,
    merged_block,
    not_listed_reason,
)
from blocklist.model.node import BlockedNode
from blocklist.model.reported_node import NodeFacts, make_label_value

MARK: Final = "blocklist: "
NODES_PER_COMMAND: Final = 200
"""Maximum number of nodes in one scontrol command."""
_MAX_OUTPUT: Final = 64 * 1024 * 1024
_NODE: Final = re.compile(r"NodeName=(\S+) .*?\bState=(\S+)(.*)")
_FIELD: Final = re.compile(r" (NodeAddr|NodeHostName|Partitions|AvailableFeatures|CPUAlloc)=(\S+)")
_ERROR: Final = re.compile(r"\berror\b", re.IGNORECASE)
_IDLE: Final = frozenset({"IDLE", "DOWN"})
_POWER: Final = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP"})
"""Of a node in power saving, which Slurm starts when a job needs it."""
_SIGNS: Final = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "%": "POWERING_DOWN",
    "!": "POWER_DOWN",
}
"""What a sign behind the state means, before the versions that write it as a state of its own."""
_DOWN_REASON: Final = "down since before its block in the blocklist ended"
_NO_VALUE: Final = "(null)"
# Slurm appends [user@time] to a reason, and removes surrounding quotes.
_REPLACED: Final = str.maketrans({"[": "(", "]": ")", '"': "'"})
_REASON: Final = re.compile(r" Reason=(.*?)(?: \[[^\s\[\]@]+@[^\s\[\]]+\]|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmNode:
    """A node in Slurm: `states` such as IDLE, DRAIN, DOWN; `reason` is empty if it has none.

    `names` are its address and its host's name. `cpus` is the number of CPUs that jobs have, None if unknown.
    """

    name: str
    states: frozenset[str]
    reason: str = ""
    cpus: int | None = None
    names: Sequence[str] = ()
    labels: Sequence[tuple[str, str]] = ()

    @property
    def facts(self) -> NodeFacts:
        return NodeFacts(id=self.name, names=self.names, labels=self.labels)

    @property
    def drained_by_us(self) -> bool:
        return self.reason.startswith(MARK)

    @property
    def drained(self) -> bool:
        return not self.states.isdisjoint({"DRAIN", "DRAINED", "DRAINING"})

    @property
    def text(self) -> str:
        """`DRAIN+IDLE`, for people."""
        return "+".join(sorted(self.states))

    @property
    def state(self) -> str:
        """What it is when it is out of service, for people."""
        return f"{self.text}, not by this manager ({self.reason or 'no reason'})"

    @property
    def out_of_service(self) -> bool:
        """Whether it is drained by others, or down."""
        return not self.drained_by_us and (self.drained or bool(self.states & {"DOWN", "FAIL", "FAILING"}))

    @property
    def drifts(self) -> bool:
        """Whether it gets no jobs, and not because it saves power."""
        return self.out_of_service and not self.states & _POWER

    @property
    def empty(self) -> bool:
        """Whether it is known that no job runs there: on a node that is down and silent, processes may."""
        silent_and_down = {"DOWN", "NOT_RESPONDING"} <= self.states
        return bool(self.states & _IDLE) and "COMPLETING" not in self.states and not self.cpus and not silent_and_down


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmPlan(ManagerPlan):
    """`drain` maps the names of nodes to drain to their new reason; `undrain` has the names of nodes that are freed,
    `down` those of them that are down. `ids` maps the names of nodes to the ids on the list that mean them.
    """

    drain: Mapping[str, str] = field(default_factory=dict)
    undrain: tuple[str, ...] = ()
    down: frozenset[str] = frozenset()
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)


class SlurmManager:
    """`command` is scontrol; `timeout` is in seconds, for each call."""

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        self._command = command
        self._timeout = timeout
        self._listed = ListedNodes[SlurmNode]("Slurm")
        self._names = NodeNames()
        self._platform: str | None = None

    def plan(self, desired: DesiredState) -> SlurmPlan:
        nodes = self._read()
        missing = self._listed.not_listed({node.name: node for node in nodes}, time.monotonic())
        self._names.others = desired.others
        plan = make_plan(desired.nodes, nodes, missing, self._names)
        return replace(plan, platform=self._read_platform(), verb="drain")

    def _read_platform(self) -> str:
        """Such as `slurm 22.05.8`, read once; without a version if it does not tell."""
        if self._platform is None:
            self._platform = "slurm"
            with suppress(ManagerError):
                words = run([*self._command, "--version"], timeout=self._timeout).stdout.split()
                self._platform = " ".join(words[:2])[:100] or self._platform
        return self._platform

    def apply(self, plan: SlurmPlan) -> NotInForce:
        """What Slurm shows afterwards counts, not that the command has succeeded."""
        if not plan.drain and not plan.undrain:
            return NotInForce()
        by_reason: defaultdict[str, list[str]] = defaultdict(list)
        for name, reason in plan.drain.items():
            by_reason[reason].append(name)
        for reason, names in by_reason.items():
            self._update(names, "state=drain", f"reason={reason}")
        self._update([name for name in plan.undrain if name not in plan.down], "state=undrain")
        # It keeps its reason, by which it would look blocked.
        self._update([name for name in plan.undrain if name in plan.down], "state=undrain", f"reason={_DOWN_REASON}")
        after = {node.name: node for node in self._read()}
        self._listed.not_listed(after, time.monotonic())
        return not_done(plan, after)

    def _read(self) -> list[SlurmNode]:
        output = run(
            [*self._command, "--all", "--oneliner", "show", "nodes"], timeout=self._timeout, max_output=_MAX_OUTPUT
        )
        if not output.complete:
            raise ManagerError(f"{self._command[0]} show nodes: more than {_MAX_OUTPUT >> 20} MiB of output.")
        if _ERROR.search(output.stderr):
            raise ManagerError(f"{self._command[0]} show nodes: {' '.join(output.stderr.split())[:300]}")
        return parse_nodes(output.stdout)

    def _update(self, names: Iterable[str], *assignments: str) -> None:
        rest = iter(names)
        while batch := list(islice(rest, NODES_PER_COMMAND)):
            run([*self._command, "update", f"nodename={','.join(batch)}", *assignments], timeout=self._timeout)


def parse_nodes(text: str) -> list[SlurmNode]:
    """Parse the output of `scontrol --oneliner show nodes`. Raises ManagerError for a malformed or unfinished line."""
    nodes = []
    if text and not text.endswith("\n"):
        raise ManagerError(f"scontrol show nodes: the output ends within a line: …{text[-100:]}")
    for line in text.splitlines():
        if not line.startswith("NodeName="):
            if _ERROR.search(line):
                raise ManagerError(f"scontrol show nodes: {line[:300]}")
            continue
        if not (found := _NODE.match(line)):
            raise ManagerError(f"scontrol show nodes: unexpected line: {line[:200]}")
        # A reason, and what follows it, may contain anything; of a field that seems to be there twice the first counts.
        values = dict(reversed(_FIELD.findall(line.partition(" Reason=")[0])))
        reason = _REASON.search(found[3])
        names = [values[key] for key in ("NodeAddr", "NodeHostName") if key in values]
        signs = {state for sign, state in _SIGNS.items() if sign in found[2]}
        cpus = values.get("CPUAlloc", "")
        nodes.append(
            SlurmNode(
                name=found[1],
                states=frozenset(state.rstrip("*~#!%$@^-") for state in found[2].split("+")) | signs,
                reason=reason[1] if reason else "",
                cpus=int(cpus) if cpus.isdecimal() else None,
                names=names,
                labels=_labels(_split(values.get("Partitions")), _split(values.get("AvailableFeatures"))),
            )
        )
    return nodes


def _split(value: str | None) -> list[str]:
    return [] if value is None or value == _NO_VALUE else value.split(",")


def _labels(partitions: Sequence[str], features: Sequence[str]) -> list[tuple[str, str]]:
    """A label for each partition and each feature, and `partition` with the name of an only partition."""
    only = partitions if len(partitions) == 1 else []
    return [
        *(("partition", make_label_value(partition)) for partition in only),
        *((f"partition.slurm/{make_label_value(partition)}", "") for partition in partitions),
        *((f"feature.slurm/{make_label_value(feature)}", "") for feature in features),
    ]


def make_plan(
    blocked: Mapping[str, BlockedNode],
    current: Iterable[SlurmNode],
    missing: Mapping[str, SlurmNode],
    names: NodeNames,
) -> SlurmPlan:
    """The steps from `current` to `blocked`. `names`, which are updated, decide which nodes an id means.

    `missing` are nodes that Slurm has listed before, and does not now, by name.
    """
    nodes = {node.name: node for node in current}
    names.update(node.facts for node in [*nodes.values(), *missing.values()])
    matches = {node_id: names.meant_by(node_id) for node_id in sorted(blocked)}
    ids = _ids_by_node(matches, nodes)
    merged = {name: merged_block(name, (blocked[node_id] for node_id in its)) for name, its in ids.items()}
    reasons = {name: drain_reason(node) for name, node in sorted(merged.items()) if not nodes[name].out_of_service}
    drain = {name: why for name, why in reasons.items() if not nodes[name].drained or nodes[name].reason != why}
    refused = {node_id: why for node_id in blocked if (why := names.ambiguity(node_id)) is not None}
    unmatched = [node_id for node_id, found in matches.items() if not found and node_id not in refused]
    freed = sorted(name for name, node in nodes.items() if node.drained_by_us and node.drained and name not in merged)
    unresolved = names.others.unresolved(unmatched)
    undrain = [] if unresolved else freed
    steps = [
        *(block_step(name, merged[name], _step_reason(name, merged[name])) for name in drain),
        *free_steps(undrain),
    ]
    others = absent("Slurm", unmatched, nodes, missing)
    pending: dict[str, str] = {}
    for node_id, found in matches.items():
        if unlisted := [name for name in found if name in missing]:
            pending[node_id] = not_listed_reason("Slurm", unlisted[0])
        elif unavailable := [nodes[name] for name in found if nodes[name].out_of_service]:
            refused[node_id] = f"Node {unavailable[0].name} is {unavailable[0].state}: left unchanged."
        elif blocked[node_id].evacuates and (busy := [name for name in found if not nodes[name].empty]):
            pending[node_id] = (
                f"Node {busy[0]} gets no new jobs; Slurm lets running jobs finish ({nodes[busy[0]].text})."
            )
    for name, node in missing.items():
        if node.drained_by_us and node.drained and not any(name in found for found in matches.values()):
            pending[name] = f"Not known to be free again. {not_listed_reason('Slurm', name)}"
    return SlurmPlan(
        steps=tuple(steps),
        not_in_force=others | NotInForce(refused=refused, pending=pending),
        all_nodes=[node.facts for node in [*nodes.values(), *missing.values()]],
        unschedulable={name: node.state for name, node in nodes.items() if node.drifts}
        | dict.fromkeys(missing, "not listed by Slurm now"),
        containers={name: (name, None) for name in ids if not nodes[name].empty},
        unmatched=unmatched,
        withheld=freed if unresolved else (),
        unresolved=unresolved,
        drain=drain,
        undrain=tuple(undrain),
        down=frozenset(name for name in undrain if "DOWN" in nodes[name].states),
        ids=ids,
    )


def not_done(plan: SlurmPlan, after: Mapping[str, SlurmNode]) -> NotInForce:
    """What the plan was to change and is not so afterwards. Raises ManagerError if a node is not freed."""
    pending: dict[str, str] = {}
    for name in plan.drain:
        node = after.get(name)
        if node is None or not (node.drained and node.drained_by_us):
            shown = "not listed" if node is None else node.text
            why = f"Node {name} is {shown}, although scontrol has drained it."
            pending |= dict.fromkeys(plan.ids[name], why)
    for name in plan.undrain:
        node = after.get(name)
        if node is None or (node.drained and node.drained_by_us):
            known = plan.not_in_force | NotInForce(pending=pending)
            raise ManagerError(f"Node {name} is not freed, although scontrol has undrained it.", known=known)
    return NotInForce(pending=pending)


def drain_reason(node: BlockedNode) -> str:
    """The reason in Slurm, in characters that Slurm stores unchanged."""
    cause = " ".join(node.cause.translate(_REPLACED).split())
    cause = cause if len(cause) <= 200 else cause[:200] + "…"
    words = ["evacuate"] if node.evacuates else []
    return MARK + ", ".join([*words, format_end(node), *([cause] if cause else [])])


def _ids_by_node(matches: Mapping[str, Iterable[str]], nodes: Collection[str]) -> dict[str, list[str]]:
    ids: defaultdict[str, list[str]] = defaultdict(list)
    for node_id, names in matches.items():
        for name in names:
            if name in nodes:
                ids[name].append(node_id)
    return dict(ids)


def _step_reason(name: str, node: BlockedNode) -> str:
    return f"Node {name} is blocked {format_end(node)} ({node.cause}): it gets no new jobs."

"""Slurm: blocked nodes are set to DRAIN, with a mark in the reason, and resumed when their block ends.

Only nodes with the mark are resumed or updated, so a restarted manager recognises its nodes. A node that others
drained, or that is down, is left unchanged: a new reason would hide theirs, and ReturnToService depends on the reason.
DRAIN lets running jobs finish, also for an evacuation, which is then reported as refused.

Tested with Debian's slurmctld and slurmd 22.05.8: `show nodes --oneliner` has one line for each node, without brackets
to expand; it shows a reason unchanged, except for surrounding quotes, followed by ` [user@time]`; an update that names
an unknown node changes no node; resume clears the reason, and on a node that never responded it takes effect although
it fails.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from blocklist.managers.command import run
from blocklist.managers.plan import (
    DesiredState,
    ManagerError,
    ManagerPlan,
    block_step,
    evacuates,
    format_end,
    free_steps,
    merged_block,
)
from blocklist.model.names import HostMatcher, normalize_address
from blocklist.model.node import BlockedNode
from blocklist.model.reported_node import NodeFacts, make_label_value

MARK: Final = "blocklist: "
NODES_PER_COMMAND: Final = 200
"""Maximum number of nodes in one scontrol command."""
_MAX_OUTPUT: Final = 64 * 1024 * 1024
_NODE: Final = re.compile(r"NodeName=(\S+) .*?\bState=(\S+)(.*)")
_FIELD: Final = re.compile(r" (NodeAddr|NodeHostName|Partitions|AvailableFeatures)=(\S+)")
_NO_VALUE: Final = "(null)"
# Slurm appends [user@time] to a reason, and removes surrounding quotes.
_REPLACED: Final = str.maketrans({"[": "(", "]": ")", '"': "'"})
_REASON: Final = re.compile(r" Reason=(.*?)(?: \[[^\s\[\]@]+@[^\s\[\]]+\]|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmNode:
    """A node in Slurm: `states` such as IDLE, DRAIN, DOWN; `reason` is empty if it has none.

    `names` are what its address and its host are called.
    """

    name: str
    states: frozenset[str]
    reason: str = ""
    address: str | None = None
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
    def state(self) -> str:
        """What it is when it is out of service, for people."""
        return f"{'+'.join(sorted(self.states))}, not by this manager ({self.reason or 'no reason'})"

    @property
    def out_of_service(self) -> bool:
        """Whether it is drained by others, or down."""
        return not self.drained_by_us and (self.drained or bool(self.states & {"DOWN", "FAIL", "FAILING"}))


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmPlan(ManagerPlan):
    """`drain` maps the names of nodes to drain to their new reason; `resume` has the names of nodes to resume."""

    drain: Mapping[str, str] = field(default_factory=dict)
    resume: tuple[str, ...] = ()


class SlurmManager:
    """`command` is scontrol; `timeout` is in seconds, for each call."""

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        self._command = command
        self._timeout = timeout

    def plan(self, desired: DesiredState) -> SlurmPlan:
        output = run(
            [*self._command, "--all", "--oneliner", "show", "nodes"], timeout=self._timeout, max_output=_MAX_OUTPUT
        )
        if not output.complete:
            raise ManagerError(f"{self._command[0]} show nodes: more than {_MAX_OUTPUT >> 20} MiB of output.")
        return make_plan(desired.nodes, parse_nodes(output.stdout))

    def apply(self, plan: SlurmPlan) -> Mapping[str, str]:
        by_reason: defaultdict[str, list[str]] = defaultdict(list)
        for name, reason in plan.drain.items():
            by_reason[reason].append(name)
        for reason, names in by_reason.items():
            self._update(names, "state=drain", f"reason={reason}")
        self._update(plan.resume, "state=resume")
        return {}

    def _update(self, names: Iterable[str], *assignments: str) -> None:
        rest = iter(names)
        while batch := list(islice(rest, NODES_PER_COMMAND)):
            run([*self._command, "update", f"nodename={','.join(batch)}", *assignments], timeout=self._timeout)


def parse_nodes(text: str) -> list[SlurmNode]:
    """Parse the output of `scontrol --oneliner show nodes`. Raises ManagerError for a malformed line."""
    nodes = []
    for line in text.splitlines():
        if not line.startswith("NodeName="):
            continue
        if not (found := _NODE.match(line)):
            raise ManagerError(f"scontrol show nodes: unexpected line: {line[:200]}")
        # A reason, and what follows it, may contain anything; of a field that seems to be there twice the first counts.
        values = dict(reversed(_FIELD.findall(line.partition(" Reason=")[0])))
        reason = _REASON.search(found[3])
        names = [values[key] for key in ("NodeAddr", "NodeHostName") if key in values]
        nodes.append(
            SlurmNode(
                name=found[1],
                states=frozenset(state.rstrip("*~#!%$@^-") for state in found[2].split("+")),
                reason=reason[1] if reason else "",
                address=next(filter(None, map(normalize_address, names)), None),
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


def make_plan(blocked: Mapping[str, BlockedNode], current: Iterable[SlurmNode]) -> SlurmPlan:
    """The steps from `current` to `blocked`. HostMatcher decides which nodes an id means."""
    nodes = {node.name: node for node in current}
    matches = _matching_nodes(blocked, nodes.values())
    merged = {name: merged_block(name, blocks) for name, blocks in _blocks_by_node(matches, blocked).items()}
    reasons = {name: drain_reason(node) for name, node in sorted(merged.items()) if not nodes[name].out_of_service}
    drain = {name: why for name, why in reasons.items() if not nodes[name].drained or nodes[name].reason != why}
    resume = sorted(name for name, node in nodes.items() if node.drained_by_us and node.drained and name not in merged)
    steps = [
        *(block_step(name, merged[name], _step_reason(name, merged[name])) for name in drain),
        *free_steps(resume),
    ]
    refused = {node_id: why for node_id, names in matches.items() if (why := _refusal(blocked[node_id], names, nodes))}
    return SlurmPlan(
        steps=tuple(steps),
        refused=refused,
        all_nodes=[node.facts for node in nodes.values()],
        unschedulable={name: node.state for name, node in nodes.items() if node.out_of_service},
        drain=drain,
        resume=tuple(resume),
    )


def drain_reason(node: BlockedNode) -> str:
    """The reason in Slurm, in characters that Slurm stores unchanged."""
    cause = " ".join(node.cause.translate(_REPLACED).split())
    cause = cause if len(cause) <= 200 else cause[:200] + "…"
    words = ["evacuate"] if evacuates(node) else []
    return MARK + ", ".join([*words, format_end(node), *([cause] if cause else [])])


def _matching_nodes(blocked: Mapping[str, BlockedNode], nodes: Iterable[SlurmNode]) -> dict[str, list[str]]:
    known = list(nodes)
    addresses = {node.name.lower(): frozenset({node.address}) for node in known if node.address is not None}
    matcher = HostMatcher((node.name for node in known), addresses)
    return {node_id: sorted(matcher.hosts_of(node_id)) for node_id in sorted(blocked)}


def _blocks_by_node(
    matches: Mapping[str, Iterable[str]], blocked: Mapping[str, BlockedNode]
) -> dict[str, list[BlockedNode]]:
    by_node: defaultdict[str, list[BlockedNode]] = defaultdict(list)
    for node_id, names in matches.items():
        for name in names:
            by_node[name].append(blocked[node_id])
    return by_node


def _step_reason(name: str, node: BlockedNode) -> str:
    return f"Node {name} is blocked {format_end(node)} ({node.cause}): it gets no new jobs."


def _refusal(node: BlockedNode, names: Sequence[str], nodes: Mapping[str, SlurmNode]) -> str | None:
    if not names:
        return f"Slurm has no node {node.id}."
    if unavailable := [nodes[name] for name in names if nodes[name].out_of_service]:
        return f"Node {unavailable[0].name} is {unavailable[0].state}: left unchanged."
    if evacuates(node):
        return f"Node {names[0]} gets no new jobs, but is not evacuated: Slurm lets running jobs finish."
    return None

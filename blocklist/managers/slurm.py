"""Slurm: nodes are set to DRAIN, with a reason that carries our mark, and resumed when their block is over.

Only nodes that we drained are ever resumed or drained anew: the mark in the reason says so, also after a restart. A
node that is drained or down by somebody else's hand stays as it is: a reason of ours would cover theirs, and
ReturnToService looks at the reason. DRAIN lets running jobs finish; that an evacuation does no more is reported.

Checked with Debian's slurmctld and slurmd 22.05.8: one line a node in `show nodes --oneliner` (no brackets to expand);
a reason comes back as it was given but for quotes around it, followed by ` [user@time]`; an update that names one
unknown node changes none; resume clears the reason, and on a node that never answered it fails and works all the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import islice
from typing import Final

from blocklist.managers.command import run
from blocklist.managers.plan import (
    DesiredState,
    ManagerError,
    ManagerPlan,
    PlanStep,
    StepAction,
    action_for,
    format_end,
)
from blocklist.model.host_matching import HostMatcher, normalize_address
from blocklist.model.node import BlockedNode, merge

MARK: Final = "blocklist: "
NODES_PER_COMMAND: Final = 200
"""Nodes in one command."""
_MAX_OUTPUT: Final = 64 * 1024 * 1024
_NODE: Final = re.compile(r"NodeName=(\S+) .*?\bState=(\S+)(.*)")
_ADDRESS: Final = re.compile(r" NodeAddr=(\S+)")
# Slurm puts [user@time] behind a reason, and takes quotes around it away.
_REPLACED: Final = str.maketrans({"[": "(", "]": ")", '"': "'"})
_REASON: Final = re.compile(r" Reason=(.*?)(?: \[[^\s\[\]@]+@[^\s\[\]]+\]|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmNode:
    """A node as Slurm shows it: `states` such as IDLE, DRAIN, DOWN; `reason` is empty where there is none."""

    name: str
    states: frozenset[str]
    reason: str = ""
    address: str | None = None

    @property
    def drained_by_us(self) -> bool:
        return self.reason.startswith(MARK)

    @property
    def drained(self) -> bool:
        return not self.states.isdisjoint({"DRAIN", "DRAINED", "DRAINING"})

    @property
    def out_of_service(self) -> bool:
        """Whether somebody else has taken it out of service."""
        return not self.drained_by_us and (self.drained or bool(self.states & {"DOWN", "FAIL", "FAILING"}))


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmPlan(ManagerPlan):
    """`drain` is node name to the reason that it is to have, `resume` the names of nodes to give back."""

    drain: Mapping[str, str] = field(default_factory=dict)
    resume: tuple[str, ...] = ()


class SlurmManager:
    """Talks to slurmctld by `command` (scontrol); `limit` is in seconds, for each call."""

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        self._command = command
        self._timeout = timeout

    def plan(self, desired: DesiredState) -> SlurmPlan:
        output = run(
            [*self._command, "--all", "--oneliner", "show", "nodes"], timeout=self._timeout, max_output=_MAX_OUTPUT
        )
        if not output.complete:
            raise ManagerError(f"{self._command[0]} shows more than {_MAX_OUTPUT >> 20} MiB of nodes.")
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
    """Read `scontrol --oneliner show nodes`. Raises ManagerError for a line of a node that it cannot read."""
    nodes = []
    for line in text.splitlines():
        if not line.startswith("NodeName="):
            continue
        if not (found := _NODE.match(line)):
            raise ManagerError(f"scontrol shows a node in a way that is not understood: {line[:200]}")
        address, reason = _ADDRESS.search(found[0]), _REASON.search(found[3])
        nodes.append(
            SlurmNode(
                name=found[1],
                states=frozenset(state.rstrip("*~#!%$@^-") for state in found[2].split("+")),
                reason=reason[1] if reason else "",
                address=normalize_address(address[1]) if address else None,
            )
        )
    return nodes


def make_plan(blocked: Mapping[str, BlockedNode], current: Iterable[SlurmNode]) -> SlurmPlan:
    """Decide. An id means the nodes of this name, in any case, short or full, or with this address."""
    nodes = {node.name: node for node in current}
    matches = _matching_nodes(blocked, nodes.values())
    wanted = {name: _merged(blocks) for name, blocks in _blocks_by_node(matches, blocked).items()}
    reasons = {name: drain_reason(node) for name, node in sorted(wanted.items()) if not nodes[name].out_of_service}
    drain = {name: why for name, why in reasons.items() if not nodes[name].drained or nodes[name].reason != why}
    resume = sorted(name for name, node in nodes.items() if node.drained_by_us and node.drained and name not in wanted)
    steps = [
        *(
            PlanStep(action=action_for(wanted[name]), name=name, reason=_step_reason(name, wanted[name]))
            for name in drain
        ),
        *(PlanStep(action=StepAction.FREE, name=name, reason=f"Node {name} is blocked no more.") for name in resume),
    ]
    refused = {node_id: why for node_id, names in matches.items() if (why := _refusal(blocked[node_id], names, nodes))}
    return SlurmPlan(
        steps=tuple(steps), refused=refused, all_nodes=tuple(sorted(nodes)), drain=drain, resume=tuple(resume)
    )


def drain_reason(node: BlockedNode) -> str:
    """What the node's reason is to be; Slurm gives it back as it is."""
    cause = " ".join(node.cause.translate(_REPLACED).split())
    cause = cause if len(cause) <= 200 else cause[:200] + "…"
    words = ["evacuate"] if action_for(node) is StepAction.EVACUATE else []
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


def _merged(blocks: Sequence[BlockedNode]) -> BlockedNode:
    """Several ids may mean one node: as if it were one, merged."""
    return reduce(lambda a, b: merge(a, replace(b, id=a.id)), blocks[1:], blocks[0])


def _step_reason(name: str, node: BlockedNode) -> str:
    return f"Node {name} is blocked {format_end(node)} ({node.cause}): it gets no new jobs."


def _refusal(node: BlockedNode, names: Sequence[str], nodes: Mapping[str, SlurmNode]) -> str | None:
    if not names:
        return f"Slurm knows no node {node.id}."
    if unavailable := [nodes[name] for name in names if nodes[name].out_of_service]:
        first = unavailable[0]
        states = "+".join(sorted(first.states))
        return f"Node {first.name} is {states} by somebody else's hand ({first.reason or 'no reason'}): left as it is."
    if action_for(node) is StepAction.EVACUATE:
        return f"Node {names[0]} gets no new jobs, but Slurm lets those that run there finish."
    return None

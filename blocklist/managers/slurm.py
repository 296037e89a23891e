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
from blocklist.managers.plan import Do, ManagerError, Plan, Step, Wanted, action, until
from blocklist.model.host_matching import Matcher, as_address
from blocklist.model.node import BlockedNode, merge

MARK: Final = "blocklist: "
AT_ONCE: Final = 200
"""Nodes in one command."""
_LONGEST: Final = 64 * 1024 * 1024
_NODE: Final = re.compile(r"NodeName=(\S+) .*?\bState=(\S+)(.*)")
_ADDRESS: Final = re.compile(r" NodeAddr=(\S+)")
# Slurm puts [user@time] behind a reason, and takes quotes around it away.
_PLAIN: Final = str.maketrans({"[": "(", "]": ")", '"': "'"})
_REASON: Final = re.compile(r" Reason=(.*?)(?: \[[^\s\[\]@]+@[^\s\[\]]+\]|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmNode:
    """A node as Slurm shows it: `states` such as IDLE, DRAIN, DOWN; `reason` is empty where there is none."""

    name: str
    states: frozenset[str]
    reason: str = ""
    address: str | None = None

    @property
    def ours(self) -> bool:
        return self.reason.startswith(MARK)

    @property
    def drained(self) -> bool:
        return not self.states.isdisjoint({"DRAIN", "DRAINED", "DRAINING"})

    @property
    def held(self) -> bool:
        """Whether somebody else has taken it out of service."""
        return not self.ours and (self.drained or bool(self.states & {"DOWN", "FAIL", "FAILING"}))


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmPlan(Plan):
    """`drain` is node name to the reason that it is to have, `resume` the names of nodes to give back."""

    drain: Mapping[str, str] = field(default_factory=dict)
    resume: tuple[str, ...] = ()


class Slurm:
    """Talks to slurmctld by `command` (scontrol); `limit` is in seconds, for each call."""

    def __init__(self, command: Sequence[str], limit: float) -> None:
        self._command = command
        self._limit = limit

    def plan(self, wanted: Wanted) -> SlurmPlan:
        said = run([*self._command, "--all", "--oneliner", "show", "nodes"], timeout=self._limit, keep=_LONGEST)
        if not said.whole:
            raise ManagerError(f"{self._command[0]} shows more than {_LONGEST >> 20} MiB of nodes.")
        return make_plan(wanted.nodes, read_nodes(said.stdout))

    def apply(self, plan: SlurmPlan) -> Mapping[str, str]:
        by_reason: defaultdict[str, list[str]] = defaultdict(list)
        for name, reason in plan.drain.items():
            by_reason[reason].append(name)
        for reason, names in by_reason.items():
            self._update(names, "state=drain", f"reason={reason}")
        self._update(plan.resume, "state=resume")
        return {}

    def _update(self, names: Iterable[str], *what: str) -> None:
        rest = iter(names)
        while some := list(islice(rest, AT_ONCE)):
            run([*self._command, "update", f"nodename={','.join(some)}", *what], timeout=self._limit)


def read_nodes(text: str) -> list[SlurmNode]:
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
                address=as_address(address[1]) if address else None,
            )
        )
    return nodes


def make_plan(blocked: Mapping[str, BlockedNode], present: Iterable[SlurmNode]) -> SlurmPlan:
    """Decide. An id means the nodes of this name, in any case, short or full, or with this address."""
    nodes = {node.name: node for node in present}
    meant = _meant(blocked, nodes.values())
    wanted = {name: _joined(blocks) for name, blocks in _turned(meant, blocked).items()}
    reasons = {name: reason_of(node) for name, node in sorted(wanted.items()) if not nodes[name].held}
    drain = {name: why for name, why in reasons.items() if not nodes[name].drained or nodes[name].reason != why}
    resume = sorted(name for name, node in nodes.items() if node.ours and node.drained and name not in wanted)
    steps = [
        *(Step(do=action(wanted[name]), name=name, reason=_drained(name, wanted[name])) for name in drain),
        *(Step(do=Do.FREE, name=name, reason=f"Node {name} is blocked no more.") for name in resume),
    ]
    refused = {node_id: why for node_id, names in meant.items() if (why := _refusal(blocked[node_id], names, nodes))}
    return SlurmPlan(
        steps=tuple(steps), refused=refused, all_nodes=tuple(sorted(nodes)), drain=drain, resume=tuple(resume)
    )


def reason_of(node: BlockedNode) -> str:
    """What the node's reason is to be; Slurm gives it back as it is."""
    cause = " ".join(node.cause.translate(_PLAIN).split())
    cause = cause if len(cause) <= 200 else cause[:200] + "…"
    said = ["evacuate"] if action(node) is Do.EVACUATE else []
    return MARK + ", ".join([*said, until(node), *([cause] if cause else [])])


def _meant(blocked: Mapping[str, BlockedNode], nodes: Iterable[SlurmNode]) -> dict[str, list[str]]:
    known = list(nodes)
    addresses = {node.name.lower(): frozenset({node.address}) for node in known if node.address is not None}
    matcher = Matcher((node.name for node in known), addresses)
    return {node_id: sorted(matcher.hosts_of(node_id)) for node_id in sorted(blocked)}


def _turned(meant: Mapping[str, Iterable[str]], blocked: Mapping[str, BlockedNode]) -> dict[str, list[BlockedNode]]:
    turned: defaultdict[str, list[BlockedNode]] = defaultdict(list)
    for node_id, names in meant.items():
        for name in names:
            turned[name].append(blocked[node_id])
    return turned


def _joined(blocks: Sequence[BlockedNode]) -> BlockedNode:
    """Several ids may mean one node: as if it were one, merged."""
    return reduce(lambda a, b: merge(a, replace(b, id=a.id)), blocks[1:], blocks[0])


def _drained(name: str, node: BlockedNode) -> str:
    return f"Node {name} is blocked {until(node)} ({node.cause}): it gets no new jobs."


def _refusal(node: BlockedNode, names: Sequence[str], nodes: Mapping[str, SlurmNode]) -> str | None:
    if not names:
        return f"Slurm knows no node {node.id}."
    if held := [nodes[name] for name in names if nodes[name].held]:
        first = held[0]
        states = "+".join(sorted(first.states))
        return f"Node {first.name} is {states} by somebody else's hand ({first.reason or 'no reason'}): left as it is."
    if action(node) is Do.EVACUATE:
        return f"Node {names[0]} gets no new jobs, but Slurm lets those that run there finish."
    return None

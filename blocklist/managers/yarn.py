"""YARN: the ResourceManager's exclude file, and `yarn rmadmin -refreshNodes` to have it read.

A node in it is decommissioned gracefully: it gets no new containers, and those that run may go on for its timeout.
MARK_BLOCKED is a timeout without end, an evacuation one of its own; only an XML file can say both. The timeouts are
those that YARN's documentation and its HostsFileReader, NodesListManager and RMAdminCLI give; the tests check our side
of it, files and commands, with a script in the place of `yarn`: no Hadoop runs there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from blocklist.managers import exclude_file, exclude_xml, files
from blocklist.managers.command import run
from blocklist.managers.exclude_file import Entries
from blocklist.managers.plan import DesiredState, ManagerPlan, PlanStep, StepAction, action_for, format_end
from blocklist.model.node import BlockedNode

NO_TIMEOUT = -1
_MAX_TIMEOUT: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ExcludePlan(ManagerPlan):
    """`entries` are to be our part of the file."""

    entries: Entries = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecommissionTimeouts:
    """Seconds that containers on a node may go on: on an evacuated one, and on one for which the file says nothing.

    `per_node` says whether the file can give each node its own. `evacuate` is None for as long as the block lasts.
    """

    per_node: bool
    evacuate: int | None = 0
    default: int = NO_TIMEOUT


class YarnManager:
    """`command` has the file read, within `limit` seconds; until it went well once it is run whatever the file says."""

    def __init__(
        self, path: Path, *, xml: bool, timeouts: DecommissionTimeouts, command: Sequence[str], timeout: float
    ) -> None:
        self._path = path
        self._timeouts = timeouts
        self._format = exclude_xml if xml else exclude_file
        self._command = command
        self._timeout = timeout
        # The file may be of a run before that ended between the writing and the command.
        self._refreshed = False

    def plan(self, desired: DesiredState) -> ExcludePlan:
        sections = self._format.parse(files.read(self._path).data)
        return make_plan(desired.nodes, sections.entries, self._timeouts)

    def apply(self, plan: ExcludePlan) -> Mapping[str, str]:
        before = files.read(self._path)
        data = self._format.render(self._format.parse(before.data), plan.entries)
        if plan.steps and data != before.data:
            self._refreshed = False
            files.replace(self._path, data, before)
        if not self._refreshed:
            run(self._command, timeout=self._timeout)
            self._refreshed = True
        return {}


def make_plan(nodes: Mapping[str, BlockedNode], current: Entries, timeouts: DecommissionTimeouts) -> ExcludePlan:
    """Decide; `present` are our entries in the file as it is."""
    entries = {node_id: timeout_of(node, timeouts) for node_id, node in nodes.items()}
    changed = [node_id for node_id in sorted(entries) if current.get(node_id, "none") != entries[node_id]]
    freed = sorted(current.keys() - entries.keys())
    steps = [
        *(
            PlanStep(action=action_for(nodes[node_id]), name=node_id, reason=_step_reason(nodes[node_id], timeouts))
            for node_id in changed
        ),
        *(PlanStep(action=StepAction.FREE, name=name, reason=f"Node {name} is blocked no more.") for name in freed),
    ]
    return ExcludePlan(steps=tuple(steps), refused=_refused(nodes, timeouts), entries=entries)


def timeout_of(node: BlockedNode, timeouts: DecommissionTimeouts) -> int | None:
    """What the file says of the node, in seconds; None where it cannot."""
    if not timeouts.per_node:
        return None
    if action_for(node) is not StepAction.EVACUATE:
        return NO_TIMEOUT
    if timeouts.evacuate is not None:
        return timeouts.evacuate
    # YARN counts from when it began to decommission. So it is the block's whole length: a number that shrinks with
    # time would be another file at each look, and cut the time short.
    seconds = -((node.start - node.end) // 1000)
    return seconds if seconds <= _MAX_TIMEOUT else NO_TIMEOUT


def refresh_command(command: Sequence[str], default_timeout: int) -> list[str]:
    """The command with what makes it graceful; rmadmin's own default is a timeout without end."""
    return [*command, "-g", *([] if default_timeout == NO_TIMEOUT else [str(default_timeout)]), "-server"]


def _step_reason(node: BlockedNode, timeouts: DecommissionTimeouts) -> str:
    seconds = timeout_of(node, timeouts)
    seconds = timeouts.default if seconds is None else seconds
    rest = "containers there may end" if seconds == NO_TIMEOUT else f"containers there are stopped after {seconds} s"
    return f"Node {node.id} is blocked {format_end(node)} ({node.cause}): no new containers, {rest}."


def _refused(nodes: Mapping[str, BlockedNode], timeouts: DecommissionTimeouts) -> dict[str, str]:
    if timeouts.per_node or timeouts.default != NO_TIMEOUT:
        return {}
    why = "gets no new containers, but those that run there go on: a plain exclude file gives no timeouts."
    return {name: f"Node {name} {why}" for name, node in nodes.items() if action_for(node) is StepAction.EVACUATE}

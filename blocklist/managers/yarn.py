"""YARN: writes the ResourceManager's exclude file, then runs `yarn rmadmin -refreshNodes`.

YARN decommissions a node in the file gracefully: it gets no new containers, and running containers are stopped after a
timeout. MARK_BLOCKED means no timeout, an evacuation a timeout of its own; only an XML file can express both. The rules
are those of YARN's documentation and of HostsFileReader, NodesListManager and RMAdminCLI. The tests check the file and
the command line with a script in place of `yarn`, not with Hadoop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from blocklist.managers import atomic_file, exclude_file, exclude_xml
from blocklist.managers.command import run
from blocklist.managers.exclude_file import Entries
from blocklist.managers.plan import DesiredState, ManagerPlan, block_step, evacuates, format_end, free_steps
from blocklist.managers.yarn_nodes import YarnNodes
from blocklist.model.node import BlockedNode

NO_TIMEOUT: Final = -1
_MAX_TIMEOUT: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ExcludePlan(ManagerPlan):
    """`entries` are the manager's entries as they will be in the file."""

    entries: Entries = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecommissionTimeouts:
    """Seconds after which running containers are stopped.

    `per_node`: the file has a timeout for each node. `evacuate` is the timeout of an evacuated node, None for the
    length of its block. `default` is the timeout of nodes for which the file has none.
    """

    per_node: bool
    evacuate: int | None = 0
    default: int = NO_TIMEOUT


class YarnManager:
    """`command` makes YARN read the file at `path`; `timeout` is in seconds, for each run of the command.

    `nodes` reads the nodes that are reported; None if they are not.
    """

    def __init__(
        self,
        path: Path,
        *,
        xml: bool,
        timeouts: DecommissionTimeouts,
        command: Sequence[str],
        timeout: float,
        nodes: YarnNodes | None = None,
    ) -> None:
        self._path = path
        self._timeouts = timeouts
        self._format = exclude_xml if xml else exclude_file
        self._command = command
        self._timeout = timeout
        self._nodes = nodes
        # A previous process may have stopped after it wrote the file and before it ran the command.
        self._refreshed = False

    def plan(self, desired: DesiredState) -> ExcludePlan:
        sections = self._format.parse(atomic_file.read(self._path).data)
        plan = make_plan(desired.nodes, sections.entries, self._timeouts)
        return replace(
            plan,
            all_nodes=None if self._nodes is None else self._nodes.read(),
            unschedulable=dict.fromkeys(sections.others, "excluded, not by this manager"),
        )

    def apply(self, plan: ExcludePlan) -> Mapping[str, str]:
        before = atomic_file.read(self._path)
        data = self._format.render(self._format.parse(before.data), plan.entries)
        if plan.steps and data != before.data:
            self._refreshed = False
            atomic_file.replace(self._path, data, before)
        if not self._refreshed:
            run(self._command, timeout=self._timeout)
            self._refreshed = True
        return {}


def make_plan(nodes: Mapping[str, BlockedNode], current: Entries, timeouts: DecommissionTimeouts) -> ExcludePlan:
    """The steps from `current`, the manager's entries in the file, to `nodes`."""
    entries = {node_id: timeout_of(node, timeouts) for node_id, node in nodes.items()}
    changed = [node_id for node_id in sorted(entries) if current.get(node_id, "none") != entries[node_id]]
    freed = sorted(current.keys() - entries.keys())
    steps = [
        *(block_step(node_id, nodes[node_id], _step_reason(nodes[node_id], timeouts)) for node_id in changed),
        *free_steps(freed),
    ]
    return ExcludePlan(steps=tuple(steps), refused=_refused(nodes, timeouts), entries=entries)


def timeout_of(node: BlockedNode, timeouts: DecommissionTimeouts) -> int | None:
    """The node's timeout in the file, in seconds; None if the file has none."""
    if not timeouts.per_node:
        return None
    if not evacuates(node):
        return NO_TIMEOUT
    if timeouts.evacuate is not None:
        return timeouts.evacuate
    # YARN counts from the start of decommissioning, so the timeout is the whole length of the block. The remaining
    # time would change the file at each reconciliation and shorten the timeout.
    seconds = -((node.start - node.end) // 1000)
    return seconds if seconds <= _MAX_TIMEOUT else NO_TIMEOUT


def refresh_command(command: Sequence[str], default_timeout: int) -> list[str]:
    """The command with the options for graceful decommissioning; without seconds rmadmin has no timeout."""
    return [*command, "-g", *([] if default_timeout == NO_TIMEOUT else [str(default_timeout)]), "-server"]


def _step_reason(node: BlockedNode, timeouts: DecommissionTimeouts) -> str:
    seconds = timeout_of(node, timeouts)
    seconds = timeouts.default if seconds is None else seconds
    rest = (
        "running containers may finish"
        if seconds == NO_TIMEOUT
        else f"running containers are stopped after {seconds} s"
    )
    return f"Node {node.id} is blocked {format_end(node)} ({node.cause}): no new containers, {rest}."


def _refused(nodes: Mapping[str, BlockedNode], timeouts: DecommissionTimeouts) -> dict[str, str]:
    if timeouts.per_node or timeouts.default != NO_TIMEOUT:
        return {}
    reason = "gets no new containers, but is not evacuated: a plain exclude file has no timeouts (see --graceful)."
    return {name: f"Node {name} {reason}" for name, node in nodes.items() if evacuates(node)}

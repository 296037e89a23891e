"""YARN by decommissioning: writes the ResourceManager's exclude file, then runs `yarn rmadmin -refreshNodes`.

For clusters without node labels. YARN decommissions a node in the file: it gets no new containers, and running
containers are stopped after a timeout. MARK_BLOCKED means no timeout, an evacuation a timeout of its own; only an XML
file can express both. A node that is decommissioned completely, at once if it is idle or evacuated, ends its
NodeManager; taking it off the file does not start it again. After a restart or a failover the ResourceManager refuses
nodes in its file, and their containers end. The rules are those of YARN's documentation and of HostsFileReader,
NodesListManager and RMAdminCLI.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from blocklist.managers import atomic_file
from blocklist.managers.command import run
from blocklist.managers.plan import (
    DesiredState,
    ManagerError,
    ManagerPlan,
    block_step,
    evacuates,
    format_end,
    free_steps,
)
from blocklist.managers.yarn import exclude_file, exclude_xml
from blocklist.managers.yarn.address_names import AddressNames
from blocklist.managers.yarn.cluster_state import RUNNING, YarnNode, states_out_of_service
from blocklist.managers.yarn.exclude_file import Entries
from blocklist.managers.yarn.excluded_nodes import Excludable, choose
from blocklist.managers.yarn.interruptible import Stop, StoppedError
from blocklist.managers.yarn.inventory import describe
from blocklist.managers.yarn.mark import MarkLabels
from blocklist.managers.yarn.node_names import Blocks, resolve, withheld_message
from blocklist.managers.yarn.resource_manager import ResourceManager
from blocklist.model.node import BlockedNode

log = logging.getLogger("blocklist.managers")

NO_TIMEOUT: Final = -1
_MAX_TIMEOUT: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ExcludePlan(ManagerPlan):
    """`entries` are the manager's entries as they will be in the file.

    `evacuated` maps the hosts that are to have no containers to the ids that mean them. `overlooked` are hosts in the
    file that are RUNNING nevertheless: the ResourceManager has not read it. `withheld` are hosts that stay in the file
    although no known name on the list means them: `unresolved` addresses may.
    """

    entries: Entries = field(default_factory=dict)
    evacuated: Mapping[str, Sequence[str]] = field(default_factory=dict)
    overlooked: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    unresolved: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DecommissionTimeouts:
    """Seconds after which running containers are stopped.

    `per_node`: the file has a timeout for each node. `evacuate` is the timeout of an evacuated node, None for the
    length of its block. `default` is the timeout of nodes for which the file has none.
    """

    per_node: bool
    evacuate: int | None = 0
    default: int = NO_TIMEOUT


class ExcludeManager:
    """`command` makes YARN read the file at `path`; `timeout` is in seconds, for each run of the command.

    Without `resource_manager` ids are written as they are: whether YARN knows them, and obeys, is not checked.
    `accept_exits` blocks nodes although their NodeManagers exit. At least `min_nodes` nodes stay in service.
    """

    def __init__(
        self,
        path: Path,
        *,
        xml: bool,
        timeouts: DecommissionTimeouts,
        command: Sequence[str],
        timeout: float,
        names: AddressNames,
        stop: Stop,
        resource_manager: ResourceManager | None = None,
        accept_exits: bool = False,
        min_nodes: int = 0,
    ) -> None:
        self._path = path
        self._timeouts = timeouts
        self._format = exclude_xml if xml else exclude_file
        self._command = command
        self._timeout = timeout
        self._names = names
        self._stop = stop
        self._resource_manager = resource_manager
        self._accept_exits = accept_exits
        self._min_nodes = min_nodes
        # A previous process may have stopped after it wrote the file and before it ran the command.
        self._refreshed = False
        if resource_manager is None:
            log.warning(
                "Without --resource-manager it is not checked whether YARN knows the blocked nodes, nor whether their"
                " NodeManagers come back."
            )

    def stop(self) -> None:
        """Wait no longer for the ResourceManager or the command. Call it from any thread or signal handler."""
        self._stop.set()

    def plan(self, desired: DesiredState) -> ExcludePlan:
        sections = self._format.parse(atomic_file.read(self._path).data)
        others = dict.fromkeys(sections.others, "excluded, not by this manager")
        if self._resource_manager is None:
            return replace(make_plan(desired.nodes, sections.entries, self._timeouts), unschedulable=others)
        self._resource_manager.find_active(needs_labels=False)
        nodes = self._resource_manager.read_nodes()
        self._names.begin()
        # A host in the file stays there while it is on the list, whether YARN names it at the moment or not.
        blocks = resolve(desired.nodes, {node.host for node in nodes} | sections.entries.keys(), self._names)
        return replace(
            self._checked_plan(blocks, sections.entries, nodes),
            all_nodes=describe(nodes, MarkLabels()),
            unschedulable={**states_out_of_service(nodes), **others},
        )

    def _checked_plan(self, blocks: Blocks, current: Entries, nodes: Sequence[YarnNode]) -> ExcludePlan:
        rules = Excludable(accept_exits=self._accept_exits, min_nodes=self._min_nodes)
        chosen, refused = choose(blocks, current, nodes, rules)
        withheld = {host: current[host] for host in current.keys() - chosen.keys() if blocks.unresolved}
        plan = make_plan(chosen, current, self._timeouts, withheld)
        limited = {node_id: reason for host, reason in plan.refused.items() for node_id in blocks.ids[host]}
        running = {node.host for node in nodes if node.state == RUNNING}
        busy = {node.host: (node.host, node.containers) for node in nodes if node.host in chosen and node.containers}
        return replace(
            plan,
            refused={**limited, **blocks.unknown, **refused},
            evacuated={host: blocks.ids[host] for host, block in chosen.items() if evacuates(block)},
            overlooked=tuple(sorted(running & current.keys() & chosen.keys())),
            containers=busy,
            withheld=tuple(sorted(withheld)),
            unresolved=blocks.unresolved,
        )

    def apply(self, plan: ExcludePlan) -> Mapping[str, str]:
        before = atomic_file.read(self._path)
        data = self._format.render(self._format.parse(before.data), plan.entries)
        if plan.overlooked:
            self._refreshed = False
        if plan.steps and data != before.data:
            self._refreshed = False
            atomic_file.replace(self._path, data, before)
        if not self._refreshed:
            self._refresh()
        refused = {} if self._resource_manager is None else self._read_back(self._resource_manager, plan)
        if plan.withheld:
            raise ManagerError(withheld_message(plan.withheld, plan.unresolved), refused={**plan.refused, **refused})
        return refused

    def _refresh(self) -> None:
        """Make YARN read the file. A stop ends the command: the next start runs it again."""
        try:
            run(self._command, timeout=self._timeout, is_stopped=lambda: self._stop.is_set)
        except ManagerError:
            if not self._stop.is_set:
                raise
            log.warning("Stopped before YARN has read the exclude file; the next start of the manager repeats it.")
            raise StoppedError("The manager is stopping.") from None
        self._refreshed = True

    def _read_back(self, resource_manager: ResourceManager, plan: ExcludePlan) -> Mapping[str, str]:
        """The ids of evacuated nodes that still have containers. Raises ManagerError if YARN has not obeyed."""
        nodes = resource_manager.read_nodes()
        if running := sorted(node.host for node in nodes if node.state == RUNNING and node.host in plan.entries):
            self._refreshed = False
            raise ManagerError(
                f"Node {running[0]} is RUNNING although it is in the exclude file: {resource_manager.url} reads another"
                " file, or has not read it yet."
            )
        left = {node.host: node.containers for node in nodes if node.containers and node.host in plan.evacuated}
        return {
            node_id: f"{number} containers still run on node {host}; they are stopped after their timeout."
            for host, number in left.items()
            for node_id in plan.evacuated[host]
        }


def make_plan(
    nodes: Mapping[str, BlockedNode],
    current: Entries,
    timeouts: DecommissionTimeouts,
    withheld: Entries | None = None,
) -> ExcludePlan:
    """The steps from `current`, the manager's entries in the file, to `nodes`; `withheld` entries stay."""
    entries = {**(withheld or {}), **{node_id: timeout_of(node, timeouts) for node_id, node in nodes.items()}}
    changed = [node_id for node_id in sorted(nodes) if current.get(node_id, "none") != entries[node_id]]
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

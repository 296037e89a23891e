"""Report: what a listener reports about itself in a heartbeat or in its response to a push."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from blocklist.model.evidence import Finding
from blocklist.model.reported_node import ReportedNode, node_ids


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The state of a listener. A field replaces its previous value; None leaves it unchanged.

    `task_managers` maps TaskManager id to node id, `running_tasks` TaskManager id to the number of its tasks, `refused`
    node id to the reason why the block is not carried out, `evidence` node id to finding; `nodes` are all nodes that
    the listener may use: ids, or what it knows about them. A manager reports in `schedulable` the blocked nodes that
    still get work, in `unschedulable` the nodes that get none for another reason than a block: node id to its state. Do
    not change them afterwards.
    """

    task_managers: Mapping[str, str] | None = None
    running_tasks: Mapping[str, int] | None = None
    refused: Mapping[str, str] | None = None
    evidence: Mapping[str, Finding] | None = None
    nodes: Sequence[str | ReportedNode] | None = None
    schedulable: Mapping[str, str] | None = None
    unschedulable: Mapping[str, str] | None = None

    def given(self) -> dict[str, Any]:
        """The fields that are not None, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def changed_from(self, earlier: Report) -> set[str]:
        """Names of the given fields that differ from an earlier report."""
        return {name for name, value in self.given().items() if value != getattr(earlier, name)}

    def over(self, earlier: Report) -> Report:
        """All that is reported once this report follows an earlier one."""
        return replace(earlier, **self.given())

    def only(self, names: Collection[str]) -> Report:
        """The same with these fields alone."""
        return Report(**{name: value for name, value in self.given().items() if name in names})

    def named_nodes(self) -> set[str]:
        """All nodes that the listener says it may use or has TaskManagers on."""
        return {*self.node_ids(), *(self.task_managers or {}).values()}

    def node_ids(self) -> Sequence[str]:
        """The ids of all nodes that the listener says it may use."""
        return node_ids(self.nodes or ())


EMPTY_REPORT: Final = Report()

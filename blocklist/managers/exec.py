"""Any command: it gets the plan as JSON on its standard input, and says by exit code 0 that it has carried it out.

What has been carried out is kept in a file, so that a restart knows what is to be freed. A command that fails gets the
whole plan again: it should be one that may be run twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from blocklist.managers import files
from blocklist.managers.command import CommandOutput, run
from blocklist.managers.plan import (
    DesiredState,
    ManagerError,
    ManagerPlan,
    PlanStep,
    StepAction,
    action_for,
    format_end,
)
from blocklist.model.errors import InvalidError
from blocklist.model.node import BlockedNode
from blocklist.wire.nodes import Json, NodeBody, dump_json, node_fields, parse_json

log = logging.getLogger("blocklist.managers")

MAX_LOG_LINES: Final = 50
"""Lines of output that go into the log, at most 500 characters of each."""

Nodes = Mapping[str, BlockedNode]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecState:
    """What the command has carried out: the nodes as it was told them, and what it refused."""

    nodes: Nodes = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecPlan(ManagerPlan):
    """`wanted` is the list, `nodes` each step's node: as it is to be, or for a free one as it last was."""

    desired: DesiredState
    nodes: Nodes


class ExecManager:
    """`state` is the file of what has been carried out, `limit` the seconds that the command may take."""

    def __init__(self, command: Sequence[str], state_file: Path, timeout: float) -> None:
        self._command = command
        self._state_file = state_file
        self._timeout = timeout

    def plan(self, desired: DesiredState) -> ExecPlan:
        return make_plan(desired, parse_state(files.read(self._state_file).data, self._state_file))

    def apply(self, plan: ExecPlan) -> Mapping[str, str]:
        if not plan.steps:
            return {}
        before = files.read(self._state_file)
        output = run(self._command, timeout=self._timeout, stdin=dump_json(plan_body(plan)))
        refused = _parse_refused(output, plan)
        _log_output(output)
        done = ExecState(nodes=plan.desired.nodes, refused={**plan.refused, **refused})
        files.replace(self._state_file, dump_json(state_body(done)), before)
        return refused


def make_plan(desired: DesiredState, state: ExecState) -> ExecPlan:
    """Decide: whatever is not as it was told last, is told."""
    changed = sorted(node_id for node_id, node in desired.nodes.items() if state.nodes.get(node_id) != node)
    freed = sorted(state.nodes.keys() - desired.nodes.keys())
    steps = [
        *(
            PlanStep(action=action_for(desired.nodes[name]), name=name, reason=_step_reason(desired.nodes[name]))
            for name in changed
        ),
        *(PlanStep(action=StepAction.FREE, name=name, reason=f"Node {name} is blocked no more.") for name in freed),
    ]
    still_refused = {name: why for name, why in state.refused.items() if name in desired.nodes and name not in changed}
    nodes = {step.name: desired.nodes.get(step.name) or state.nodes[step.name] for step in steps}
    return ExecPlan(steps=tuple(steps), refused=still_refused, desired=desired, nodes=nodes)


def plan_body(plan: ExecPlan) -> Json:
    """What the command reads: the revision, the steps with their nodes, and all that is blocked."""
    steps = [
        {"do": step.action.value, "id": step.name, "reason": step.reason, "node": _body(plan.nodes[step.name])}
        for step in plan.steps
    ]
    blocked = plan.desired.nodes
    return {
        "revision": plan.desired.revision,
        "steps": steps,
        "blocked": [_body(blocked[name]) for name in sorted(blocked)],
    }


def state_body(state: ExecState) -> Json:
    """What the file holds."""
    return {"blocked": [_body(state.nodes[name]) for name in sorted(state.nodes)], "refused": dict(state.refused)}


def parse_state(data: bytes, path: Path) -> ExecState:
    """Read the file; there is none before the first run. Raises ManagerError for one that is not ours."""
    if not data:
        return ExecState()
    try:
        body = parse_json(data)
        nodes = [NodeBody.parse(node).value() for node in body["blocked"]]
        return ExecState(nodes={node.id: node for node in nodes}, refused=_sentences(body["refused"]))
    except (InvalidError, KeyError, TypeError, AttributeError):
        raise ManagerError(
            f"{path} is not what an exec manager writes. Without it nodes that were freed meanwhile are not told to the"
            " command: mend it, or remove it."
        ) from None


def _body(node: BlockedNode) -> Json:
    return {"id": node.id, **node_fields(node)}


def _step_reason(node: BlockedNode) -> str:
    return f"Node {node.id} is blocked {format_end(node)} ({node.cause})."


def _parse_refused(output: CommandOutput, plan: ExecPlan) -> dict[str, str]:
    """What the command refused: it may write `{"refused": {id: sentence}}`, and nothing else, to its stdout."""
    try:
        body = json.loads(output.stdout)
        refused = _sentences(body["refused"])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}
    return {node_id: sentence for node_id, sentence in refused.items() if node_id in plan.desired.nodes}


def _sentences(value: Mapping[str, object]) -> dict[str, str]:
    return {name: str(sentence) for name, sentence in value.items()}


def _log_output(output: CommandOutput) -> None:
    lines = [line for line in (output.stdout + "\n" + output.stderr).splitlines() if line.strip()]
    for line in lines[:MAX_LOG_LINES]:
        log.info("| %s", line[:500])
    if len(lines) > MAX_LOG_LINES or not output.complete:
        log.info("| … and more")

"""Any command: it receives the plan as JSON on standard input and reports success with exit code 0.

A state file stores what the command has carried out, so that nodes are freed after a restart too. A command that fails
receives the whole plan again: it must be idempotent.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from blocklist.managers import atomic_file
from blocklist.managers.command import CommandOutput, run
from blocklist.managers.plan import DesiredState, ManagerError, ManagerPlan, block_step, format_end, free_steps
from blocklist.model.errors import InvalidError
from blocklist.model.node import BlockedNode
from blocklist.wire.json import Json, dump_json, parse_json
from blocklist.wire.nodes import NodeBody, node_fields

log = logging.getLogger("blocklist.managers")

MAX_LOG_LINES: Final = 50
"""Lines of a command's output that are logged, each cut at 500 characters."""

Nodes = Mapping[str, BlockedNode]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecState:
    """What the command has carried out: the blocked nodes it last received, and the ids it refused, with reasons."""

    nodes: Nodes = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecPlan(ManagerPlan):
    """`nodes` has the node of each step; for a node that is no longer blocked, its last block."""

    desired: DesiredState
    nodes: Nodes


class ExecManager:
    """`timeout` is in seconds, for each run of the command."""

    def __init__(self, command: Sequence[str], state_file: Path, timeout: float) -> None:
        self._command = command
        self._state_file = state_file
        self._timeout = timeout

    def plan(self, desired: DesiredState) -> ExecPlan:
        return make_plan(desired, parse_state(atomic_file.read(self._state_file).data, self._state_file))

    def apply(self, plan: ExecPlan) -> Mapping[str, str]:
        if not plan.steps:
            return {}
        before = atomic_file.read(self._state_file)
        output = run(self._command, timeout=self._timeout, stdin=dump_json(plan_body(plan)))
        refused = _parse_refused(output, plan)
        _log_output(output)
        done = ExecState(nodes=plan.desired.nodes, refused={**plan.refused, **refused})
        atomic_file.replace(self._state_file, dump_json(state_body(done)), before)
        return refused


def make_plan(desired: DesiredState, state: ExecState) -> ExecPlan:
    """The steps from `state`, which the command carried out last, to `desired`."""
    changed = sorted(node_id for node_id, node in desired.nodes.items() if state.nodes.get(node_id) != node)
    freed = sorted(state.nodes.keys() - desired.nodes.keys())
    steps = [
        *(block_step(name, desired.nodes[name], _step_reason(desired.nodes[name])) for name in changed),
        *free_steps(freed),
    ]
    still_refused = {name: why for name, why in state.refused.items() if name in desired.nodes and name not in changed}
    nodes = {step.name: desired.nodes.get(step.name) or state.nodes[step.name] for step in steps}
    return ExecPlan(steps=tuple(steps), refused=still_refused, desired=desired, nodes=nodes)


def plan_body(plan: ExecPlan) -> Json:
    """The JSON that the command reads: revision, steps and all blocked nodes."""
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
    return {"blocked": [_body(state.nodes[name]) for name in sorted(state.nodes)], "refused": dict(state.refused)}


def parse_state(data: bytes, path: Path) -> ExecState:
    """Parse the state file, empty before the first run. Raises ManagerError if it is malformed."""
    if not data:
        return ExecState()
    try:
        body = parse_json(data)
        nodes = [NodeBody.parse(node).value() for node in body["blocked"]]
        return ExecState(nodes={node.id: node for node in nodes}, refused=_sentences(body["refused"]))
    except (InvalidError, KeyError, TypeError, AttributeError):
        raise ManagerError(
            f"{path} is not a state file of the exec manager. Repair or remove it; after removal the command does not"
            " learn which nodes were unblocked in the meantime."
        ) from None


def _body(node: BlockedNode) -> Json:
    return {"id": node.id, **node_fields(node)}


def _step_reason(node: BlockedNode) -> str:
    return f"Node {node.id} is blocked {format_end(node)} ({node.cause})."


def _parse_refused(output: CommandOutput, plan: ExecPlan) -> dict[str, str]:
    """The ids that the command refused: `{"refused": {id: reason}}` if that is its whole stdout, else none."""
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

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
from blocklist.managers.command import Output, run
from blocklist.managers.plan import Do, ManagerError, Plan, Step, Wanted, action, until
from blocklist.model.errors import InvalidError
from blocklist.model.node import BlockedNode
from blocklist.wire.nodes import Json, NodeBody, dump_json, node_fields, parse_json

log = logging.getLogger("blocklist.managers")

LINES: Final = 50
"""Lines of output that go into the log, at most 500 characters of each."""

Nodes = Mapping[str, BlockedNode]


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What the command has carried out: the nodes as it was told them, and what it refused."""

    nodes: Nodes = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecPlan(Plan):
    """`wanted` is the list, `nodes` each step's node: as it is to be, or for a free one as it last was."""

    wanted: Wanted
    nodes: Nodes


class Exec:
    """`state` is the file of what has been carried out, `limit` the seconds that the command may take."""

    def __init__(self, command: Sequence[str], state: Path, limit: float) -> None:
        self._command = command
        self._state = state
        self._limit = limit

    def plan(self, wanted: Wanted) -> ExecPlan:
        return make_plan(wanted, read_done(files.read(self._state).data, self._state))

    def apply(self, plan: ExecPlan) -> Mapping[str, str]:
        if not plan.steps:
            return {}
        before = files.read(self._state)
        output = run(self._command, timeout=self._limit, stdin=dump_json(plan_body(plan)))
        refused = _refused(output, plan)
        _log(output)
        done = Done(nodes=plan.wanted.nodes, refused={**plan.refused, **refused})
        files.replace(self._state, dump_json(done_body(done)), before)
        return refused


def make_plan(wanted: Wanted, done: Done) -> ExecPlan:
    """Decide: whatever is not as it was told last, is told."""
    told = sorted(node_id for node_id, node in wanted.nodes.items() if done.nodes.get(node_id) != node)
    freed = sorted(done.nodes.keys() - wanted.nodes.keys())
    steps = [
        *(Step(do=action(wanted.nodes[name]), name=name, reason=_reason(wanted.nodes[name])) for name in told),
        *(Step(do=Do.FREE, name=name, reason=f"Node {name} is blocked no more.") for name in freed),
    ]
    still = {name: why for name, why in done.refused.items() if name in wanted.nodes and name not in told}
    nodes = {step.name: wanted.nodes.get(step.name) or done.nodes[step.name] for step in steps}
    return ExecPlan(steps=tuple(steps), refused=still, wanted=wanted, nodes=nodes)


def plan_body(plan: ExecPlan) -> Json:
    """What the command reads: the revision, the steps with their nodes, and all that is blocked."""
    steps = [
        {"do": step.do.value, "id": step.name, "reason": step.reason, "node": _body(plan.nodes[step.name])}
        for step in plan.steps
    ]
    wanted = plan.wanted.nodes
    return {
        "revision": plan.wanted.revision,
        "steps": steps,
        "blocked": [_body(wanted[name]) for name in sorted(wanted)],
    }


def done_body(done: Done) -> Json:
    """What the file holds."""
    return {"blocked": [_body(done.nodes[name]) for name in sorted(done.nodes)], "refused": dict(done.refused)}


def read_done(data: bytes, path: Path) -> Done:
    """Read the file; there is none before the first run. Raises ManagerError for one that is not ours."""
    if not data:
        return Done()
    try:
        body = parse_json(data)
        nodes = [NodeBody.parse(node).value() for node in body["blocked"]]
        return Done(nodes={node.id: node for node in nodes}, refused=_sentences(body["refused"]))
    except (InvalidError, KeyError, TypeError, AttributeError):
        raise ManagerError(
            f"{path} is not what an exec manager writes. Without it nodes that were freed meanwhile are not told to the"
            " command: mend it, or remove it."
        ) from None


def _body(node: BlockedNode) -> Json:
    return {"id": node.id, **node_fields(node)}


def _reason(node: BlockedNode) -> str:
    return f"Node {node.id} is blocked {until(node)} ({node.cause})."


def _refused(output: Output, plan: ExecPlan) -> dict[str, str]:
    """What the command refused: it may write `{"refused": {id: sentence}}`, and nothing else, to its stdout."""
    try:
        body = json.loads(output.stdout)
        refused = _sentences(body["refused"])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}
    return {node_id: sentence for node_id, sentence in refused.items() if node_id in plan.wanted.nodes}


def _sentences(value: Mapping[str, object]) -> dict[str, str]:
    return {name: str(sentence) for name, sentence in value.items()}


def _log(output: Output) -> None:
    lines = [line for line in (output.stdout + "\n" + output.stderr).splitlines() if line.strip()]
    for line in lines[:LINES]:
        log.info("| %s", line[:500])
    if len(lines) > LINES or not output.whole:
        log.info("| … and more")

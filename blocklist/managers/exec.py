"""Any command: it receives the plan as JSON on standard input and reports success with exit code 0.

A state file stores what the command has carried out, so that nodes are freed after a restart too. A command that fails
receives the whole plan again: it must be idempotent.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from blocklist.managers.command import DEFAULT_MAX_OUTPUT, CommandOutput, run
from blocklist.managers.plan import (
    NO_OTHER_NAMES,
    DesiredState,
    ManagerError,
    ManagerPlan,
    NotInForce,
    OtherNames,
    block_step,
    format_end,
    free_steps,
)
from blocklist.model.errors import InvalidError
from blocklist.model.names import normalize_name
from blocklist.model.node import BlockedNode
from blocklist.wire.body import Json, dump_json, parse_json
from blocklist.wire.nodes import NodeBody, node_fields

log = logging.getLogger("blocklist.managers")

MAX_LOG_LINES: Final = 50
"""Lines of a command's output that are logged, each cut at 500 characters."""

_SPEAKS: Final = re.compile(r'\{\s*("(refused|pending|notHere)|$)')
"""How output begins that is not only for the log."""

Nodes = Mapping[str, BlockedNode]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecState:
    """What the command has carried out: the blocked nodes it last received, and what it said is not in force."""

    nodes: Nodes = field(default_factory=dict)
    not_in_force: NotInForce = field(default_factory=NotInForce)


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
        return make_plan(desired, parse_state(read_file(self._state_file).data, self._state_file))

    def apply(self, plan: ExecPlan) -> NotInForce:
        if not plan.steps:
            return NotInForce()
        if plan.unresolved:
            raise ManagerError(
                f"The command is not run yet: the service has not said what else it calls node {plan.unresolved[0]}."
            )
        before = read_file(self._state_file)
        output = run(self._command, timeout=self._timeout, stdin=dump_json(plan_body(plan)))
        _log_output(output)
        found = parse_output(output, plan.desired.nodes)
        done = ExecState(nodes=plan.desired.nodes, not_in_force=plan.not_in_force | found)
        replace_file(self._state_file, dump_json(state_body(done)), before)
        return plan.desired.others.checked(found)


def make_plan(desired: DesiredState, state: ExecState) -> ExecPlan:
    """The steps from `state`, which the command carried out last, to `desired`.

    What is pending is tried again, and so is what is not here: the node may have joined since.
    """
    retried = state.not_in_force.pending.keys() | state.not_in_force.not_here
    changed = sorted(
        node_id for node_id, node in desired.nodes.items() if state.nodes.get(node_id) != node or node_id in retried
    )
    freed = sorted(state.nodes.keys() - desired.nodes.keys())
    steps = [
        *(block_step(name, desired.nodes[name], _step_reason(desired.nodes[name])) for name in changed),
        *free_steps(freed),
    ]
    refused = state.not_in_force.refused
    still_refused = {name: why for name, why in refused.items() if name in desired.nodes and name not in changed}
    nodes = {step.name: desired.nodes.get(step.name) or state.nodes[step.name] for step in steps}
    return ExecPlan(
        steps=tuple(steps),
        not_in_force=NotInForce(refused=still_refused),
        # Which node an id means is for the command to decide.
        unmatched=desired.nodes.keys(),
        unresolved=desired.others.unresolved(desired.nodes),
        desired=desired,
        nodes=nodes,
    )


def plan_body(plan: ExecPlan) -> Json:
    """The JSON that the command reads: revision, steps and all blocked nodes, with the other names of each."""
    blocked, others = plan.desired.nodes, plan.desired.others
    steps = [
        {"do": step.action.value, "id": step.name, "reason": step.reason, "node": _body(plan.nodes[step.name], others)}
        for step in plan.steps
    ]
    return {
        "revision": plan.desired.revision,
        "steps": steps,
        "blocked": [_body(blocked[name], others) for name in sorted(blocked)],
    }


def state_body(state: ExecState) -> Json:
    return {
        "blocked": [_body(state.nodes[name]) for name in sorted(state.nodes)],
        "refused": dict(state.not_in_force.refused),
        "pending": dict(state.not_in_force.pending),
        "notHere": sorted(state.not_in_force.not_here),
    }


def parse_state(data: bytes, path: Path) -> ExecState:
    """Parse the state file, empty before the first run. Raises ManagerError if it is malformed."""
    if not data:
        return ExecState()
    try:
        body = parse_json(data)
        nodes = [NodeBody.parse(node).value() for node in body["blocked"]]
        not_in_force = NotInForce(
            refused=_sentences(body["refused"]),
            pending=_sentences(body.get("pending", {})),
            not_here=frozenset(body.get("notHere", ())),
        )
        return ExecState(nodes={node.id: node for node in nodes}, not_in_force=not_in_force)
    except (InvalidError, KeyError, TypeError, AttributeError):
        raise ManagerError(
            f"{path} is not a state file of the exec manager. Repair or remove it; after removal the command does not"
            " learn which nodes were unblocked in the meantime."
        ) from None


def _body(node: BlockedNode, others: OtherNames = NO_OTHER_NAMES) -> Json:
    names = sorted(others.of(node.id))
    return {"id": node.id, **({"names": names} if names else {}), **node_fields(node)}


def _step_reason(node: BlockedNode) -> str:
    return f"Node {node.id} is blocked {format_end(node)} ({node.cause})."


def parse_output(output: CommandOutput, blocked: Collection[str]) -> NotInForce:
    """What the command says is not in force, as its whole stdout.

    `{"refused": {id: reason}, "pending": {id: reason}, "notHere": [id]}`, each of them optional. Anything else is for
    the log. Without an inventory no node is said to be elsewhere, unless the command does. Raises ManagerError for
    output that begins so and cannot be read: what is refused must not count as carried out.
    """
    text = output.stdout.strip()
    if not _SPEAKS.match(text):
        return NotInForce()
    try:
        body = json.loads(text)
        found = {key: _sentences(body.get(key, {})) for key in ("refused", "pending")}
        found["notHere"] = _sentences(dict.fromkeys(_list(body.get("notHere", [])), ""))
    except (ValueError, RecursionError, TypeError, AttributeError):
        cut = "" if output.complete else f" It is longer than {DEFAULT_MAX_OUTPUT >> 10} KiB."
        raise ManagerError(
            f'The command\'s output is not JSON such as {{"refused": {{"n1": "reason"}}}}.{cut} It begins: {text[:100]}'
        ) from None
    ids = {normalize_name(node_id): node_id for node_id in blocked}
    for name in [name for part in found.values() for name in part if normalize_name(name) not in ids]:
        log.warning("The command names node %s, which is not on the list.", name[:253])
    refused, pending, not_here = (
        {ids[key]: why for name, why in part.items() if (key := normalize_name(name)) in ids} for part in found.values()
    )
    return NotInForce(not_here=frozenset(not_here), pending=pending) | NotInForce(refused=refused)


def _list(value: object) -> list[str]:
    """Raises TypeError if it is no list of texts."""
    if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise TypeError
    return value


def _sentences(value: Mapping[str, object]) -> dict[str, str]:
    """Raises TypeError if a reason is no text."""
    if not all(isinstance(sentence, str) for sentence in value.values()):
        raise TypeError
    return {name: str(sentence) for name, sentence in value.items()}


def _log_output(output: CommandOutput) -> None:
    lines = [line for line in (output.stdout + "\n" + output.stderr).splitlines() if line.strip()]
    for line in lines[:MAX_LOG_LINES]:
        log.info("| %s", line[:500])
    if len(lines) > MAX_LOG_LINES or not output.complete:
        log.info("| … and more")


# Read a file and replace it atomically: other processes see the old content or the new one, never a part.


@dataclass(frozen=True, kw_only=True, slots=True)
class FileContent:
    """The bytes of a file, and its version: inode, size and modification time. No bytes and None without a file."""

    data: bytes = b""
    version: tuple[int, int, int] | None = None


def read_file(path: Path) -> FileContent:
    """The content of the file, empty if there is none. Raises ManagerError if it cannot be read."""
    try:
        with path.open("rb") as file:
            version = _version(os.fstat(file.fileno()))
            return FileContent(data=file.read(), version=version)
    except FileNotFoundError:
        return FileContent()
    except OSError as error:
        raise ManagerError(f"{path} cannot be read: {error.strerror}.") from error


def replace_file(path: Path, data: bytes, expected: FileContent) -> None:
    """Replace the content that `read_file` returned by `data`, durably; mode, owner and a symbolic link are kept.

    Raises ManagerError, and leaves the file unchanged, if its version is not the expected one or it cannot be written.
    """
    # The name is always the same: the next write replaces what a crash left behind.
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.blocklist")
    try:
        _write(temporary, data, target)
        if _current_version(target) != expected.version:
            raise ManagerError(f"{path} was changed by another process while it was being replaced.")
        temporary.replace(target)
        _fsync_folder(target.parent)
    except OSError as error:
        raise ManagerError(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _write(temporary: Path, data: bytes, target: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
        descriptor = file.fileno()
        _copy_owner_and_mode(target, descriptor)
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _copy_owner_and_mode(target: Path, descriptor: int) -> None:
    try:
        stat = target.stat()
    except FileNotFoundError:
        os.fchmod(descriptor, 0o644)
        return
    current = os.fstat(descriptor)
    if (current.st_uid, current.st_gid) != (stat.st_uid, stat.st_gid):
        os.fchown(descriptor, stat.st_uid, stat.st_gid)
    os.fchmod(descriptor, stat.st_mode & 0o7777)


def _current_version(path: Path) -> tuple[int, int, int] | None:
    try:
        return _version(path.stat())
    except FileNotFoundError:
        return None


def _version(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

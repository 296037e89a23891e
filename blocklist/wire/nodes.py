"""Bodies on the wire and their conversion to and from the values of node.py and changes.py. Nothing else.

Times are Unix milliseconds as decimal strings, for 9223372036854775807 does not survive a JSON number in JavaScript.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json.encoder import encode_basestring
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import to_json

from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.errors import InvalidError
from blocklist.model.node import MAX_CAUSE_LENGTH, MIN_TIMESTAMP, PERMANENT, BlockAction, BlockedNode, check_text

Json = dict[str, Any]
ActionName = Literal["MARK_BLOCKED", "MARK_BLOCKED_AND_EVACUATE_TASKS"]

_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)


def parse_json(body: bytes) -> Any:
    """Read a JSON document strictly: UTF-8, no repeated field, no NaN. Raises InvalidError."""
    try:
        text = body.decode().strip(_WHITESPACE)
        value, end = _decoder.raw_decode(text)
    except UnicodeDecodeError:
        raise InvalidError("The body is not UTF-8.") from None
    except RecursionError:
        raise InvalidError("The body is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise InvalidError(f"The body is not JSON: {error}.") from None
    except InvalidError:
        raise
    except ValueError:
        # Python reads integers of up to 4,300 digits.
        raise InvalidError("A number in the body is too long.") from None
    if end < len(text):
        raise InvalidError(f"The body is not JSON: {json.JSONDecodeError('Extra data', text, end)}.")
    return value


def dump_json(value: object) -> bytes:
    """Compact JSON in UTF-8."""
    return to_json(value)


def _reject_repeated_fields(pairs: list[tuple[str, Any]]) -> Json:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise InvalidError(f"The field {repeated[:64]!a} is given more than once.")
    return fields


def _reject_constant(name: str) -> None:
    raise InvalidError(f"{name} is not JSON.")


def _parse_millis(value: object) -> int:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("give Unix milliseconds as a whole number or its decimal string")
    if not MIN_TIMESTAMP <= value <= PERMANENT:
        raise ValueError("the time does not fit into 64 bits")
    return value


def _parse_flag(value: object) -> bool:
    if value is True or value == "true":
        return True
    if value is False or value == "false":
        return False
    raise ValueError('give true, false, "true" or "false"')


_WHITESPACE: Final = " \t\n\r"
_decoder: Final = json.JSONDecoder(object_pairs_hook=_reject_repeated_fields, parse_constant=_reject_constant)


def _check_if_text(value: object) -> object:
    return check_text(value) if isinstance(value, str) else value


# Not `$`, which some take to stand before a last line end, too.
TEXT_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f]*(?![\s\S])"
"""As check_text has it, for JSON Schema."""
_MILLIS_STRING: Json = {"type": "string", "pattern": "^(0|-?[1-9][0-9]{0,18})$"}
MillisIn = Annotated[
    int,
    BeforeValidator(_parse_millis),
    WithJsonSchema(
        {"anyOf": [_MILLIS_STRING, {"type": "integer", "minimum": MIN_TIMESTAMP, "maximum": PERMANENT}]},
        mode="validation",
    ),
]
MillisOut = Annotated[int, BeforeValidator(_parse_millis), PlainSerializer(str), WithJsonSchema(_MILLIS_STRING)]
Flag = Annotated[
    bool,
    BeforeValidator(_parse_flag),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "string", "enum": ["true", "false"]}]}),
]
Cause = Annotated[str, Field(min_length=1, max_length=MAX_CAUSE_LENGTH), BeforeValidator(_check_if_text)]


class Body(BaseModel):
    """A body in camelCase, checked strictly."""

    model_config = ConfigDict(strict=True, alias_generator=to_camel, frozen=True)

    def json_value(self) -> Json:
        """It as it came, in camelCase with times as strings, without what is not known here."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    @classmethod
    def parse(cls, value: object) -> Self:
        """Check a JSON value. Raises InvalidError with a line for each fault."""
        try:
            # What model_validate looks at first is a quarter of its time.
            body: Self = cls.__pydantic_validator__.validate_python(value)
        except ValidationError as error:
            lines = [_fault_line(fault) for fault in error.errors(include_url=False)]
            raise InvalidError(" ".join(lines), lines) from None
        return body


class BlockRequest(Body):
    """What to do with a node, until when and why (FLIP-224, Add)."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"action": "MARK_BLOCKED", "endTimestamp": "4102444800000", "cause": "Hot machine", "allowMerge": True}
            ]
        },
    )

    action: Annotated[ActionName, Field(description="The second also evacuates the tasks that run there.")]
    cause: Annotated[Cause, Field(description="Why: what the next one on call will read.")]
    end_timestamp: Annotated[
        MillisIn,
        Field(description="When the node is free again, Unix milliseconds; without it the block is permanent."),
    ] = PERMANENT
    allow_merge: Annotated[Flag, Field(description="Join with a present block instead of answering 409.")] = False

    def node(self, node_id: str, now: int) -> BlockedNode:
        """The node as blocked from `now` on. Raises InvalidError for a bad id, or an end that is not after now."""
        if self.end_timestamp <= now:
            raise InvalidError(f"endTimestamp: the end {self.end_timestamp} is not after the present {now}.")
        action = BlockAction[self.action]
        return BlockedNode(id=node_id, action=action, start=now, end=self.end_timestamp, cause=self.cause)


def _fault_line(fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"]) or "the body"
    messages = {
        "missing": "this field is required",
        "extra_forbidden": "there is no such field",
        "model_type": "give an object",
    }
    message = messages.get(fault["type"]) or str(fault["msg"]).removeprefix("Value error, ")
    return f"{ascii(where)[1:-1][:80]}: {message[0].lower()}{message[1:].removesuffix('.')}."


class ListedNode(Body):
    """A blocked node as the list shows it, under its id."""

    action: ActionName
    start_timestamp: MillisOut
    end_timestamp: MillisOut
    cause: str
    task_managers: Annotated[list[str], Field(description="The TaskManagers known to be on the node, sorted.")]
    created_by: Annotated[str | None, Field(description="With `details`: who made its last change.")] = None
    revision: Annotated[int, Field(ge=0, description="With `details`: of its last change; 0 if nobody knows.")] = 0


class NodeBody(Body):
    """A blocked node with its id."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "worker-17",
                    "action": "MARK_BLOCKED",
                    "startTimestamp": "1652313600000",
                    "endTimestamp": "1652317200000",
                    "cause": "Hot machine",
                    "taskManagers": [],
                }
            ]
        }
    )

    id: str
    action: ActionName
    start_timestamp: MillisOut
    end_timestamp: MillisOut
    cause: str
    task_managers: list[str] | None = None

    def value(self) -> BlockedNode:
        """The node. Raises InvalidError for what no service of ours would send."""
        action = BlockAction[self.action]
        return BlockedNode(
            id=self.id, action=action, start=self.start_timestamp, end=self.end_timestamp, cause=self.cause
        )


class NodeResult(NodeBody):
    """A node of several that were blocked: 201 blocked, 202 merged with its present block."""

    status: Literal[201, 202]


class ChangeBody(Body):
    """A change of the list."""

    revision: Annotated[int, Field(ge=1, le=2**53)]
    type: Literal["blocked", "merged", "unblocked", "expired"]
    at: MillisOut
    created_by: str | None
    forced: Annotated[str | None, Field(description="Why a limit was forced, if one was.")] = None
    node: NodeBody

    def value(self) -> Change:
        return Change(
            revision=self.revision,
            type=ChangeType(self.type),
            at=self.at,
            created_by=self.created_by,
            forced=self.forced,
            node=self.node.value(),
        )


class SnapshotBody(Body):
    """The whole list at a revision."""

    revision: Annotated[int, Field(ge=0, le=2**53)]
    history: Annotated[str, Field(pattern="^[0-9a-f]{8}$")]
    nodes: dict[str, NodeBody]

    def value(self) -> Snapshot:
        nodes = {node_id: node.value() for node_id, node in self.nodes.items()}
        return Snapshot(revision=self.revision, history=self.history, nodes=nodes)


class ChangesPage(Body):
    """A page of the change log."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "changes": [
                        {
                            "revision": 1,
                            "type": "blocked",
                            "at": "1652313600000",
                            "createdBy": None,
                            "node": {
                                "id": "worker-17",
                                "action": "MARK_BLOCKED",
                                "startTimestamp": "1652313600000",
                                "endTimestamp": "1652317200000",
                                "cause": "Hot machine",
                            },
                        }
                    ],
                    "revision": 1,
                    "next": None,
                }
            ]
        }
    )

    changes: list[ChangeBody]
    revision: Annotated[int, Field(description="The present revision.")]
    next: Annotated[int | None, Field(description="The `since` of the next page; null on the last.")]


class Problem(BaseModel):
    """An error (RFC 9457). `errors` is the shape that Flink's REST clients read."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:blocklist:problem:bad-request",
                    "title": "Bad Request",
                    "status": 400,
                    "detail": "cause: this field is required.",
                    "instance": "/blocklist/nodes/worker-17",
                    "errors": ["cause: this field is required."],
                }
            ]
        }
    )

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[str]


LIMIT_PROBLEM: Final = "urn:blocklist:problem:limit"
"""The type of a problem that only a limit makes: other than at a conflict there is no block to merge with."""


class ConflictProblem(Problem):
    """The node is blocked already: `blockedNode` as it is at present."""

    blockedNode: NodeBody  # noqa: N815


class ConflictsProblem(Problem):
    """Some nodes are blocked already: `blockedNodes` as they are at present."""

    blockedNodes: dict[str, NodeBody]  # noqa: N815


class CompactedProblem(Problem):
    """The changes are no longer in the log, which begins at revision `oldest`."""

    oldest: int


def node_fields(node: BlockedNode) -> Json:
    """A node's fields without its id, in the order of FLIP-224's example."""
    return {
        "action": node.action.name,
        "startTimestamp": str(node.start),
        "endTimestamp": str(node.end),
        "cause": node.cause,
    }


def node_body(node: BlockedNode, task_managers: list[str]) -> Json:
    """A node as an answer of /blocklist/nodes shows it."""
    return {"id": node.id, **node_fields(node), "taskManagers": task_managers}


def dump_node(node: BlockedNode, task_managers: list[str]) -> bytes:
    """The JSON of node_body, put together here: a PUT answers one, and takes half as long for it."""
    return f'{{"id":"{node.id}",{_dump_fields(node, task_managers)}}}'.encode()


def dump_list_entry(node: BlockedNode, task_managers: list[str]) -> bytes:
    """The same as GET /blocklist shows it, a member of the list under its id."""
    return f'"{node.id}":{{{_dump_fields(node, task_managers)}}}'.encode()


def _dump_fields(node: BlockedNode, task_managers: list[str]) -> str:
    return (
        f'"action":"{node.action.name}","startTimestamp":"{node.start}","endTimestamp":"{node.end}",'
        f'"cause":{encode_basestring(node.cause)},"taskManagers":{dump_json(task_managers).decode()}'
    )


def change_body(change: Change) -> Json:
    """A change as the log and the watch show it."""
    return {
        "revision": change.revision,
        "type": change.type.value,
        "at": str(change.at),
        "createdBy": change.created_by,
        **({} if change.forced is None else {"forced": change.forced}),
        "node": {"id": change.node.id, **node_fields(change.node)},
    }


def dump_snapshot(snapshot: Snapshot) -> Iterator[bytes]:
    """A snapshot as the watch shows it, as JSON in pieces: so thousands of nodes are never there as dicts."""
    yield b'{"revision":%d,"history":"%b","nodes":{' % (snapshot.revision, snapshot.history.encode())
    separator = b""
    for node_id in sorted(snapshot.nodes):
        body = {"id": node_id, **node_fields(snapshot.nodes[node_id])}
        yield b'%b"%b":%b' % (separator, node_id.encode(), dump_json(body))
        separator = b","
    yield b"}}"

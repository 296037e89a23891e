"""Output: tables, JSON, JSON lines and names on stdout, messages on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from blocklist.model.node import FOREVER, PERMANENT, BlockAction, TaskCount, format_duration, short_action, to_utc
from blocklist.model.text import escape_unprintable, json_text

if TYPE_CHECKING:
    from blocklist.model.changes import Change
    from blocklist.model.claims import Token
    from blocklist.model.listing import NodeDetails
    from blocklist.wire.audit import AuditRecord
    from blocklist.wire.listeners import (
        AppliedBody,
        DriftBody,
        EvidenceBody,
        JobBody,
        KnownNodeBody,
        ListenerBody,
        ModeRecordBody,
        NodeStatusBody,
    )
    from blocklist.wire.nodes import OwnedClaim

_SEPARATOR: Final = "  "
_BOLD: Final = "1"
_COLOURS: Final = {"evacuate": "31", "lapsed": "31", "mark": "33", "no": "33", "yes": "32", "live": "32"}


class Table:
    """A table to which rows can be added. `colour` is for terminals only.

    An empty cell is shown as a dash, so that each line has one word for each column; only the last may contain spaces.
    """

    def __init__(self, headers: Sequence[str], *, show_header: bool, colour: bool) -> None:
        self._pending_header = [list(headers)] if show_header else []
        self._widths = [_width(name) for name in headers]
        self._colour = colour

    def lines(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """The lines of these rows, with the header before the first ones. Columns widen, but never narrow."""
        head, self._pending_header = self._pending_header, []
        cells = [[escape_unprintable(cell) or "-" for cell in row] for row in rows]
        for row in (*head, *cells):
            self._widths = [max(width, _width(cell)) for width, cell in zip(self._widths, row, strict=True)]
        return [_coloured(_BOLD, self._line(row)) if self._colour else self._line(row) for row in head] + [
            self._line(row, coloured=self._colour) for row in cells
        ]

    def _line(self, row: Sequence[str], *, coloured: bool = False) -> str:
        shown = [_coloured(_COLOURS[cell], cell) if coloured and cell in _COLOURS else cell for cell in row]
        gaps = [" " * (width - _width(cell)) + _SEPARATOR for cell, width in zip(row[:-1], self._widths, strict=False)]
        return "".join(cell + gap for cell, gap in zip(shown, [*gaps, ""], strict=True))


def _coloured(colour: str, text: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m"


def _width(cell: str) -> int:
    """The number of terminal columns."""
    if cell.isascii():
        return len(cell)
    from rich.cells import cell_len  # noqa: PLC0415 - rarely needed

    return cell_len(cell)


T = TypeVar("T")
Json = dict[str, Any]
Columns = Mapping[str, Callable[[T], str]]
EXIT_BROKEN_PIPE: Final = 141
"""The exit code if stdout was closed: a shell's code for SIGPIPE."""
EXIT_UNWRITABLE: Final = 3
"""The exit code if stdout cannot be written. Not 1: a script would take that for the answer of `is-blocked`."""


class OutputFormat(StrEnum):
    """The values of -o."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    NAME = "name"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceView(Generic[T]):
    """How the items of one kind are shown: table columns (with more for -o wide), JSON and name.

    `last_columns` come last in both tables: they may contain spaces. `json_document` wraps the items as the service
    does in its response. `optional` are columns that are left out if they are empty. `empty_message` replaces an empty
    table.
    """

    columns: Columns[T]
    json: Callable[[T], Json]
    name: Callable[[T], str]
    json_document: Callable[[Sequence[Json]], Json]
    wide_columns: Columns[T] = field(default_factory=dict)
    last_columns: Columns[T] = field(default_factory=dict)
    optional: Collection[str] = ()
    empty_message: str

    def without_empty(self, items: Sequence[T]) -> ResourceView[T]:
        """The same without those `optional` columns in which no item has a value."""
        kept = {name: cell for name, cell in self.columns.items() if name not in self.optional or any(map(cell, items))}
        return replace(self, columns=kept)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The values of -o and --no-headers."""

    format: OutputFormat
    headers: bool = True

    @property
    def is_table(self) -> bool:
        return self.format in (OutputFormat.TABLE, OutputFormat.WIDE)


def print_items(view: ResourceView[T], items: Sequence[T], options: OutputOptions) -> None:
    """Print the items to stdout; instead of an empty table, a message to stderr."""
    if options.format is OutputFormat.JSON:
        print_document(view.json_document([view.json(item) for item in items]))
    elif options.format is OutputFormat.JSONL:
        print_lines(*(json_text(view.json(item)) for item in items))
    elif options.format is OutputFormat.NAME:
        print_lines(*dict.fromkeys(escape_unprintable(view.name(item)) for item in items))
    elif items:
        print_lines(*RowFormatter(view.without_empty(items), options).lines(items))
    else:
        print_stderr(view.empty_message)


class RowFormatter(Generic[T]):
    """Formats items as rows of a table; `lines` can be called again with more items."""

    def __init__(self, view: ResourceView[T], options: OutputOptions) -> None:
        columns = {
            **view.columns,
            **(view.wide_columns if options.format is OutputFormat.WIDE else {}),
            **view.last_columns,
        }
        self._cells = list(columns.values())
        self._table = Table(list(columns), show_header=options.headers, colour=use_colour())

    def lines(self, items: Sequence[T]) -> list[str]:
        """The lines of these items, with the header before the first ones."""
        return self._table.lines([[cell(item) for cell in self._cells] for item in items])


def print_document(document: Json) -> None:
    """Print one JSON value to stdout, indented."""
    print_lines(json_text(document, indent=2))


def print_lines(*lines: str) -> None:
    """Print lines to stdout and flush: a program may be waiting for them."""
    _write(lines)


def print_message(text: str) -> None:
    """Print a message to stdout, with control characters escaped."""
    _write([escape_unprintable(text)])


def print_stderr(*texts: str) -> None:
    """Print messages to stderr, with control characters escaped."""
    # If stderr cannot be written either, the exit code is all that is left.
    with suppress(OSError):
        sys.stderr.write("".join(f"{escape_unprintable(text)}\n" for text in texts))
        sys.stderr.flush()


def use_colour() -> bool:
    """Whether stdout is a terminal with colours, and NO_COLOR is not set (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def clear_screen() -> None:
    """Clear the terminal before the same view is printed again; if stdout is no terminal, print an empty line."""
    _write(["\x1b[2J\x1b[3J\x1b[H"] if sys.stdout.isatty() else [""])


def flush() -> None:
    """Flush stdout. Raises SystemExit if that fails: without a message if it was closed."""
    _write([])


def exit_unwritable(error: OSError) -> NoReturn:
    """Report that stdout cannot be written, for example because the disk is full. Raises SystemExit."""
    _discard_stdout()
    print_stderr(f"Error: the output cannot be written: {error.strerror or error}.")
    raise SystemExit(EXIT_UNWRITABLE)


def _write(lines: Iterable[str]) -> None:
    try:
        for line in lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        raise SystemExit(EXIT_BROKEN_PIPE) from None
    except OSError as error:
        exit_unwritable(error)


def _discard_stdout() -> None:
    # Python flushes stdout again at exit, and would print an error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# The views: how nodes, changes, listeners, evidence and tokens are shown.


def owners_of(listed: NodeDetails) -> tuple[str, ...]:
    """The owners of its claims; the author of the last change where they are not known, as in the past."""
    return listed.owners or ((listed.created_by,) if listed.created_by else ())


def listed_json(listed: NodeDetails) -> Json:
    """The node as in GET /blocklist?details=true, with its id."""
    from blocklist.wire.nodes import node_body  # noqa: PLC0415 - not for --version and --help

    body = node_body(listed.node, list(listed.task_managers))
    owners = {"owners": list(listed.owners)} if listed.owners else {}
    return {**body, "createdBy": listed.created_by, "revision": listed.revision, **owners}


def remaining(end: int, now: int) -> str:
    """`1h59m` until the end, in one word; `forever` for a permanent block."""
    return FOREVER if end == PERMANENT else format_duration(max(0, end - now)).replace(" ", "")


def _change_json(change: Change) -> Json:
    from blocklist.wire.changes import change_body  # noqa: PLC0415

    return change_body(change)


def _token_json(token: Token) -> Json:
    from blocklist.wire.tokens import token_body  # noqa: PLC0415

    return token_body(token)


def _by_id(bodies: Sequence[Json]) -> Json:
    return {str(body["id"]): {name: value for name, value in body.items() if name != "id"} for body in bodies}


def _document_under(name: str) -> Callable[[Sequence[Json]], Json]:
    return lambda bodies: {name: list(bodies)}


def format_timestamp(millis: int) -> str:
    """`2026-11-21T18:00:00Z`, a valid value of --at; `never` for PERMANENT."""
    if millis == PERMANENT:
        return "never"
    time = to_utc(millis)
    return str(millis) if time is None else f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _applied(body: AppliedBody) -> str:
    modes = {"observe": "observing", "off": "off"}
    return modes.get(body.mode) or ("not here" if body.not_here else _yes_no(body.applied))


def _optional_timestamp(value: int | None) -> str:
    return "" if value is None else format_timestamp(value)


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"


def _some(names: Sequence[str]) -> str:
    """`yarn-prod,+4`: the first name, and how many more there are. On a node of fifty jobs all would be a long line."""
    return names[0] if len(names) == 1 else f"{names[0]},+{len(names) - 1}" if names else ""


def _tasks(count: TaskCount) -> str:
    """`3`; `3+?` if only some TaskManagers report their tasks; `unknown` if none does."""
    if not count.others_unknown:
        return str(count.known)
    return f"{count.known}+?" if count.reported else "unknown"


def _detail(value: object) -> str:
    """A value of a record; of many values, such as all settings, their number."""
    match value:
        case dict():
            return f"{len(value)} values, see -o json"
        case list():
            return " ".join(map(str, value))
        case None:
            return "-"
        case _:
            return str(value)


def nodes_view(now: int, *, past: bool = False) -> ResourceView[NodeDetails]:
    """The blocked nodes; what remains of each block is counted from `now` (Unix milliseconds)."""
    return ResourceView(
        columns={
            "NODE": lambda it: it.node.id,
            "ACTION": lambda it: it.node.short_action,
            "REMAINING": lambda it: remaining(it.node.end, now),
            "OWNER": lambda it: ",".join(owners_of(it)),
        },
        # Times are 20 characters wide: without them, a line fits into a terminal of 80 columns.
        wide_columns={
            "EXPIRES": lambda it: format_timestamp(it.node.end),
            "SINCE": lambda it: format_timestamp(it.node.start),
            "BY": lambda it: it.created_by or "",
            "TASKMANAGERS": lambda it: str(len(it.task_managers)),
            "REVISION": lambda it: _number(it.revision),
        },
        last_columns={"REASON": lambda it: it.node.cause},
        json=listed_json,
        name=lambda it: it.node.id,
        json_document=_by_id,
        empty_message=f"No node was blocked at {format_timestamp(now)}." if past else "No node is blocked.",
    )


def claims_view(now: int) -> ResourceView[OwnedClaim]:
    """Claims; what remains of each is counted from `now` (Unix milliseconds)."""
    return ResourceView(
        columns={
            "NODE": lambda it: it.node,
            "OWNER": lambda it: it.owner,
            "ACTION": lambda it: short_action(BlockAction[it.action], canary=it.canary),
            "REMAINING": lambda it: remaining(it.end_timestamp, now),
            "EXPIRES": lambda it: format_timestamp(it.end_timestamp),
            "BY": lambda it: it.created_by or "",
        },
        wide_columns={"SINCE": lambda it: format_timestamp(it.start_timestamp)},
        last_columns={"REASON": lambda it: it.cause},
        json=lambda it: it.json_value(),
        name=lambda it: it.node,
        json_document=_document_under("claims"),
        empty_message="There are no claims.",
    )


KNOWN_NODES: ResourceView[KnownNodeBody] = ResourceView(
    columns={
        "NODE": lambda it: it.id,
        "BLOCKED": lambda it: _yes_no(it.blocked),
        "TASKMANAGERS": lambda it: str(len(it.task_managers)),
        "TASKS": lambda it: _tasks(TaskCount.of(tm.running_tasks for tm in it.task_managers)),
        "REPORTED-BY": lambda it: _some([reporter.id for reporter in it.reported_by]),
    },
    wide_columns={
        "REPORTERS": lambda it: ",".join(reporter.id for reporter in it.reported_by),
        "NAMES": lambda it: ",".join(it.names),
        "ADDRESSES": lambda it: ",".join(it.addresses),
    },
    last_columns={"LABELS": lambda it: ",".join(f"{key}={value}" for key, value in it.labels.items())},
    json=lambda it: it.json_value(),
    name=lambda it: it.id,
    json_document=_document_under("nodes"),
    empty_message="Nobody reports a node that matches.",
)
DRIFT: ResourceView[DriftBody] = ResourceView(
    columns={
        "NODE": lambda it: it.node,
        "BLOCKED": lambda it: _yes_no(it.blocked),
        "KIND": lambda it: it.kind,
        "LISTENER": lambda it: it.listener,
        "SINCE": lambda it: format_timestamp(it.since),
    },
    last_columns={"REASON": lambda it: it.reason},
    json=lambda it: it.json_value(),
    name=lambda it: it.node,
    json_document=_document_under("drift"),
    empty_message="No drift is observed.",
)
STATUSES: ResourceView[NodeStatusBody] = ResourceView(
    columns={
        "NODE": lambda it: it.id,
        "BLOCKED": lambda it: _yes_no(it.blocked),
        "APPLIED": lambda it: f"{it.applied}/{it.of}",
        "TASKS": lambda it: _tasks(
            TaskCount.of(
                (tm.running_tasks for listener in it.listeners for tm in listener.task_managers),
                silent=it.state == "unknown" or any(listener.is_silent for listener in it.listeners),
            )
        ),
    },
    wide_columns={"REVISION": lambda it: str(it.revision), "AT": lambda it: format_timestamp(it.at)},
    last_columns={
        "REFUSED": lambda it: "; ".join(f"{each.id}: {each.refused}" for each in it.listeners if each.refused),
    },
    json=lambda it: it.json_value(),
    name=lambda it: it.id,
    json_document=_document_under("nodes"),
    empty_message="The change log has none of these nodes.",
)
CHANGES: ResourceView[Change] = ResourceView(
    columns={
        "AT": lambda it: format_timestamp(it.at),
        "CHANGE": lambda it: it.type.value,
        "NODE": lambda it: it.node.id,
        "ACTION": lambda it: it.node.short_action,
        "EXPIRES": lambda it: format_timestamp(it.node.end),
        "BY": lambda it: it.created_by or "",
    },
    wide_columns={"REVISION": lambda it: str(it.revision), "FORCED": lambda it: it.forced or ""},
    last_columns={"REASON": lambda it: it.node.cause if it.repeat is None else f"{it.node.cause} ({it.repeat})"},
    json=_change_json,
    name=lambda it: it.node.id,
    json_document=_document_under("changes"),
    empty_message="No change matches.",
)
LISTENERS: ResourceView[ListenerBody] = ResourceView(
    columns={
        "LISTENER": lambda it: it.id,
        "ROLE": lambda it: it.role,
        "CLUSTER": lambda it: it.cluster or "",
        "STATE": lambda it: it.state,
        "MODE": lambda it: "" if it.mode == it.wanted_mode == "apply" else it.mode,
        "APPLIED": lambda it: str(it.acked_revision),
        "BEHIND": lambda it: str(it.lag_revisions),
        "LAG": lambda it: format_duration(it.lag_ms),
        "LEASE": lambda it: format_timestamp(it.lease_end),
    },
    wide_columns={
        "PRODUCT": lambda it: it.product or "",
        "VERSION": lambda it: it.version or "",
        "PLATFORM": lambda it: it.platform or "",
        "SESSION": lambda it: it.session_id,
        "CALLBACK": lambda it: it.callback_url or "",
    },
    last_columns={"ERROR": lambda it: it.last_error or ""},
    json=lambda it: it.json_value(),
    name=lambda it: it.id,
    json_document=_document_under("listeners"),
    optional={"CLUSTER", "MODE"},
    empty_message="No listener is registered.",
)
_DISOBEYS: Final = {"none": "runs, but has no agent", "lapsed": "runs, but its agent has stopped reporting"}


def _agent(job: JobBody) -> str:
    """`yes`, or why it obeys no block, in a word."""
    if job.agent != "live":
        return "no" if job.agent == "none" else "lapsed"
    return {"observe": "observing", "off": "off"}.get(job.mode or "", "yes")


JOBS: ResourceView[JobBody] = ResourceView(
    columns={
        "JOB": lambda it: it.id,
        "CLUSTER": lambda it: it.cluster or "",
        "AGENT": _agent,
    },
    wide_columns={"BY": lambda it: ",".join(it.reported_by)},
    last_columns={"NAME": lambda it: "; ".join(filter(None, (it.description, _DISOBEYS.get(it.agent))))},
    json=lambda it: it.json_value(),
    name=lambda it: it.id,
    json_document=_document_under("jobs"),
    optional={"CLUSTER"},
    empty_message="No job is known to run.",
)
MODES: ResourceView[ModeRecordBody] = ResourceView(
    columns={
        "LISTENERS": lambda it: it.pattern,
        "MODE": lambda it: it.mode,
        "SINCE": lambda it: format_timestamp(it.at),
        "BY": lambda it: it.created_by or "",
    },
    json=lambda it: it.json_value(),
    name=lambda it: it.pattern,
    json_document=_document_under("modes"),
    empty_message="No mode is set: all listeners apply blocks, unless they were started otherwise.",
)
APPLIED: ResourceView[AppliedBody] = ResourceView(
    columns={
        "LISTENER": lambda it: it.id,
        "ROLE": lambda it: it.role,
        "CLUSTER": lambda it: it.cluster or "",
        "APPLIED": _applied,
        "AT": lambda it: _optional_timestamp(it.applied_at),
        "AFTER": lambda it: "" if it.late_ms is None else format_duration(it.late_ms),
        "TASKMANAGERS": lambda it: str(len(it.task_managers)) if not it.is_silent else "unknown",
        "TASKS": lambda it: _tasks(it.tasks()),
    },
    last_columns={"REFUSED": lambda it: it.refused or it.would or ""},
    json=lambda it: it.json_value(),
    name=lambda it: it.id,
    json_document=_document_under("listeners"),
    optional={"CLUSTER"},
    empty_message="No listener is registered.",
)
EVIDENCE: ResourceView[EvidenceBody] = ResourceView(
    columns={
        "NODE": lambda it: it.node,
        "APPLICATION": lambda it: it.application,
        "KIND": lambda it: it.kind,
        "COUNTS": lambda it: _yes_no(it.believed),
        "SINCE": lambda it: format_timestamp(it.first_seen),
    },
    wide_columns={"LAST": lambda it: format_timestamp(it.last_seen)},
    last_columns={"REASON": lambda it: it.reason if it.doubt is None else f"{it.reason} (ignored: {it.doubt})"},
    json=lambda it: it.json_value(),
    name=lambda it: it.node,
    json_document=_document_under("evidence"),
    empty_message="There is no evidence.",
)
AUDIT: ResourceView[AuditRecord] = ResourceView(
    columns={
        "AT": lambda it: format_timestamp(it.at),
        "KIND": lambda it: it.kind,
        "BY": lambda it: it.principal or "",
        "WAY": lambda it: it.way,
        "ADDRESS": lambda it: it.address or "",
    },
    wide_columns={"ID": lambda it: str(it.id), "REQUEST": lambda it: it.request_id or ""},
    last_columns={"DETAILS": lambda it: ", ".join(f"{name}: {_detail(value)}" for name, value in it.details.items())},
    json=lambda it: it.json_value(),
    name=lambda it: str(it.id),
    json_document=_document_under("records"),
    empty_message="No record matches.",
)
TOKENS: ResourceView[Token] = ResourceView(
    columns={
        "ID": lambda it: it.id,
        "NAME": lambda it: it.name,
        "ROLE": lambda it: it.role.value,
        "EXPIRES": lambda it: format_timestamp(it.end),
        "REVOKED": lambda it: _optional_timestamp(it.revoked_at),
        "USED": lambda it: _optional_timestamp(it.last_used_at),
    },
    wide_columns={"CREATED": lambda it: format_timestamp(it.created_at)},
    last_columns={"BY": lambda it: it.created_by or ""},
    json=_token_json,
    name=lambda it: it.id,
    json_document=_document_under("tokens"),
    empty_message="There are no tokens.",
)

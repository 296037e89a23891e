"""The sentences that report the effect of a change, or of a dry run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

import typer

from blocklist.cli.output import (
    EXIT_UNWRITABLE,
    Json,
    format_timestamp,
    print_lines,
    print_message,
    print_stderr,
)
from blocklist.model.errors import (
    AmbiguousNodeError,
    BlocklistError,
    ConflictError,
    ForbiddenError,
    LimitError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
    UnknownNodeError,
)
from blocklist.model.names import ambiguous_message, same_machine
from blocklist.model.node import PERMANENT, AppliedBy, BlockAction, BlockedNode, format_duration, to_utc
from blocklist.model.text import json_text

if TYPE_CHECKING:
    from blocklist.cli.drain import Holder
    from blocklist.client.answers import AppliedCount
    from blocklist.client.client import BlocklistClient
    from blocklist.model.claims import Claim
    from blocklist.wire.listeners import JobsBody, KnownNodeBody, ModeRecordBody
    from blocklist.wire.nodes import DryRunNode, ShortfallBody


def block_message(node: BlockedNode, now: int, *, verb: str = "blocked", merged: bool = False) -> str:
    """`worker-17 blocked until 2026-11-21 18:00:00 UTC (in 4h)`, with the action and, after a merge, the causes."""
    evacuating = ", evacuating its tasks" if node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS else ""
    canary = ", with a canary" if node.canary else ""
    causes = f", merged: {node.cause}" if merged else ""
    return f"{node.id} {verb} {format_end(node.end, now)}{evacuating}{canary}{causes}"


def weakened_message(node_id: str, present: BlockedNode | None) -> str:
    """`n1 is no longer blocked; blocklist history n1 shows why`; or is only a canary now, or no longer evacuated."""
    if present is None:
        what = "is no longer blocked"
    elif present.canary:
        what = "is only a canary now"
    else:
        what = "was weakened meanwhile" if present.evacuates else "is no longer evacuated"
    return f"{node_id} {what}; blocklist history {node_id} shows why"


def not_blocked_message(node_id: str) -> str:
    return f"{node_id} not blocked"


def error_lines(error: BlocklistError) -> list[str]:
    """The error's title and detail, and a line for each fault."""
    # A single fault replaces the detail, which only counts the faults.
    detail, *lines = _lines(error) if len(error.lines) == 1 else (error.detail, *_lines(error))
    return [f"{error.title or 'Error'}: {detail}", *(f"  {line}" for line in lines)]


def _lines(error: BlocklistError) -> list[str]:
    """A line for each fault, without the hint for programs."""
    from blocklist.model.draft import MERGE_HINT  # noqa: PLC0415 - slow to import

    return [line.replace(MERGE_HINT, "") for line in error.lines]


def applied_message(
    progress: AppliedCount, by: AppliedBy, reasons: Mapping[str, str], reports: Mapping[str, str]
) -> str:
    """Which of the live listeners that were waited for have applied a change.

    `reasons` maps listeners that refused it to their reason, `reports` pending ones to what they last reported.

    `Applied by 4 of 6; refused by etl-nightly (its last host); pending: app-7`
    """
    if progress.observing:
        rest = applied_message(replace(progress, observing=()), by, reasons, reports)
        return f"{rest.removesuffix('.')}; observing or off: {', '.join(progress.observing)}"
    noun = "manager" if by.managers else "listener"
    if not progress.total:
        if progress.not_here:
            return f"Nothing has applied it: no cluster has the node (not here: {', '.join(progress.not_here)})."
        return f"There are no live {noun}s, so nothing has applied it."
    if progress.complete:
        return f"Applied by {progress.total} {noun}{'' if progress.total == 1 else 's'}."
    refused = [f"{name} ({reasons[name]})" if name in reasons else name for name in progress.refused]
    pending = [f"{name} (last report: {reports[name]})" if name in reports else name for name in progress.missing]
    parts = [
        f"Applied by {progress.applied} of {progress.total}{' managers' if by.managers else ''}",
        *([f"refused by {', '.join(refused)}"] if refused else []),
        *([f"pending: {', '.join(pending)}"] if pending else []),
    ]
    # A response names the first of many.
    unnamed = progress.total - progress.applied - len(refused) - len(pending)
    if unnamed > 0 and not progress.superseded:
        parts.append(f"and {unnamed} more, see status")
    return "; ".join(parts)


def unknown_messages(unknown: Mapping[str, str | None]) -> Iterator[str]:
    """`n11 is not a known node; did you mean n1?`; one line for all nodes that resemble no known one."""
    for node_id, suggestion in unknown.items():
        if suggestion is not None:
            yield f"{node_id} is not a known node; did you mean {suggestion}?"
    others = [node_id for node_id, suggestion in unknown.items() if suggestion is None]
    if others:
        are = "is not a known node" if len(others) == 1 else "are not known nodes"
        yield f"{', '.join(others)} {are}"


def cluster_conflicts(nodes: Iterable[KnownNodeBody]) -> Iterator[str]:
    """`w1 is a node of k8s-a and of yarn: …`, a line for each node that may be a machine in each of its clusters."""
    for node in nodes:
        if node.cluster_conflict:
            where = " and of ".join(node.clusters)
            yield f"{node.id} is a node of {where}, perhaps not the same machine: a block of this name holds in each."


def job_notices(found: JobsBody) -> list[str]:
    """How many jobs do not obey, and where that is not known."""
    if not found.sources:
        return ["Jobs without an agent are not known: no manager reports which applications run."]
    without = sum(job.agent != "live" for job in found.jobs)
    verb = "runs" if without == 1 else "run"
    notices = [f"{without} of {len(found.jobs)} jobs {verb} without a live agent: no block is in force there."]
    unknown = [f"Not known of {it.cluster or it.id}: {it.unknown}" for it in found.sources if it.unknown is not None]
    return [*(notices if without else ()), *unknown]


def mode_notices(modes: Iterable[ModeRecordBody]) -> list[str]:
    """A line for each mode that keeps listeners from applying blocks."""
    does = {
        "off": "the blocklist is OFF for {}: they apply no block, and use all nodes",
        "observe": "the blocklist is only OBSERVED by {}: they apply no block",
    }
    return [
        f"NOTICE: {does[it.mode].format('all listeners' if it.pattern == '*' else f'the listeners {it.pattern}')}."
        f" Set by {it.created_by or 'somebody unknown'} at {format_timestamp(it.at)};"
        f" to end it: blocklist listeners mode '{it.pattern}' apply"
        for it in modes
        if it.mode in does
    ]


def ambiguous_messages(ambiguous: Mapping[str, Sequence[str]]) -> list[str]:
    """`10.0.0.9 means 2 nodes: n8, n9. …`: what is blocked is neither of them."""
    return [ambiguous_message(node_id, claimants) for node_id, claimants in ambiguous.items()]


def format_end(end: int, now: int) -> str:
    """`until 2026-11-21 18:00:00 UTC (in 4h)`; `forever` for a permanent block. Both in Unix milliseconds."""
    if end == PERMANENT:
        return "forever"
    time = to_utc(end)
    text = str(end) if time is None else f"{time:%Y-%m-%d %H:%M:%S} UTC"
    return f"until {text} (in {format_duration(max(0, end - now))})"


def claim_message(claim: Claim, now: int) -> str:
    """`anna, until 2026-11-21 18:00:00 UTC (in 4h): Disk errors`."""
    return f"{claim.owner}, {format_end(claim.block.end, now)}: {claim.block.cause}"


def claim_json(claim: Claim) -> Json:
    """The claim as in the API."""
    from blocklist.wire.nodes import claim_body  # noqa: PLC0415 - not for --version and --help

    return claim_body(claim)


def claims_message(claims: Sequence[Claim], now: int) -> str:
    """The claims on a node, in one line."""
    return "; ".join(claim_message(claim, now) for claim in claims)


def _dry_run_message(entry: DryRunNode, now: int) -> str:
    node = entry.node.value()
    if entry.status == 200:
        return f"{node.id} would be unblocked"
    return block_message(node, now, verb="would be blocked", merged=entry.status == 202)


class ChangeOutput(StrEnum):
    """The values of -o for commands that change something."""

    TEXT = "text"
    JSON = "json"


_MAX_ASKED: Final = 5
"""Maximum number of nodes that a question names."""
_UNKNOWN_OUTCOME: Final = "The change may have been made: see `blocklist list`. Repeating the command is safe."


class ChangeReport:
    """What a command has done to each node: a sentence on stdout at once, or with -o json one document at the end.

    `names` are the nodes as they were asked for: those without a result were not changed. Used as a context, it also
    reports how the command ended.
    """

    def __init__(self, command: str, output: ChangeOutput, *, dry_run: bool = False) -> None:
        self.is_json = output is ChangeOutput.JSON
        self.names: Sequence[str] = ()
        self._dry_run = dry_run
        self._sent = self._is_sending = False
        self._nodes: dict[str, Json] = {}
        self._document: Json = {"command": command, "dryRun": dry_run}
        self._applied: Json | None = None
        self._notes: list[str] = []

    def node(self, name: str, result: str, text: str, node: BlockedNode | None = None, **more: object) -> None:
        """The result for one node; `node` is as it is now, `more` are other members of its entry."""
        self._nodes[name] = {"name": name, "result": result, "message": text, **_body(node), **more}
        self.say(text)

    def already_blocked(self, name: str, block: BlockedNode, now: int) -> None:
        """A node that needs no change."""
        self.node(name, "already-blocked", block_message(block, now, verb="already blocked"), block)

    def ambiguous(self, name: str, error: AmbiguousNodeError) -> None:
        """A name that means several blocked nodes, which were not changed."""
        self._nodes[name] = {"name": name, "result": "ambiguous", "message": error.detail, "node": None}
        print_stderr(*error_lines(error))

    def reversed(self, node_id: str, text: str) -> None:
        """A node that somebody else has changed back during the wait."""
        name = next((it for it in self._nodes if same_machine(it, node_id)), node_id)
        self.node(name, "reversed", text)

    def dry_run(self, name: str, entry: DryRunNode, now: int, **more: object) -> None:
        """The effect that the change would have on a node, and the TaskManagers that are there."""
        node, running = entry.node.value(), [it.json_value() for it in entry.task_managers]
        result, text = _DRY_RUN_RESULTS[entry.status], _dry_run_message(entry, now)
        if entry.status == 202 and self._document["command"] == "extend":
            text = block_message(node, now, verb="would stay blocked")
        self.node(name, result, text, node, taskManagers=running, **more)
        for task_manager in entry.task_managers:
            tasks = "an unknown number of" if task_manager.running_tasks is None else str(task_manager.running_tasks)
            self.say(f"  TaskManager {task_manager.id} of {task_manager.listener} runs {tasks} tasks")

    def shortfalls(self, shortfalls: Sequence[ShortfallBody]) -> None:
        """The listeners that would be left with too few nodes."""
        self._document["belowMinimum"] = [it.json_value() for it in shortfalls]
        for it in shortfalls:
            self.say(f"{it.listener} would be left with {it.usable} usable nodes; its minimum is {it.minimum}")

    def drained(self, name: str, holders: Mapping[str, Holder]) -> None:
        """How the drain of a node ended: `holders` keep it from being drained. Lines for people were printed."""
        held = [{"listener": it, "hold": holder.hold.value, "text": holder.text} for it, holder in holders.items()]
        self._nodes[name] |= {"result": "held" if holders else "drained", "holders": held}

    def has(self, name: str) -> bool:
        """Whether the node has a result."""
        return name in self._nodes

    def say(self, text: str) -> None:
        """A sentence for people only."""
        if not self.is_json:
            print_message(text)

    def note(self, *texts: str) -> None:
        """Sentences on stderr, and in the document."""
        self._notes += texts
        print_stderr(*texts)

    def applied(
        self, progress: AppliedCount, by: AppliedBy, refused: Mapping[str, str], pending: Mapping[str, str]
    ) -> None:
        """Which listeners have applied the change; the mappings are what they report."""
        self._applied = {
            "applied": progress.applied,
            "of": progress.total,
            "waitFor": str(by),
            "enough": by.is_met(progress.applied, progress.total),
            "refused": {name: refused.get(name) for name in progress.refused},
            "pending": {name: pending.get(name) for name in progress.missing},
            "notHere": list(progress.not_here),
            "observing": list(progress.observing),
            "superseded": list(progress.superseded),
        }
        self.say(applied_message(progress, by, refused, pending))

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Within this, an interruption or a lost answer leaves open whether the change was made."""
        self._sent = self._is_sending = not self._dry_run
        yield
        self._is_sending = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        failed = isinstance(error, (KeyboardInterrupt, Exception))
        unknown = error is not None and failed and self._is_sending and outcome_unknown(error)
        if unknown:
            self.note(_UNKNOWN_OUTCOME)
        if isinstance(error, SystemExit):
            self._on_exit(error)
        elif self.is_json and not isinstance(error, typer.TyperException):
            try:
                self._print(error, unknown=unknown)
            except SystemExit as unwritten:
                self._on_exit(unwritten)
                raise

    def _on_exit(self, error: SystemExit) -> None:
        """If stdout cannot be written, nothing else tells of the change."""
        if error.code == EXIT_UNWRITABLE and self._sent:
            self.note(_UNKNOWN_OUTCOME)

    def _print(self, error: BaseException | None, *, unknown: bool) -> None:
        if isinstance(error, ConflictError):
            for name, block in error.blocked.items():
                text = next((line for line in _lines(error) if f" {block.id} " in line), error.detail)
                self._nodes[name] = {"name": name, "result": "conflict", "message": text, **_body(block)}
        rest = {"result": "unknown" if unknown else "not-changed", "message": None, **_body(None)}
        entries = [self._nodes.get(name, {"name": name, **rest}) for name in dict.fromkeys(self.names)]
        print_lines(
            json_text(
                {
                    **self._document,
                    "ok": error is None or (isinstance(error, typer.Exit) and error.exit_code == 0),
                    "nodes": [*entries, *(it for name, it in self._nodes.items() if name not in self.names)],
                    "applied": self._applied,
                    "notes": self._notes,
                    "error": _error_body(error),
                },
                indent=2,
            )
        )


_DRY_RUN_RESULTS: Final = {200: "unblocked", 201: "blocked", 202: "merged"}
_ERROR_TYPES: Final[Mapping[type[BaseException], str]] = {
    AmbiguousNodeError: "ambiguous-node",
    ConflictError: "conflict",
    ForbiddenError: "forbidden",
    LimitError: "limit",
    NotFoundError: "not-found",
    UnauthorizedError: "unauthorized",
    UnavailableError: "unavailable",
    UnknownNodeError: "unknown-node",
}


def _body(node: BlockedNode | None) -> Json:
    from blocklist.wire.nodes import node_fields  # noqa: PLC0415 - not for --version and --help

    return {"node": None if node is None else {"id": node.id, **node_fields(node)}}


def _error_body(error: BaseException | None) -> Json | None:
    """Why the command failed; None if it did not, or if the entries of the nodes say it."""
    if error is None or isinstance(error, (typer.Exit, typer.Abort)):
        return None
    if isinstance(error, BlocklistError):
        return {
            "type": _ERROR_TYPES.get(type(error), "invalid"),
            "title": error.title or "Error",
            "detail": error.detail,
            "errors": list(error.lines),
        }
    is_interrupted = isinstance(error, KeyboardInterrupt)
    title = "Interrupted" if is_interrupted else type(error).__name__
    return {"type": "interrupted" if is_interrupted else "fault", "title": title, "detail": str(error), "errors": []}


def outcome_unknown(error: BaseException) -> bool:
    """Whether the service may have received the request, and the error does not say what it did."""
    import httpx  # noqa: PLC0415 - not for --version and --help

    if not isinstance(error, BlocklistError):
        # Interrupted, or a fault of the command: others end it by intention.
        return not isinstance(error, (typer.Exit, typer.Abort, typer.TyperException))
    if isinstance(error, UnavailableError) and error.passed_on:
        return True
    not_sent = (httpx.ConnectError, httpx.ConnectTimeout)
    return isinstance(error.__cause__, httpx.HTTPError) and not isinstance(error.__cause__, not_sent)


def is_interactive() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty()


def confirm_many(client: BlocklistClient, report: ChangeReport, verb: str, *, yes: bool) -> None:
    """Ask before a change of many nodes, as in confirm; with `yes` do not. The service says how many are many.

    `This changes 25 nodes (n1, n2, …), more than 4: a tenth of the known nodes, or 20. Block them? [y/N]`
    """
    names = report.names
    if yes or len(names) < 2 or len(names) <= (most := client.identity().ask_above):
        return
    some = ", ".join(names[:_MAX_ASKED]) + (", …" if len(names) > _MAX_ASKED else "")
    why = f"This changes {len(names)} nodes ({some}), more than {most}: a tenth of the known nodes, or 20."
    confirm(f"{why} {verb} them?", report.note)


def confirm(question: str, note: Callable[[str], None]) -> None:
    """Ask a question on the terminal. Raises Exit with code 1 unless the answer is yes, and without a terminal."""
    if not is_interactive():
        note(question)
        note("Nothing was changed: --yes is needed here, as there is no terminal to ask on.")
        raise typer.Exit(1)
    if not typer.confirm(question, err=True):
        note("Nothing was changed.")
        raise typer.Exit(1)

"""The sentences that report the effect of a change, or of a dry run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer

from blocklist.cli.output import print_stderr
from blocklist.model.errors import BlocklistError
from blocklist.model.names import ambiguous_message
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from blocklist.model.time import format_duration, to_utc

if TYPE_CHECKING:
    from blocklist.client.answers import AppliedCount
    from blocklist.model.claims import Claim
    from blocklist.wire.nodes import DryRunBody, DryRunNode


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


def blocked_again_message(node_id: str) -> str:
    """`n1 is blocked again; blocklist history n1 shows why`."""
    return f"{node_id} is blocked again; blocklist history {node_id} shows why"


def not_blocked_message(node_id: str) -> str:
    return f"{node_id} not blocked"


def error_lines(error: BlocklistError) -> list[str]:
    """The error's title and detail, and a line for each fault."""
    from blocklist.model.draft import MERGE_HINT  # noqa: PLC0415 - slow to import

    # A single fault replaces the detail, which only counts the faults.
    detail, *lines = error.lines if len(error.lines) == 1 else (error.detail, *error.lines)
    detail, *lines = (line.replace(MERGE_HINT, "") for line in (detail, *lines))
    return [f"{error.title or 'Error'}: {detail}", *(f"  {line}" for line in lines)]


def applied_message(progress: AppliedCount, reasons: Mapping[str, str], reports: Mapping[str, str]) -> str:
    """Which live listeners have applied a change.

    `reasons` maps listeners that refused it to their reason, `reports` pending ones to what they last reported.

    `Applied by 4 of 6; refused by etl-nightly (its last host); pending: app-7`
    """
    if not progress.total:
        return "There are no live listeners, so nothing has applied it."
    if progress.complete:
        return f"Applied by {_count_listeners(progress.total)}."
    refused = [f"{name} ({reasons[name]})" if name in reasons else name for name in progress.refused]
    pending = [f"{name} (last report: {reports[name]})" if name in reports else name for name in progress.missing]
    parts = [
        f"Applied by {progress.applied} of {progress.total}",
        *([f"refused by {', '.join(refused)}"] if refused else []),
        *([f"pending: {', '.join(pending)}"] if pending else []),
    ]
    return "; ".join(parts)


def unknown_messages(unknown: Mapping[str, str | None]) -> Iterator[str]:
    """`no listener knows n11; did you mean n1?`; one line for all nodes that resemble no known one."""
    for node_id, suggestion in unknown.items():
        if suggestion is not None:
            yield f"no listener knows {node_id}; did you mean {suggestion}?"
    others = [node_id for node_id, suggestion in unknown.items() if suggestion is None]
    if others:
        yield f"no listener knows {', '.join(others)}"


def unknown_node(suggestion: str | None) -> str:
    """`no listener knows this node, so what runs there is unknown; did you mean n1?`."""
    meant = "" if suggestion is None else f"; did you mean {suggestion}?"
    return f"no listener knows this node, so what runs there is unknown{meant}"


def ambiguous_node(claimants: Sequence[str]) -> str:
    """`the name means 2 nodes: n8, n9`."""
    return f"the name means {len(claimants)} nodes: {', '.join(claimants)}"


def ambiguous_messages(ambiguous: Mapping[str, Sequence[str]]) -> list[str]:
    """`10.0.0.9 means 2 nodes: n8, n9. …`: what is blocked is neither of them."""
    return [ambiguous_message(node_id, claimants) for node_id, claimants in ambiguous.items()]


def dry_run_messages(result: DryRunBody, now: int) -> Iterator[str]:
    """The effect on each node, its TaskManagers and the listeners' minimums."""
    for entry in result.nodes:
        yield _dry_run_message(entry, now)
        for task_manager in entry.task_managers:
            tasks = "an unknown number of" if task_manager.running_tasks is None else str(task_manager.running_tasks)
            yield f"  TaskManager {task_manager.id} of {task_manager.listener} runs {tasks} tasks"
    for shortfall in result.below_minimum:
        usable, minimum = shortfall.usable, shortfall.minimum
        yield f"{shortfall.listener} would be left with {usable} usable nodes; its minimum is {minimum}"


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


def claims_message(claims: Sequence[Claim], now: int) -> str:
    """The claims on a node, in one line."""
    return "; ".join(claim_message(claim, now) for claim in claims)


def _dry_run_message(entry: DryRunNode, now: int) -> str:
    node = entry.node.value()
    if entry.status == 200:
        return f"{node.id} would be unblocked"
    return block_message(node, now, verb="would be blocked", merged=entry.status == 202)


def _count_listeners(count: int) -> str:
    return "1 listener" if count == 1 else f"{count} listeners"


_MESSAGE: Final = "The change may have been made: see `blocklist list`. Repeating the command is safe."


@contextmanager
def report_unknown_outcome(dry_run: bool) -> Iterator[None]:
    """Print a message if the block is interrupted, or fails after a request was sent; the error is raised again."""
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        if not dry_run and outcome_unknown(error):
            print_stderr(_MESSAGE)
        raise


def outcome_unknown(error: BaseException) -> bool:
    """Whether the service may have received the request, and the error does not say what it did."""
    import httpx  # noqa: PLC0415 - not for --version and --help

    if not isinstance(error, BlocklistError):
        # Interrupted, or a fault of the command: others end it by intention.
        return not isinstance(error, (typer.Exit, typer.Abort, typer.TyperException))
    not_sent = (httpx.ConnectError, httpx.ConnectTimeout)
    return isinstance(error.__cause__, httpx.HTTPError) and not isinstance(error.__cause__, not_sent)


def is_interactive() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty()


def confirm(question: str) -> None:
    """Ask a question on the terminal. Raises Exit with code 1 unless the answer is yes, and without a terminal."""
    if not is_interactive():
        print_stderr("Nothing was changed: --yes is needed here, as there is no terminal to ask on.")
        raise typer.Exit(1)
    if not typer.confirm(question, err=True):
        print_stderr("Nothing was changed.")
        raise typer.Exit(1)

"""drain: block nodes, evacuate their tasks, and follow that until nothing runs there."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import typer

from blocklist.cli import messages, options
from blocklist.cli.block import (
    BlockSpec,
    end_and_tolerance,
    ensure_blocked,
    report_block,
    report_dry_run_block,
)
from blocklist.cli.environment import connect, default_duration, print_context, service_now_for_change
from blocklist.cli.messages import ChangeOutput, ChangeReport, confirm_many
from blocklist.cli.options import known_nodes
from blocklist.cli.output import print_message, print_stderr, use_colour
from blocklist.model.errors import AmbiguousNodeError, BlocklistError, NotFoundError, UnavailableError
from blocklist.model.node import (
    ALL_LISTENERS,
    AppliedBy,
    BlockAction,
    BlockedNode,
    BlockState,
    block_state,
    format_duration,
)
from blocklist.model.text import escape_unprintable

if TYPE_CHECKING:
    from rich.progress import Progress

    from blocklist.client.answers import BlockNodesResult
    from blocklist.client.client import BlocklistClient
    from blocklist.wire.listeners import AppliedBody, NodeStatusBody


_POLL_SECONDS: Final = 1.0
_GRACE_SECONDS: Final = 5.0
"""A listener without tasks on a node that has not applied the block gets a line after this time only: each has to, and
of a rack and fifty jobs that would be hundreds of lines."""
_DEFAULT_TIMEOUT: Final = 30 * 60_000
_DEFAULT_REASON: Final = "Drain"
_MAX_NAMED: Final = 10
_EVACUATE: Final = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
_NOWHERE: Final = "no cluster has this node, so what runs there is unknown"


def drain(
    node: options.Nodes = None,
    selector: options.Selector = None,
    reason: options.OptionalReason = None,
    timeout: options.DrainTimeout = None,
    duration: options.Duration = None,
    until: options.Until = None,
    forever: options.Forever = False,
    ignore_lapsed: options.IgnoreLapsed = False,
    dry_run: options.DryRun = False,
    force: options.Force = False,
    force_reason: options.ForceReason = None,
    strict: options.Strict = False,
    wait_for: options.WaitFor = None,
    output: options.ChangeFormat = ChangeOutput.TEXT,
    yes: options.Yes = False,
) -> None:
    """Block nodes, evacuate their tasks, and wait until nothing runs there. Ctrl-C leaves them blocked.

    Exit code 0 if all nodes are drained; 1 at the timeout, or if only refusals are left: then it names who holds what.
    """
    cause = reason or _DEFAULT_REASON
    forced = options.reason_to_force(force, force_reason, cause)
    with ChangeReport("drain", output, dry_run=dry_run) as report, connect() as client:
        report.names = node_ids = known_nodes(client, node, selector)
        if not dry_run:
            print_context(client)
            confirm_many(client, report, "Drain", yes=yes)
        now = service_now_for_change(client, asks=until is None and not forever)
        with report.sending():
            end, tolerance = end_and_tolerance(now, duration, until, forever, partial(default_duration, client))
            spec = BlockSpec(action=_EVACUATE, cause=cause, start=now, end=end, tolerance=tolerance)
            if dry_run:
                check = partial(client.dry_run_block, force=forced, strict=strict)
                checked = ensure_blocked(spec, node_ids, check, partial(check, allow_merge=True))
                report_dry_run_block(report, checked, now)
                return
            send = partial(client.block_nodes, force=forced, strict=strict)
            result = ensure_blocked(spec, node_ids, send, partial(send, allow_merge=True))
        report_block(report, result, node_ids, now)
        blocked = {**result.already_blocked, **({} if result.response is None else result.response.nodes)}
        followed = [node.id for node in blocked.values()]
        unknown = _unknown_nodes(result.response)
        with _following(report, len(followed)) as display:
            rules = DrainRules(ignore_lapsed=ignore_lapsed, by=wait_for or ALL_LISTENERS)
            follower = DrainFollower(client, followed, unknown, display, rules)
            left = follower.run(timeout or _DEFAULT_TIMEOUT)
        for name, block in blocked.items():
            report.drained(name, follower.holders(block.id))
        _print_doubts(client, report, [node.id for node in result.already_blocked.values()])
        if left:
            raise typer.Exit(1)


def _unknown_nodes(response: BlockNodesResult | None) -> dict[str, str]:
    """The nodes that no listener knew when they were blocked, by the id of their block, each with a sentence."""
    if response is None:
        return {}
    found: dict[str, str] = {}
    for name, meant in response.unknown.items():
        hint = "" if meant is None else f"; did you mean {meant}?"
        found[response.nodes[name].id] = f"the node is not known, so what runs there is unknown{hint}"
    for name, ids in response.ambiguous.items():
        found[response.nodes[name].id] = f"the name means {len(ids)} nodes: {', '.join(ids)}"
    return found


def _print_doubts(client: BlocklistClient, report: ChangeReport, node_ids: Sequence[str]) -> None:
    """Say which of these nodes, which were blocked before, nobody reports: they may be misspelt.

    Or the jobs that reported them have ended: the service does not remember that, so it is no failure.
    """
    with suppress(BlocklistError):  # What was done is reported already; this is only help.
        for node_id in node_ids[:_MAX_NAMED]:
            try:
                client.known_node(node_id)
            except NotFoundError as error:
                report.note(f"{error.detail} If the name is right, nothing runs there.")
            except AmbiguousNodeError as error:
                report.note(*messages.error_lines(error))


@contextmanager
def _following(report: ChangeReport, total: int) -> Iterator[DrainDisplay]:
    """The display of this number of nodes. If interrupted, it says that the drain goes on."""
    try:
        with drain_display(total, is_json=report.is_json) as display:
            yield display
    except KeyboardInterrupt:
        report.note(
            f"Interrupted: the drain goes on without this command. {_stay(total)} blocked, with evacuation;"
            " run the same command to follow it again, or blocklist unblock to end it."
        )
        raise


class DrainRules(NamedTuple):
    """What a node needs for being drained: by default, that every live listener has applied its block.

    With `ignore_lapsed`, jobs that have stopped reporting are taken for ended. Listeners that are pending and report
    that none of their tasks runs there do not matter once those of `by` have applied it.
    """

    ignore_lapsed: bool = False
    by: AppliedBy = ALL_LISTENERS


class DrainFollower:
    """Polls the status of the nodes and prints a line for each change, by node and listener."""

    def __init__(
        self,
        client: BlocklistClient,
        node_ids: Sequence[str],
        unknown: Mapping[str, str],
        display: DrainDisplay,
        rules: DrainRules,
        grace: float = _GRACE_SECONDS,
    ) -> None:
        self._grace = grace
        self._client = client
        self._display = display
        self._unknown = dict(unknown)
        self._rules = rules
        self._nodes: dict[str, Occupancy] = {node_id: unknown_occupancy("not read yet") for node_id in node_ids}
        self._shown: dict[str, dict[str, Holder]] = {node_id: {} for node_id in node_ids}
        self._drained: set[str] = set()
        self._ended: set[str] = set()
        self._started = time.monotonic()

    def run(self, timeout: int) -> list[str]:
        """Follow the nodes until nothing runs on any, waiting does not help, or the timeout (milliseconds).

        Returns the nodes that are not drained; what holds them was printed.
        """
        deadline = self._started + timeout / 1000
        while True:
            self.poll(deadline)
            left = [node_id for node_id, node in self._nodes.items() if not node.drained]
            took = format_duration(round(time.monotonic() - self._started) * 1000)
            if not left or all(self._nodes[node_id].stuck for node_id in left):
                break
            if time.monotonic() >= deadline:
                self._display.print(f"Timeout after {took}.")
                break
            time.sleep(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))
        self._print_summary(left, took)
        return left

    def holders(self, node_id: str) -> dict[str, Holder]:
        """What keeps the node from being drained, by listener."""
        return self._nodes[node_id].holding

    def poll(self, deadline: float = math.inf) -> None:
        """Read all nodes once; those that are not read before the deadline (monotonic seconds) stay as they were."""
        try:
            blocks = self._client.snapshot().nodes
            lapsed = self._lapsed()
            for node_id in self._nodes:
                # A service under load may take long for a rack.
                if time.monotonic() >= deadline:
                    break
                ended = _why_not_draining(blocks.get(node_id))
                (self._ended.discard if ended is None else self._ended.add)(node_id)
                self._update(node_id, self._read(node_id, lapsed) if ended is None else ended)
        except UnavailableError as error:
            for node_id in self._nodes:
                self._nodes[node_id] = unknown_occupancy("the service did not answer")
            self._display.service_unavailable(str(error))
        else:
            self._display.service_available()
        self._display.progress(len(self._drained), len(self._nodes))

    def _lapsed(self) -> list[str]:
        if self._rules.ignore_lapsed:
            return []
        listeners = self._client.listeners()
        return [each.id for each in listeners if each.state == "lapsed" and each.role == "JOB_MASTER"]

    def _read(self, node_id: str, lapsed: Sequence[str]) -> Occupancy:
        try:
            status = self._client.status(node_id)
        except NotFoundError:
            return unknown_occupancy("the change log no longer has its block")
        if any(listener.task_managers for listener in status.listeners):
            self._unknown.pop(node_id, None)
        occupancy = occupancy_of(status, lapsed, self._rules.by)
        # A misspelt node is empty, too.
        unknown = self._unknown.get(node_id, _NOWHERE if status.state == "not-here" else None)
        return not_draining(unknown) if unknown is not None and occupancy.drained else occupancy

    def _update(self, node_id: str, node: Occupancy) -> None:
        self._nodes[node_id] = node
        shown = self._shown[node_id]
        for name, holder in node.holders.items():
            before = shown.get(name)
            if holder != before and (before is not None or not self._is_silent(holder)):
                self._display.holder(node_id, "" if name == NO_REPORT else name, holder)
                shown[name] = holder
        for name in (shown.keys() - node.holders.keys()) if node.reported else ():
            if shown.pop(name).hold is not Hold.EMPTY and name != NO_REPORT:
                self._display.holder(node_id, name, Holder(Hold.EMPTY, "has ended its registration"))
        self._note_drained(node_id, drained=node.drained)

    def _is_silent(self, holder: Holder) -> bool:
        """Whether a listener that had no line yet needs none: it does not hold the node, or will hardly do so."""
        if holder.hold is Hold.PENDING and holder.idle:
            return time.monotonic() < self._started + self._grace
        return holder.hold is Hold.EMPTY

    def _note_drained(self, node_id: str, *, drained: bool) -> None:
        if drained and node_id not in self._drained:
            self._drained.add(node_id)
            self._display.drained(node_id)
        elif not drained:
            self._drained.discard(node_id)

    def _print_summary(self, left: Sequence[str], took: str) -> None:
        total = len(self._nodes)
        if not left:
            self._display.print(f"{_nodes(total)} drained in {took}: nothing runs there.")
            return
        self._display.print(f"{total - len(left)} of {_nodes(total)} drained. Still held:")
        for node_id in left:
            for holder in held_by(self._nodes[node_id]):
                self._display.print(f"  {node_id}  {holder}")
        blocked = [node_id for node_id in left if node_id not in self._ended]
        if blocked:
            self._display.print(f"{_stay(len(blocked))} blocked; to end that: {_unblock(blocked)}")


def _why_not_draining(block: BlockedNode | None) -> Occupancy | None:
    """None if the node is blocked and evacuated; else, why it will not be drained."""
    if block is None:
        return not_draining("no longer blocked; blocklist history shows why")
    if block.action is not _EVACUATE:
        return not_draining("its tasks are no longer evacuated; blocklist history shows why")
    return None


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _unblock(node_ids: Sequence[str]) -> str:
    """The command that unblocks them; shortened if they are many."""
    more = f" … ({len(node_ids) - _MAX_NAMED} more)" if len(node_ids) > _MAX_NAMED else ""
    return f"blocklist unblock {' '.join(node_ids[:_MAX_NAMED])}{more}"


def _stay(count: int) -> str:
    return "1 node stays" if count == 1 else f"{count} nodes stay"


_JOB: Final = "JOB_MASTER"
NO_REPORT: Final = "nobody"
"""In place of a listener's name: no live job reports anything."""


class Hold(StrEnum):
    """Why a listener keeps a node from being drained, or that it no longer does."""

    PENDING = "pending"
    RUNNING = "running"
    REFUSED = "refused"
    ENDED = "ended"
    UNKNOWN = "unknown"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Holder:
    """One listener on one node. `text` is for people, without the names of both.

    `idle` is whether it reports that none of its tasks runs there, so that only its acknowledgement is missing, if any.
    """

    hold: Hold
    text: str
    idle: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Occupancy:
    """The listeners of one node by id: those that hold it, and those that had tasks there and have none now.

    Without `reported` there is nothing about listeners in it, and what was read before may still be so.
    """

    holders: Mapping[str, Holder]
    reported: bool = True

    @property
    def holding(self) -> dict[str, Holder]:
        return {name: holder for name, holder in self.holders.items() if holder.hold is not Hold.EMPTY}

    @property
    def drained(self) -> bool:
        """Whether it is known that nothing runs there."""
        return not self.holding

    @property
    def stuck(self) -> bool:
        """Whether only refusals hold the node, or its evacuation has ended, so that waiting does not help."""
        holds = {holder.hold for holder in self.holding.values()}
        return bool(holds) and holds <= {Hold.REFUSED, Hold.ENDED}


def occupancy_of(status: NodeStatusBody, lapsed: Collection[str], by: AppliedBy = ALL_LISTENERS) -> Occupancy:
    """Who holds the node; `lapsed` are jobs that have stopped reporting: what they run is unknown.

    If those of `by` have applied the block, pending listeners without tasks there do not hold it.
    """
    holders = {listener.id: _holder(listener) for listener in status.listeners}
    if by != ALL_LISTENERS and _is_applied(status, by):
        done = Holder(Hold.EMPTY, "nothing runs", idle=True)
        holders = {name: done if it.hold is Hold.PENDING and it.idle else it for name, it in holders.items()}
    holders |= {name: Holder(Hold.UNKNOWN, "unknown: it has stopped reporting") for name in lapsed}
    # A manager that reports what runs on its nodes, as those of YARN and Slurm do, speaks for all of its jobs.
    # One of another cluster does not know what runs here.
    if not any(it.role == _JOB or (it.reports_task_managers and not it.not_here) for it in status.listeners):
        holders[NO_REPORT] = Holder(Hold.UNKNOWN, "unknown: no live job or manager reports what runs there")
    return Occupancy(holders=holders)


def _is_applied(status: NodeStatusBody, by: AppliedBy) -> bool:
    from blocklist.client.answers import AppliedCount  # noqa: PLC0415 - not for --version and --help

    count = AppliedCount.of_status(status, by)
    return by.is_met(count.applied, count.total)


def unknown_occupancy(reason: str) -> Occupancy:
    """Nothing can be known about the node at present."""
    return Occupancy(holders={NO_REPORT: Holder(Hold.UNKNOWN, f"unknown: {reason}")}, reported=False)


def not_draining(reason: str) -> Occupancy:
    """The node is not being drained any more, so that waiting does not help."""
    return Occupancy(holders={NO_REPORT: Holder(Hold.ENDED, reason)}, reported=False)


def held_by(occupancy: Occupancy) -> Iterator[str]:
    """`etl-nightly: refuses: its last host`, one text for each listener that holds the node."""
    for name, holder in occupancy.holding.items():
        yield holder.text if name == NO_REPORT else f"{name}: {holder.text}"


def _holder(listener: AppliedBody) -> Holder:
    tasks = listener.tasks()
    running = f"{_count(tasks.known, 'task')} running" if tasks.known else ""
    state = block_state(
        tasks,
        refused=listener.refused is not None,
        applied=listener.applied or not listener.counts or listener.refused is not None,
    )
    if state is BlockState.REFUSED:
        return Holder(Hold.REFUSED, ", ".join(filter(None, [f"refuses: {listener.refused}", running])))
    if state is BlockState.PENDING:
        report = f" (last report: {listener.pending_reason})" if listener.pending_reason else ""
        text = ", ".join(filter(None, [f"has not applied it yet{report}", running]))
        return Holder(Hold.PENDING, text, idle=not tasks.may_run)
    if state is BlockState.RUNNING:
        return Holder(Hold.RUNNING, running)
    if listener.not_here:
        return Holder(Hold.EMPTY, "not here", idle=True)
    if state is BlockState.UNKNOWN:
        of = f"the tasks of {_count(tasks.unreported, 'TaskManager')}" if tasks.unreported else "its TaskManagers"
        return Holder(Hold.UNKNOWN, f"unknown: does not report {of}")
    return Holder(Hold.EMPTY, "nothing runs", idle=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class DrainDisplay:
    """Plain lines: `r12n03  app-42  3 tasks running`; on stderr, if stdout is for a document."""

    def __init__(self, *, is_json: bool = False) -> None:
        self._available = True
        self._is_json = is_json

    def print(self, text: str) -> None:
        (print_stderr if self._is_json else print_message)(text)

    def holder(self, node_id: str, listener: str, holder: Holder) -> None:
        """What one listener reports about one node; without a name, what nobody reports."""
        self.print("  ".join(filter(None, [node_id, listener, holder.text])))

    def drained(self, node_id: str) -> None:
        self.print(f"{node_id}  drained")

    def progress(self, drained: int, total: int) -> None:
        """Show how many nodes are drained."""

    def service_unavailable(self, error: str) -> None:
        """Say so once: the drain goes on, but what runs is unknown meanwhile."""
        if self._available:
            self._available = False
            print_stderr(f"{error} What runs is unknown; trying again.")

    def service_available(self) -> None:
        if not self._available:
            self._available = True
            print_stderr("The service answers again.")


class TerminalDisplay(DrainDisplay):
    """The lines scroll above a bar with the number of drained nodes and the time."""

    def __init__(self, bar: Progress, total: int) -> None:
        super().__init__()
        self._bar = bar
        self._task = bar.add_task("drained", total=total)

    def print(self, text: str) -> None:
        self._bar.console.print(escape_unprintable(text), markup=False, highlight=False, soft_wrap=True)

    def progress(self, drained: int, total: int) -> None:
        self._bar.update(self._task, completed=drained, total=total)


@contextmanager
def drain_display(total: int, *, is_json: bool = False) -> Iterator[DrainDisplay]:
    """The display that suits stdout, for this number of nodes."""
    if is_json or not sys.stdout.isatty():
        yield DrainDisplay(is_json=is_json)
        return
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("drained"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(no_color=not use_colour(), highlight=False)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        yield TerminalDisplay(bar, total)

"""drain: block nodes, evacuate their tasks, and follow that until nothing runs there."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import typer

from blocklist.cli import messages, options
from blocklist.cli.block_commands import print_block_results, print_dry_run_block
from blocklist.cli.block_request import BlockSpec, end_and_tolerance, ensure_blocked
from blocklist.cli.drain_display import DrainDisplay, drain_display
from blocklist.cli.environment import connect, default_duration, print_context, service_now_for_change
from blocklist.cli.node_selection import known_nodes
from blocklist.cli.occupancy import (
    NO_REPORT,
    Hold,
    Holder,
    Occupancy,
    held_by,
    not_draining,
    occupancy_of,
    unknown_occupancy,
)
from blocklist.cli.output import print_stderr
from blocklist.cli.unknown_outcome import report_unknown_outcome
from blocklist.model.durations import format_duration
from blocklist.model.errors import AmbiguousNodeError, BlocklistError, NotFoundError, UnavailableError
from blocklist.model.node import BlockAction, BlockedNode

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient
    from blocklist.client.results import BlockNodesResult

_POLL_SECONDS: Final = 1.0
_GRACE_SECONDS: Final = 5.0
"""A listener without tasks on a node that has not applied the block gets a line after this time only: each has to, and
of a rack and fifty jobs that would be hundreds of lines."""
_DEFAULT_TIMEOUT: Final = 30 * 60_000
_DEFAULT_REASON: Final = "Drain"
_MAX_NAMED: Final = 10
_EVACUATE: Final = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


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
    force: options.Force = None,
    strict: options.Strict = False,
) -> None:
    """Block nodes, evacuate their tasks, and wait until nothing runs there. Ctrl-C leaves them blocked.

    Exit code 0 if all nodes are drained; 1 at the timeout, or if only refusals are left: then it names who holds what.
    """
    with connect() as client:
        node_ids = known_nodes(client, node, selector)
        if not dry_run:
            print_context(client)
        now = service_now_for_change(client, asks=until is None and not forever)
        with report_unknown_outcome(dry_run):
            end, tolerance = end_and_tolerance(now, duration, until, forever, partial(default_duration, client))
            cause = reason or _DEFAULT_REASON
            spec = BlockSpec(action=_EVACUATE, cause=cause, start=now, end=end, tolerance=tolerance)
            if dry_run:
                check = partial(client.dry_run_block, force=force, strict=strict)
                print_dry_run_block(ensure_blocked(spec, node_ids, check, partial(check, allow_merge=True)), now)
                return
            send = partial(client.block_nodes, force=force, strict=strict)
            result = ensure_blocked(spec, node_ids, send, partial(send, allow_merge=True))
        print_block_results(result, node_ids, now)
        blocked = {**result.already_blocked, **({} if result.response is None else result.response.nodes)}
        unknown = _unknown_nodes(result.response)
        left = _follow_until_drained(client, blocked, unknown, timeout or _DEFAULT_TIMEOUT, ignore_lapsed=ignore_lapsed)
        _print_doubts(client, [node.id for node in result.already_blocked.values()])
    if left:
        raise typer.Exit(1)


def _unknown_nodes(response: BlockNodesResult | None) -> dict[str, str]:
    """The nodes that no listener knew when they were blocked, by the id of their block, each with a sentence."""
    if response is None:
        return {}
    unknown = {response.nodes[name].id: messages.unknown_node(meant) for name, meant in response.unknown.items()}
    ambiguous = {response.nodes[name].id: messages.ambiguous_node(ids) for name, ids in response.ambiguous.items()}
    return unknown | ambiguous


def _print_doubts(client: BlocklistClient, node_ids: Sequence[str]) -> None:
    """Say which of these nodes, which were blocked before, nobody reports: they may be misspelt.

    Or the jobs that reported them have ended: the service does not remember that, so it is no failure.
    """
    with suppress(BlocklistError):  # What was done is reported already; this is only help.
        for node_id in node_ids[:_MAX_NAMED]:
            try:
                client.known_node(node_id)
            except NotFoundError as error:
                print_stderr(f"{error.detail} If the name is right, nothing runs there.")
            except AmbiguousNodeError as error:
                print_stderr(*messages.error_lines(error))


def _follow_until_drained(
    client: BlocklistClient,
    blocked: Mapping[str, BlockedNode],
    unknown: Mapping[str, str],
    timeout: int,
    *,
    ignore_lapsed: bool,
) -> list[str]:
    """The nodes that are not drained at the end."""
    node_ids = [node.id for node in blocked.values()]
    try:
        with drain_display(len(node_ids)) as display:
            follower = DrainFollower(client, node_ids, unknown, display, ignore_lapsed=ignore_lapsed)
            return follower.run(timeout)
    except KeyboardInterrupt:
        print_stderr(
            f"Interrupted: the drain goes on without this command. {_stay(len(node_ids))} blocked, with evacuation;"
            " run the same command to follow it again, or blocklist unblock to end it."
        )
        raise


class DrainFollower:
    """Polls the status of the nodes and prints a line for each change, by node and listener."""

    def __init__(
        self,
        client: BlocklistClient,
        node_ids: Sequence[str],
        unknown: Mapping[str, str],
        display: DrainDisplay,
        *,
        ignore_lapsed: bool,
        grace: float = _GRACE_SECONDS,
    ) -> None:
        self._grace = grace
        self._client = client
        self._display = display
        self._unknown = dict(unknown)
        self._ignore_lapsed = ignore_lapsed
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
        if self._ignore_lapsed:
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
        occupancy = occupancy_of(status, lapsed)
        # A misspelt node is empty, too.
        unknown = self._unknown.get(node_id)
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

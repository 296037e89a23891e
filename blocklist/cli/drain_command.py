"""drain: block nodes, evacuate their tasks, and follow that until nothing runs there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import typer

from blocklist.cli import options
from blocklist.cli.block_commands import print_block_results, print_dry_run_block
from blocklist.cli.block_request import BlockSpec, end_and_tolerance, ensure_blocked
from blocklist.cli.drain_display import DrainDisplay, drain_display
from blocklist.cli.environment import connect, default_duration, now_ms, print_context
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
from blocklist.model.errors import NotFoundError, UnavailableError
from blocklist.model.node import BlockAction, BlockedNode

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient

_POLL_SECONDS: Final = 1.0
_DEFAULT_TIMEOUT: Final = 30 * 60_000
_DEFAULT_REASON: Final = "Drain"
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
    now = now_ms()
    with connect() as client:
        node_ids = known_nodes(client, node, selector)
        if not dry_run:
            print_context(client)
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
        _follow_until_drained(client, blocked, timeout or _DEFAULT_TIMEOUT, ignore_lapsed=ignore_lapsed)


def _follow_until_drained(
    client: BlocklistClient, blocked: Mapping[str, BlockedNode], timeout: int, *, ignore_lapsed: bool
) -> None:
    node_ids = [node.id for node in blocked.values()]
    try:
        with drain_display(len(node_ids)) as display:
            follower = DrainFollower(client, node_ids, display, ignore_lapsed=ignore_lapsed)
            left = follower.run(timeout)
    except KeyboardInterrupt:
        print_stderr(
            f"Interrupted: the drain goes on without this command. {_stay(len(node_ids))} blocked and evacuated;"
            " run the same command to follow it again, or blocklist unblock to end it."
        )
        raise
    if left:
        raise typer.Exit(1)


class DrainFollower:
    """Polls the status of the nodes and prints a line for each change, by node and listener."""

    def __init__(
        self, client: BlocklistClient, node_ids: Sequence[str], display: DrainDisplay, *, ignore_lapsed: bool
    ) -> None:
        self._client = client
        self._display = display
        self._ignore_lapsed = ignore_lapsed
        self._nodes: dict[str, Occupancy] = {node_id: unknown_occupancy("not read yet") for node_id in node_ids}
        self._shown: dict[str, dict[str, Holder]] = {node_id: {} for node_id in node_ids}
        self._drained: set[str] = set()

    def run(self, timeout: int) -> list[str]:
        """Follow the nodes until nothing runs on any, waiting does not help, or the timeout (milliseconds).

        Returns the nodes that are not drained; what holds them was printed.
        """
        started = time.monotonic()
        deadline = started + timeout / 1000
        while True:
            self._poll()
            left = [node_id for node_id, node in self._nodes.items() if not node.drained]
            took = format_duration(round(time.monotonic() - started) * 1000)
            if not left or all(self._nodes[node_id].stuck for node_id in left):
                break
            if time.monotonic() >= deadline:
                self._display.print(f"Timeout after {took}.")
                break
            time.sleep(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))
        self._print_summary(left, took)
        return left

    def _poll(self) -> None:
        """Read all nodes once."""
        try:
            blocks = self._client.snapshot().nodes
            lapsed = self._lapsed()
            for node_id in self._nodes:
                ended = _why_not_draining(blocks.get(node_id))
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
            return occupancy_of(self._client.status(node_id), lapsed)
        except NotFoundError:
            return unknown_occupancy("the change log no longer has its block")

    def _update(self, node_id: str, node: Occupancy) -> None:
        self._nodes[node_id] = node
        shown = self._shown[node_id]
        for name, holder in node.holders.items():
            before = shown.get(name)
            # A listener that never held the node needs no line.
            if holder != before and (holder.hold is not Hold.EMPTY or before is not None):
                self._display.holder(node_id, "" if name == NO_REPORT else name, holder)
            if holder.hold is not Hold.EMPTY or before is not None:
                shown[name] = holder
        for name in shown.keys() - node.holders.keys():
            if shown.pop(name).hold is not Hold.EMPTY and name != NO_REPORT:
                self._display.holder(node_id, name, Holder(Hold.EMPTY, "has ended its registration"))
        self._note_drained(node_id, drained=node.drained)

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


def _why_not_draining(block: BlockedNode | None) -> Occupancy | None:
    """None if the node is blocked and evacuated; else, why it will not be drained."""
    if block is None:
        return not_draining("no longer blocked; blocklist history shows why")
    if block.action is not _EVACUATE:
        return not_draining("its tasks are no longer evacuated; blocklist history shows why")
    return None


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _stay(count: int) -> str:
    return "1 node stays" if count == 1 else f"{count} nodes stay"

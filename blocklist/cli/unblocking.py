"""How `unblock` works through its nodes, and waits until listeners have applied their last changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Final

from blocklist.cli import messages
from blocklist.cli.output import print_message, print_stderr
from blocklist.cli.unknown_outcome import outcome_unknown
from blocklist.model.errors import AmbiguousNodeError, BlocklistError, NotFoundError
from blocklist.model.host_matching import NameIndex

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient
    from blocklist.client.results import AppliedCount

_POLL_SECONDS: Final = 0.2
_MAX_COMPARED: Final = 10_000
_MAX_SUGGESTIONS: Final = 5
_SIMILARITY: Final = 0.8


@dataclass(slots=True)
class UnblockOutcome:
    """The nodes by what happened to each; the reason was printed."""

    done: list[str] = field(default_factory=list)
    not_blocked: list[str] = field(default_factory=list)
    ambiguous: list[str] = field(default_factory=list)


def for_each(node_ids: Sequence[str], action: Callable[[str], None]) -> UnblockOutcome:
    """Call `action` for each node. A name that is not blocked, or means several nodes, is reported and skipped.

    Any other error is raised, and lists the remaining nodes; also if the output cannot be written.
    """
    outcome = UnblockOutcome()
    for place, node_id in enumerate(node_ids):
        try:
            _for_one(node_id, action, outcome)
        except SystemExit:
            print_stderr(*_not_unblocked(node_ids[place + 1 :]))
            raise
        except BlocklistError as error:
            if place:
                print_stderr(*_not_unblocked(node_ids[place + outcome_unknown(error) :]))
            raise
    return outcome


def _for_one(node_id: str, action: Callable[[str], None], outcome: UnblockOutcome) -> None:
    try:
        action(node_id)
        outcome.done.append(node_id)
    except NotFoundError as error:
        print_message(messages.not_blocked_message(node_id))
        print_stderr(*error.lines[1:])
        outcome.not_blocked.append(node_id)
    except AmbiguousNodeError as error:
        print_stderr(*messages.error_lines(error))
        outcome.ambiguous.append(node_id)


def _not_unblocked(node_ids: Sequence[str]) -> list[str]:
    return [f"Not unblocked: {', '.join(node_ids)}."] if node_ids else []


def unblock_all(
    client: BlocklistClient, node_ids: Sequence[str], wait: int | None
) -> tuple[UnblockOutcome, AppliedCount | None]:
    """Unblock the nodes; with `wait` (seconds), how many listeners have applied the last change of every node.

    That is None if none of the nodes has a change.
    """
    deadline = time.monotonic() + (wait or 0)
    progress: AppliedCount | None = None
    if wait is not None:
        # Only the last request waits, for itself and those before it. It must be for a node that is blocked.
        blocked = NameIndex(client.snapshot().nodes)
        node_ids = sorted(node_ids, key=lambda node_id: any(blocked.matching(node_id)))

    def unblock_one(node_id: str) -> None:
        nonlocal progress
        result = client.unblock_node(node_id, wait=wait if node_id == node_ids[-1] else None)
        progress = result.applied
        print_message(f"{result.id} unblocked")

    outcome = for_each(node_ids, unblock_one)
    _suggest(client, outcome.not_blocked, node_ids)
    if wait is None:
        return outcome, None
    # The change of a node that is no longer blocked may be pending too, and if the last request failed, every change.
    pending = outcome.not_blocked if progress is not None else [*outcome.done, *outcome.not_blocked]
    counts = [*([] if progress is None else [progress]), *_poll_until_applied(client, pending, deadline)]
    return outcome, reduce(lambda one, other: one.and_also(other), counts) if counts else None


def _suggest(client: BlocklistClient, not_blocked: Sequence[str], node_ids: Sequence[str]) -> None:
    """Print the blocked node that was probably meant by a name that is not blocked."""
    if not not_blocked:
        return
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    with suppress(BlocklistError):  # What was done is reported already; this is only help.
        blocked = sorted(set(client.snapshot().nodes).difference(node_ids))[:_MAX_COMPARED]
        for name in not_blocked[:_MAX_SUGGESTIONS]:
            for meant in get_close_matches(name, blocked, n=1, cutoff=_SIMILARITY):
                print_stderr(f"{name}: did you mean {meant}?")


def _poll_until_applied(client: BlocklistClient, node_ids: Iterable[str], deadline: float) -> list[AppliedCount]:
    """How many listeners have applied the last change of each node that has one, once all have or at the deadline."""
    counts = (_poll_node(client, node_id, deadline) for node_id in node_ids)
    return [count for count in counts if count is not None]


def _poll_node(client: BlocklistClient, node_id: str, deadline: float) -> AppliedCount | None:
    from blocklist.client.results import AppliedCount  # noqa: PLC0415 - not for --version and --help

    while True:
        try:
            status = client.status(node_id)
        except NotFoundError:
            # It was never blocked, so there is nothing to apply.
            return None
        count = AppliedCount.of_status(status)
        if status.blocked:
            return replace(count, applied=0, superseded=(status.id,))
        remaining = deadline - time.monotonic()
        if count.applied == count.total or remaining <= 0:
            return count
        time.sleep(min(_POLL_SECONDS, remaining))

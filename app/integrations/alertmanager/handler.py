"""Applies posts of Alertmanager to the list: all alerts of a post in one transaction, unless they are many."""

from __future__ import annotations

from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from app.engine.dismissals import Dismissals
from app.engine.handler import BlocklistHandler, Command
from app.engine.limits import LimitGuard
from app.integrations.alertmanager.rules import Alert, AlertOutcome, decide, owner_of
from app.integrations.alertmanager.wire import AlertmanagerPost, read_alerts
from blocklist.model.automatic_blocks import AutomaticBlocks
from blocklist.model.changes import Author
from blocklist.model.claims import claim_of
from blocklist.model.draft import Draft
from blocklist.model.errors import LimitError
from blocklist.model.node_lookup import nodes_claimed_by
from blocklist.model.roles import Role

log = structlog.get_logger(__name__)

ALERTS_PER_TRANSACTION: Final = 500
"""Number of alerts that are applied in one transaction, which takes some 100 ms. All alerts about a node are applied
together."""
ALERTS_CHECKED_ALONE: Final = 10
"""Number of alerts that are applied in one transaction if a limit rejects some: then each node is checked alone, and
each check may scan the whole list, which takes milliseconds."""
_Claimed = Mapping[str, Sequence[str]]
"""Where the owners of resolved alerts have claims before the post."""


@dataclass(frozen=True, slots=True)
class AlertResults:
    """The outcomes of the alerts of a post, and the nodes rejected by a limit: messages by node id."""

    outcomes: Tally[AlertOutcome] = field(default_factory=Tally)
    refused: dict[str, str] = field(default_factory=dict)

    def add(self, other: AlertResults) -> None:
        self.outcomes.update(other.outcomes)
        self.refused.update(other.refused)


class AlertBlocker:
    """Processes posts, and counts them once their changes are stored. Not thread-safe: for the event loop.

    `node_label` is the label that names the node, `duration` the length of a block (milliseconds).
    """

    def __init__(
        self,
        handler: BlocklistHandler,
        guard: LimitGuard,
        dismissals: Dismissals,
        automatic_blocks: AutomaticBlocks,
        *,
        node_label: str,
        duration: int,
    ) -> None:
        self.posts = 0
        self.truncated = 0
        self.alerts: Tally[AlertOutcome] = Tally()
        self._handler = handler
        self._guard = guard
        self._dismissals = dismissals
        self._automatic_blocks = automatic_blocks
        self._node_label = node_label
        self._duration = duration

    async def process(
        self, post: AlertmanagerPost, author: Author, role: Role, check_owner: Callable[[str], None]
    ) -> tuple[AlertResults, int]:
        """Apply the alerts of a post; what became of them, and the revision after that.

        `check_owner` raises ForbiddenError for an owner for whom it may not make claims. Raises UnavailableError; then
        the changes, or some of them, may or may not be stored.
        """
        parsed = await read_alerts(post.alerts, self._node_label)
        alerts = [alert for alert in parsed if isinstance(alert, Alert)]
        for alert in alerts:
            check_owner(owner_of(alert.fingerprint))
        results, revision = AlertResults(), 0
        parts = deque(_parts(_by_node(alerts), ALERTS_PER_TRANSACTION))
        while parts:
            part = parts.popleft()
            command = partial(self._apply, alerts_by_node=part, role=role)
            applied = await self._handler.submit(command, author)
            revision = applied.revision
            if applied.value is None:
                parts.extendleft(reversed([*_parts(part, ALERTS_CHECKED_ALONE)]))
            else:
                results.add(applied.value)
        results.outcomes.update(outcome for outcome in parsed if isinstance(outcome, AlertOutcome))
        for node, message in results.refused.items():
            log.warning("limit rejected the block of an alert", node=node, limit=message)
        self.posts += 1
        self.truncated += post.truncated
        self.alerts.update(results.outcomes)
        return results, revision

    def _apply(
        self,
        draft: Draft,
        alerts_by_node: Mapping[str, Sequence[Alert]],
        role: Role,
    ) -> AlertResults | None:
        """Apply all alerts, but those that a limit rejects; None, and nothing is applied, if they are too many then."""
        resolved = {owner_of(it.fingerprint) for alerts in alerts_by_node.values() for it in alerts if not it.firing}
        claimed = nodes_claimed_by(draft, resolved, draft.now)

        def everything(draft: Draft) -> AlertResults:
            commands = (self._command(node, alerts, claimed) for node, alerts in alerts_by_node.items())
            return AlertResults(Tally(outcome for command in commands for outcome in command(draft)))

        # Checking limits may scan the whole list. Usually none is reached, so check all nodes at once first.
        if len(alerts_by_node) > 1 and self._guard.dry_run(everything, role)(draft).refusal is None:
            return everything(draft)
        if len(alerts_by_node) > ALERTS_CHECKED_ALONE:
            return None
        results = AlertResults()
        for node, alerts in alerts_by_node.items():
            try:
                outcomes = self._guard.enforce(self._command(node, alerts, claimed), role)(draft)
            except LimitError as error:
                results.refused[node] = error.detail
                results.outcomes[AlertOutcome.LIMITED] += sum(alert.firing for alert in alerts)
                outcomes = self._command(node, [alert for alert in alerts if not alert.firing], claimed)(draft)
            results.outcomes.update(outcomes)
        return results

    def _command(self, node: str, alerts: Sequence[Alert], claimed: _Claimed) -> Command[Sequence[AlertOutcome]]:
        def run(draft: Draft) -> Sequence[AlertOutcome]:
            current = draft.get_blocked(node)
            claims = () if current is None else draft.claims(current)
            dismissed = {it.fingerprint for it in alerts if it.firing and self._is_dismissed(draft, it)}
            counted = [alert for alert in alerts if alert.fingerprint not in dismissed]
            repeat = self._automatic_blocks.repeat(draft, node, self._duration, draft.now)
            decision = decide(claims, counted, draft.now, self._duration, draft.author.name, repeat)
            if decision.put or decision.remove:
                draft.change_claims(node, decision.put, decision.remove)
            outcomes = map(partial(_resolve_elsewhere, draft, claimed), counted, decision.outcomes)
            return [*outcomes, *([AlertOutcome.DISMISSED] * len(dismissed))]

        return run

    def _is_dismissed(self, draft: Draft, alert: Alert) -> bool:
        """Whether the node was unblocked while the alert was firing already."""
        dismissal = self._dismissals.find(draft, alert.node, owner_of(alert.fingerprint))
        return dismissal is not None and alert.started_at is not None and alert.started_at <= dismissal.at


def _resolve_elsewhere(draft: Draft, claimed: _Claimed, alert: Alert, outcome: AlertOutcome) -> AlertOutcome:
    """Remove the claims that a resolved alert has under other names; the outcome after that.

    What the name of its node means may be another node than when it fired, or none, as labels, blocks and what is known
    about machines change. Nobody else would remove them before their end.
    """
    owner = owner_of(alert.fingerprint)
    for node_id in () if alert.firing else claimed.get(owner, ()):
        node = draft.get(node_id)
        if node is not None and claim_of(draft.claims(node), owner) is not None:
            draft.remove_claim(node_id, owner)
            outcome = AlertOutcome.FREED if draft.get(node_id) is None else AlertOutcome.KEPT
    return outcome


def _by_node(alerts: Iterable[Alert]) -> dict[str, list[Alert]]:
    """Alerts by node; the last one if repeated. Nodes with only resolved alerts come first: they make room."""
    by_node: dict[str, dict[str, Alert]] = {}
    for alert in alerts:
        by_node.setdefault(alert.node, {})[alert.fingerprint] = alert
    ordered = sorted(by_node.items(), key=lambda item: any(alert.firing for alert in item[1].values()))
    return {node: list(by_fingerprint.values()) for node, by_fingerprint in ordered}


def _parts(alerts_by_node: Mapping[str, Sequence[Alert]], size: int) -> Iterator[Mapping[str, Sequence[Alert]]]:
    """The same in their order, in parts of `size` alerts or of one node; at least one part."""
    part: dict[str, Sequence[Alert]] = {}
    room = size
    for node, alerts in alerts_by_node.items():
        if part and len(alerts) > room:
            yield part
            part, room = {}, size
        part[node] = alerts
        room -= len(alerts)
    yield part

"""Applies posts of Alertmanager to the list: all alerts of a post in one transaction."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from app.engine.handler import BlocklistHandler, Command, Outcome
from app.engine.limits import LimitGuard
from app.integrations.alertmanager.rules import Alert, AlertOutcome, decide
from app.integrations.alertmanager.wire import AlertmanagerPost, read_alert
from blocklist.model.changes import Author
from blocklist.model.draft import Draft
from blocklist.model.errors import LimitError
from blocklist.model.roles import Role

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AlertResults:
    """The outcomes of the alerts of a post, and the nodes rejected by a limit: messages by node id."""

    outcomes: Tally[AlertOutcome] = field(default_factory=Tally)
    refused: dict[str, str] = field(default_factory=dict)


class AlertBlocker:
    """Processes posts, and counts them once their changes are stored. Not thread-safe: for the event loop.

    `node_label` is the label that names the node, `duration` the length of a block (milliseconds).
    """

    def __init__(self, handler: BlocklistHandler, guard: LimitGuard, *, node_label: str, duration: int) -> None:
        self.posts = 0
        self.truncated = 0
        self.alerts: Tally[AlertOutcome] = Tally()
        self._handler = handler
        self._guard = guard
        self._node_label = node_label
        self._duration = duration

    async def process(self, post: AlertmanagerPost, author: Author, role: Role) -> Outcome[AlertResults]:
        """Apply the alerts of a post. Raises UnavailableError; then the changes may or may not be stored."""
        parsed = [read_alert(value, self._node_label) for value in post.alerts]
        alerts_by_node = _by_node(alert for alert in parsed if isinstance(alert, Alert))
        outcome = await self._handler.submit(lambda draft: self._apply(draft, alerts_by_node, role), author)
        results = outcome.value
        results.outcomes.update(outcome for outcome in parsed if isinstance(outcome, AlertOutcome))
        for node, message in results.refused.items():
            log.warning("limit rejected the block of an alert", node=node, limit=message)
        self.posts += 1
        self.truncated += post.truncated
        self.alerts.update(results.outcomes)
        return outcome

    def _apply(self, draft: Draft, alerts_by_node: Mapping[str, Sequence[Alert]], role: Role) -> AlertResults:
        def everything(draft: Draft) -> AlertResults:
            commands = (self._command(node, alerts) for node, alerts in alerts_by_node.items())
            return AlertResults(Tally(outcome for command in commands for outcome in command(draft)))

        # Checking limits may scan the whole list. Usually none is reached, so check all nodes at once first.
        if len(alerts_by_node) > 1 and self._guard.dry_run(everything, role)(draft).refusal is None:
            return everything(draft)
        results = AlertResults()
        for node, alerts in alerts_by_node.items():
            try:
                outcomes = self._guard.enforce(self._command(node, alerts), role)(draft)
            except LimitError as error:
                results.refused[node] = error.detail
                results.outcomes[AlertOutcome.LIMITED] += sum(alert.firing for alert in alerts)
                outcomes = self._command(node, [alert for alert in alerts if not alert.firing])(draft)
            results.outcomes.update(outcomes)
        return results

    def _command(self, node: str, alerts: Sequence[Alert]) -> Command[Sequence[AlertOutcome]]:
        def run(draft: Draft) -> Sequence[AlertOutcome]:
            decision = decide(draft.get_blocked(node), alerts, draft.now, self._duration)
            if decision.block is not None:
                draft.block(decision.block, allow_merge=True)
            elif decision.unblock:
                draft.unblock(node)
            return decision.outcomes

        return run


def _by_node(alerts: Iterable[Alert]) -> dict[str, list[Alert]]:
    """Alerts by node; the last one if repeated. Nodes with only resolved alerts come first: they make room."""
    by_node: dict[str, dict[str, Alert]] = {}
    for alert in alerts:
        by_node.setdefault(alert.node, {})[alert.fingerprint] = alert
    ordered = sorted(by_node.items(), key=lambda item: any(alert.firing for alert in item[1].values()))
    return {node: list(by_fingerprint.values()) for node, by_fingerprint in ordered}

"""AlertBlocks: posts of Alertmanager's become changes of the list, all of one post in one transaction."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from app.engine.handler import BlocklistHandler, Command
from app.engine.handler import Outcome as Answer
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
    """What became of the alerts of a post, and of which nodes a limit forbade the block: id to sentence."""

    outcomes: Tally[AlertOutcome] = field(default_factory=Tally)
    refused: dict[str, str] = field(default_factory=dict)


class AlertBlocker:
    """Counts what it takes, once it is stored. Belongs to the event loop.

    `node_label` is the label that names the node, `duration` how long a block lasts from a post on (milliseconds).
    """

    def __init__(self, handler: BlocklistHandler, guard: LimitGuard, *, node_label: str, duration: int) -> None:
        self.posts = 0
        self.truncated = 0
        self.alerts: Tally[AlertOutcome] = Tally()
        self._handler = handler
        self._guard = guard
        self._node_label = node_label
        self._duration = duration

    async def process(self, post: AlertmanagerPost, author: Author, access: Role) -> Answer[AlertResults]:
        """Do what the alerts of a post ask for. Raises UnavailableError: then nothing is known to have changed."""
        read = [read_alert(value, self._node_label) for value in post.alerts]
        alerts_by_node = _by_node(alert for alert in read if isinstance(alert, Alert))
        answer = await self._handler.submit(lambda draft: self._apply(draft, alerts_by_node, access), author)
        results = answer.value
        results.outcomes.update(outcome for outcome in read if isinstance(outcome, AlertOutcome))
        for node, sentence in results.refused.items():
            log.warning("a limit forbids what an alert asks for", node=node, limit=sentence)
        self.posts += 1
        self.truncated += post.truncated
        self.alerts.update(results.outcomes)
        return answer

    def _apply(self, draft: Draft, alerts_by_node: Mapping[str, Sequence[Alert]], access: Role) -> AlertResults:
        def everything(draft: Draft) -> AlertResults:
            return AlertResults(
                Tally(out for node, alerts in alerts_by_node.items() for out in self._command(node, alerts)(draft))
            )

        # A look at the limits may go through the whole list: one for all of them, as mostly none is met.
        if len(alerts_by_node) > 1 and self._guard.dry_run(everything, access)(draft).refusal is None:
            return everything(draft)
        results = AlertResults()
        for node, alerts in alerts_by_node.items():
            try:
                outcomes = self._guard.enforce(self._command(node, alerts), access)(draft)
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
    """Of one alert that comes twice the last. First the nodes about which nothing fires: they make room in limits."""
    alerts_by_node: dict[str, dict[str, Alert]] = {}
    for alert in alerts:
        alerts_by_node.setdefault(alert.node, {})[alert.fingerprint] = alert
    return {
        node: list(alerts_by_node[node].values())
        for node in sorted(alerts_by_node, key=lambda node: _fires(alerts_by_node[node].values()))
    }


def _fires(alerts: Iterable[Alert]) -> bool:
    return any(alert.firing for alert in alerts)

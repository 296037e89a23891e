"""AlertBlocks: posts of Alertmanager's become changes of the list, all of one post in one transaction."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from app.engine.handler import BlocklistHandler, Command
from app.engine.handler import Outcome as Answer
from app.engine.limits import Guard
from app.integrations.alertmanager.rules import Alert, Outcome, decide
from app.integrations.alertmanager.wire import AlertmanagerPost, read_alert
from blocklist.model.changes import Author
from blocklist.model.draft import Draft
from blocklist.model.errors import LimitError
from blocklist.model.roles import Access

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of the alerts of a post, and of which nodes a limit forbade the block: id to sentence."""

    outcomes: Tally[Outcome] = field(default_factory=Tally)
    refused: dict[str, str] = field(default_factory=dict)


class AlertBlocks:
    """Counts what it takes, once it is stored. Belongs to the event loop.

    `node_label` is the label that names the node, `duration` how long a block lasts from a post on (milliseconds).
    """

    def __init__(self, handler: BlocklistHandler, guard: Guard, *, node_label: str, duration: int) -> None:
        self.posts = 0
        self.truncated = 0
        self.alerts: Tally[Outcome] = Tally()
        self._handler = handler
        self._guard = guard
        self._node_label = node_label
        self._duration = duration

    async def take(self, post: AlertmanagerPost, author: Author, access: Access) -> Answer[Taken]:
        """Do what the alerts of a post ask for. Raises UnavailableError: then nothing is known to have changed."""
        read = [read_alert(value, self._node_label) for value in post.alerts]
        about = _by_node(alert for alert in read if isinstance(alert, Alert))
        answer = await self._handler.submit(lambda draft: self._carry_out(draft, about, access), author)
        taken = answer.value
        taken.outcomes.update(outcome for outcome in read if isinstance(outcome, Outcome))
        for node, sentence in taken.refused.items():
            log.warning("a limit forbids what an alert asks for", node=node, limit=sentence)
        self.posts += 1
        self.truncated += post.truncated
        self.alerts.update(taken.outcomes)
        return answer

    def _carry_out(self, draft: Draft, about: Mapping[str, Sequence[Alert]], access: Access) -> Taken:
        def everything(draft: Draft) -> Taken:
            return Taken(Tally(out for node, alerts in about.items() for out in self._command(node, alerts)(draft)))

        # A look at the limits may go through the whole list: one for all of them, as mostly none is met.
        if len(about) > 1 and self._guard.rehearsed(everything, access)(draft).refused is None:
            return everything(draft)
        taken = Taken()
        for node, alerts in about.items():
            try:
                outcomes = self._guard.guarded(self._command(node, alerts), access)(draft)
            except LimitError as error:
                taken.refused[node] = error.detail
                taken.outcomes[Outcome.LIMITED] += sum(alert.firing for alert in alerts)
                outcomes = self._command(node, [alert for alert in alerts if not alert.firing])(draft)
            taken.outcomes.update(outcomes)
        return taken

    def _command(self, node: str, alerts: Sequence[Alert]) -> Command[Sequence[Outcome]]:
        def run(draft: Draft) -> Sequence[Outcome]:
            step = decide(draft.blocked(node), alerts, draft.now, self._duration)
            if step.block is not None:
                draft.block(step.block, allow_merge=True)
            elif step.free:
                draft.unblock(node)
            return step.outcomes

        return run


def _by_node(alerts: Iterable[Alert]) -> dict[str, list[Alert]]:
    """Of one alert that comes twice the last. First the nodes about which nothing fires: they make room in limits."""
    about: dict[str, dict[str, Alert]] = {}
    for alert in alerts:
        about.setdefault(alert.node, {})[alert.mark] = alert
    return {node: list(about[node].values()) for node in sorted(about, key=lambda own: _fires(about[own].values()))}


def _fires(alerts: Iterable[Alert]) -> bool:
    return any(alert.firing for alert in alerts)

"""Applies posts of Alertmanager to the list: all alerts of a post in one transaction, unless they are many."""

from __future__ import annotations

import asyncio
import re
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Final, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.engine import Connection

from app.engine.handler import BlocklistHandler, Command, LimitGuard
from app.store.queries import Topic
from app.store.store import Store
from app.store.tables import AlertEvent, read_events, write_events
from blocklist.model.changes import Author
from blocklist.model.claims import MAX_CLAIMS, Claim, Claims, Repeat, Role, claim_of
from blocklist.model.draft import Draft, nodes_claimed_by
from blocklist.model.errors import InvalidError, LimitError
from blocklist.model.evidence import AutomaticBlocks, Dismissal, Dismissals
from blocklist.model.node import ACTION_BY_NAME, MAX_CAUSE_LENGTH, BlockAction, BlockedNode, node_id_of
from blocklist.wire.body import parse_json

log = structlog.get_logger(__name__)

# The bodies of Alertmanager's webhook, parsed leniently: versions differ, and other programs send it too.

_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
ALERTS_PER_TURN: Final = 2_000
"""Number of alerts that are read in one turn of the event loop: some ten milliseconds."""
_MAX_COUNT: Final = 2**53
"""A metric is a float: it has all integers up to this one, and none as large as JSON allows."""
_HOST_PORT: Final = re.compile(r"(?:\[(?P<inner>[^\]]*)\]|(?P<host>[^:]*))(?::[0-9]*)?")


class AlertBody(BaseModel):
    """One alert; unknown fields are ignored."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    annotations: dict[str, str] = {}
    fingerprint: str = ""
    startsAt: Any = None  # noqa: N815
    endsAt: Any = None  # noqa: N815


class AlertmanagerPost(BaseModel):
    """A post of Alertmanager's webhook: a group of alerts. All other fields are ignored."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "version": "4",
                    "receiver": "blocklist",
                    "status": "firing",
                    "truncatedAlerts": 0,
                    "alerts": [
                        {
                            "status": "firing",
                            "labels": {
                                "alertname": "DiskReadOnly",
                                "instance": "worker-17:9100",
                                "blocklist": "evacuate",
                            },
                            "annotations": {"summary": "/data1 is read-only"},
                            "startsAt": "2026-11-21T07:55:04.371Z",
                            "endsAt": "0001-01-01T00:00:00Z",
                            "fingerprint": "809c736d29768b8c",
                        }
                    ],
                }
            ]
        }
    )

    alerts: Annotated[list[Any], Field(description="Alerts without the label `blocklist` are counted and ignored.")]
    truncatedAlerts: Annotated[Any, Field(description="Number of alerts that Alertmanager omitted.")] = 0  # noqa: N815

    @property
    def truncated(self) -> int:
        """The number of omitted alerts; 0 if the field is not a positive integer of at most 2^53."""
        count = self.truncatedAlerts
        return count if type(count) is int and 0 < count <= _MAX_COUNT else 0


class AlertsBody(BaseModel):
    """The outcomes of the alerts of a post."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"alerts": {"blocked": 1, "unlabelled": 2}, "truncatedAlerts": 0}]}
    )

    alerts: Annotated[dict[AlertOutcome, int], Field(description="Number of alerts by outcome.")]
    truncatedAlerts: int  # noqa: N815


def parse_post(body: bytes) -> AlertmanagerPost:
    """Parse a post. Raises InvalidError."""
    try:
        return AlertmanagerPost.model_validate(parse_json(body))
    except ValidationError:
        raise InvalidError("The body is not a post of Alertmanager: send an object with a list `alerts`.") from None


async def read_alerts(values: Sequence[object], node_label: str) -> list[Alert | AlertOutcome]:
    """What `read_alert` returns for each, read in several turns of the event loop."""
    read: list[Alert | AlertOutcome] = []
    for start in range(0, len(values), ALERTS_PER_TURN):
        read += [read_alert(value, node_label) for value in values[start : start + ALERTS_PER_TURN]]
        await asyncio.sleep(0)
    return read


def read_alert(value: object, node_label: str) -> Alert | AlertOutcome:
    """The alert, or the outcome that says why it is ignored."""
    try:
        alert = AlertBody.model_validate(value)
    except ValidationError:
        return AlertOutcome.UNREADABLE
    action = ACTION_BY_NAME.get(label := alert.labels.get("blocklist", ""))
    if action is None:
        return AlertOutcome.UNKNOWN_ACTION if label else AlertOutcome.UNLABELLED
    named = node_of(alert.labels, node_label)
    if named is None:
        return AlertOutcome.NO_NODE
    node = node_id_of(named)
    if node is None:
        return AlertOutcome.BAD_NODE
    return Alert(
        node=node,
        action=action,
        firing=alert.status == "firing",
        fingerprint=_fingerprint(alert),
        name=alert.labels.get("alertname", ""),
        summary=alert.annotations.get("summary", ""),
        started_at=_unix_millis(alert.startsAt),
        ended_at=_unix_millis(alert.endsAt) if alert.status == "resolved" else None,
    )


def _unix_millis(time: object) -> int | None:
    """A time as RFC 3339 writes it; None for anything else, and for Go's zero time in the year 1."""
    try:
        moment = datetime.fromisoformat(time) if isinstance(time, str) else None
        millis = 0 if moment is None or moment.tzinfo is None else int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
    return millis if millis > 0 else None


def node_of(labels: Mapping[str, str], node_label: str) -> str | None:
    """The node of an alert: from its label, otherwise from `instance`; None if it has neither."""
    if node := labels.get(node_label):
        return node[1:-1] if node[0] == "[" and node[-1] == "]" else node
    instance = labels.get("instance", "")
    match = _HOST_PORT.fullmatch(instance)
    # More than one colon and no brackets: an IPv6 address without a port.
    return ((match["inner"] or match["host"]) if match else instance) or None


def _fingerprint(alert: AlertBody) -> str:
    """The alert's fingerprint, which is constant while it fires; without one, a hash of the labels."""
    if _FINGERPRINT.fullmatch(alert.fingerprint):
        return alert.fingerprint
    labels = "\0".join(f"{name}\0{value}" for name, value in sorted(alert.labels.items()))
    return sha256(labels.encode(errors="surrogatepass")).hexdigest()[:16]


# Decides what alerts claim of a node, one claim for each. Pure; times are Unix milliseconds.


class AlertOutcome(StrEnum):
    BLOCKED = "blocked"
    MERGED = "merged"
    RENEWED = "renewed"
    UNCHANGED = "unchanged"
    DISMISSED = "dismissed"
    LATE = "late"
    FREED = "freed"
    KEPT = "kept"
    HELD = "held"
    CROWDED = "crowded"
    LIMITED = "limited"
    UNLABELLED = "unlabelled"
    UNKNOWN_ACTION = "unknown_action"
    NO_NODE = "no_node"
    BAD_NODE = "bad_node"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """An alert about a node. `fingerprint` identifies it in all posts: 16 hex digits.

    `started_at` and `ended_at` are its startsAt and endsAt, by the sender's clock (Unix ms); None if unknown. With
    `withdrawn` the post that it fires should have changed nothing.
    """

    node: str
    action: BlockAction
    firing: bool
    fingerprint: str
    name: str
    summary: str
    started_at: int | None = None
    ended_at: int | None = None
    withdrawn: bool = False

    @property
    def owner(self) -> str:
        """The owner of its claim."""
        return f"alertmanager/{self.fingerprint}"

    @property
    def last_at(self) -> int | None:
        """The later one of its times: senders may give an end before the beginning."""
        return _latest(self.started_at, self.ended_at)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The claims to put on one node, the owners whose claims to remove, and the outcome of each alert."""

    put: tuple[Claim, ...] = ()
    remove: tuple[str, ...] = ()
    outcomes: tuple[AlertOutcome, ...] = ()


# Which event of an alert a post is about. startsAt and endsAt are compared with each other alone: they are times of the
# sender's clock.


def is_late(alert: Alert, event: AlertEvent | None, now: int, duration: int) -> bool:
    """Whether the post is about an event that is over. `event` is the last one that is known of the alert.

    If such an alert is still posted as firing `duration` after the service saw it end, it fires: Alertmanager resolves
    an alert when it has not heard of Prometheus for some minutes, and later posts it with the same startsAt.
    """
    if event is None:
        return False
    if alert.firing:
        return _has_ended(alert, event) and event.resolved_at is not None and now < event.resolved_at + duration
    return event.started is not None and alert.last_at is not None and alert.last_at < event.started


def is_dismissed(alert: Alert, event: AlertEvent | None, dismissal: Dismissal | None) -> bool:
    """Whether somebody unblocked the node, and the alert has not been seen to end, and fired again, since then."""
    if dismissal is None:
        return False
    return event is None or event.revision < dismissal.revision or _has_ended(alert, event)


def is_known(alert: Alert, event: AlertEvent | None) -> bool:
    """Whether the service has seen this event of a firing alert before."""
    if event is None or alert.started_at is None:
        return False
    return alert.started_at <= max(event.started or 0, event.ended or 0)


def event_after(alert: Alert, event: AlertEvent | None, now: int, revision: int) -> AlertEvent:
    """The last event of an alert after a post that is not late; `revision` is that of the list then."""
    before = event or AlertEvent(None)
    started = _latest(before.started, alert.started_at)
    if alert.firing:
        return AlertEvent(started, revision=before.revision)
    return AlertEvent(started, _latest(before.ended, alert.last_at), now, revision)


def _latest(*times: int | None) -> int | None:
    return max((time for time in times if time is not None), default=None)


def _has_ended(alert: Alert, event: AlertEvent) -> bool:
    return alert.started_at is not None and event.ended is not None and alert.started_at <= event.ended


# What alerts claim of a node.


def held_claim(alert: Alert, claim: Claim, now: int, minimum: int) -> Claim | None:
    """The claim of a resolved alert until it has lasted for `minimum`; None if it has.

    An alert that flaps would otherwise block, and perhaps evacuate, the node again and again. A repeated block has a
    longer minimum, in the proportion in which its duration is longer than that of the first one.
    """
    repeat = claim.repeat
    longer = minimum if repeat is None else minimum * repeat.duration // repeat.usual
    block = claim.block
    end = min(block.end, block.start + longer)
    return None if alert.withdrawn or end <= now else replace(claim, block=replace(block, end=end))


def decide(
    claims: Claims,
    alerts: Sequence[Alert],
    now: int,
    duration: int,
    author: str | None,
    repeat: Repeat | None = None,
    *,
    minimum: int = 0,
    continues: bool = False,
) -> Decision:
    """Decide about one node from its alerts, each given at most once. `claims` are those on it at `now`.

    Each firing alert claims the node until now + `duration`, or that of `repeat` if the node was blocked before. It is
    renewed when less than half of `duration` is left, or if its action has changed. The claim of an alert that has
    resolved is removed, or ends when it has lasted for `minimum`. A node has at most MAX_CLAIMS claims: further alerts
    wait until there is room. With `continues` the service knows the events of all firing alerts.
    """
    node = _Node(claims, now, author, repeat, duration=duration, minimum=minimum, continues=continues)
    # Resolved alerts first: they make room.
    outcomes = {alert.fingerprint: node.resolve(alert) for alert in alerts if not alert.firing}
    outcomes |= {alert.fingerprint: node.fire(alert) for alert in alerts if alert.firing}
    ordered_outcomes = (outcomes[alert.fingerprint] for alert in alerts)
    freed = not node.remaining
    return Decision(
        put=tuple(node.put),
        remove=tuple(claim.owner for claim in claims if claim.owner not in node.remaining),
        outcomes=tuple(
            AlertOutcome.FREED if freed and outcome is AlertOutcome.KEPT else outcome for outcome in ordered_outcomes
        ),
    )


class _Node:
    """The claims on a node while its alerts are applied: `remaining` by owner, of which `put` are new or changed."""

    def __init__(
        self,
        claims: Claims,
        now: int,
        author: str | None,
        repeat: Repeat | None,
        *,
        duration: int,
        minimum: int,
        continues: bool,
    ) -> None:
        self._minimum = minimum
        self.remaining = {claim.owner: claim for claim in claims}
        self._was_free = not claims
        self._now = now
        self._duration = duration if repeat is None else repeat.duration
        self._author = author
        self._repeat = repeat
        self._continues = continues
        self._changed: set[str] = set()

    @property
    def put(self) -> list[Claim]:
        return [claim for owner, claim in self.remaining.items() if owner in self._changed]

    def resolve(self, alert: Alert) -> AlertOutcome:
        """Remove the alert's claim, or hold it. Whether that frees the node is known after all alerts."""
        claim = self.remaining.get(alert.owner)
        if claim is None:
            return AlertOutcome.UNCHANGED
        held = held_claim(alert, claim, self._now, self._minimum)
        if held is None:
            del self.remaining[alert.owner]
            return AlertOutcome.KEPT
        if held != claim:
            self.remaining[alert.owner] = held
            self._changed.add(alert.owner)
        return AlertOutcome.HELD

    def fire(self, alert: Alert) -> AlertOutcome:
        """Make or renew the alert's claim."""
        current = self.remaining.get(alert.owner)
        if current is not None:
            return self._renew(alert, current) if self._needs_renewal(alert, current) else AlertOutcome.UNCHANGED
        if len(self.remaining) >= MAX_CLAIMS:
            return AlertOutcome.CROWDED
        self._put(alert, self._now, alert_cause(alert.name, alert.summary), continues=self._continues)
        return AlertOutcome.BLOCKED if self._was_free else AlertOutcome.MERGED

    def _needs_renewal(self, alert: Alert, current: Claim) -> bool:
        block = current.block
        return 2 * (block.end - self._now) < self._duration or alert.action is not block.action or block.canary

    def _renew(self, alert: Alert, current: Claim) -> AlertOutcome:
        """The cause stays: a summary with a measured value would change it each time."""
        self._put(alert, current.block.start, current.block.cause, continues=current.continues)
        return AlertOutcome.RENEWED

    def _put(self, alert: Alert, start: int, cause: str, *, continues: bool) -> None:
        end = self._now + self._duration
        block = BlockedNode(id=alert.node, action=alert.action, start=start, end=end, cause=cause)
        claim = Claim(owner=alert.owner, author=self._author, block=block, repeat=self._repeat, continues=continues)
        self.remaining[claim.owner] = claim
        self._changed.add(claim.owner)


# The causes of alerts. Pure.

MAX_NAME: Final = 200
# Characters that a cause must not contain, and runs of white space.
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\\s]+")


def alert_cause(name: str, summary: str) -> str:
    """The cause of an alert's claim: one part, at most MAX_CAUSE_LENGTH characters."""
    text = f"alert {_truncate(_sanitize(name), MAX_NAME)}: {_sanitize(summary)}".removesuffix(": ").rstrip()
    return _truncate(text, MAX_CAUSE_LENGTH)


def _sanitize(text: str) -> str:
    """The text without commas and control characters, which a part of a cause must not contain."""
    return _FORBIDDEN.sub(" ", text.replace(",", ";")).strip()


def _truncate(text: str, limit: int) -> str:
    """The text, cut to `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


ALERTS_PER_TRANSACTION: Final = 500
"""Number of alerts that are applied in one transaction, which takes some 100 ms. All alerts about a node are applied
together."""
ALERTS_CHECKED_ALONE: Final = 10
"""Number of alerts that are applied in one transaction if a limit rejects some: then each node is checked alone, and
each check may scan the whole list, which takes milliseconds."""
_REMEMBERED: Final = frozenset(AlertOutcome) - {AlertOutcome.LATE, AlertOutcome.CROWDED, AlertOutcome.LIMITED}
"""Outcomes of alerts whose event is remembered: one that could not block the node may do so later, as a new one."""
_MADE: Final = {AlertOutcome.BLOCKED, AlertOutcome.MERGED, AlertOutcome.RENEWED, AlertOutcome.UNCHANGED}
_Claimed = Mapping[str, Sequence[str]]
"""Where the owners of resolved alerts have claims before the post."""
_Events = Mapping[str, AlertEvent]
"""The last events of alerts, by owner."""
_Assessed = list[tuple[Alert, AlertOutcome]]


@dataclass(frozen=True, slots=True)
class AlertResults:
    """The outcomes of the alerts of a post, and the nodes rejected by a limit: messages by node id."""

    assessed: _Assessed = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def add(self, other: AlertResults) -> None:
        self.assessed.extend(other.assessed)
        self.refused.update(other.refused)


class AlertBlocker:
    """Processes posts, and counts them once their changes are stored. Not thread-safe: for the event loop.

    `node_label` is the label that names the node, `duration` the length of a block, `minimum` that of one whose alert
    resolves (milliseconds).
    """

    def __init__(
        self,
        store: Store,
        handler: BlocklistHandler,
        guard: LimitGuard,
        dismissals: Dismissals,
        automatic_blocks: AutomaticBlocks,
        clock: Callable[[], int],
        *,
        node_label: str,
        duration: int,
        minimum: int,
    ) -> None:
        self.posts = 0
        self.truncated = 0
        self.alerts: Tally[AlertOutcome] = Tally()
        self._store = store
        self._handler = handler
        self._guard = guard
        self._dismissals = dismissals
        self._automatic_blocks = automatic_blocks
        self._clock = clock
        self._node_label = node_label
        self._duration = duration
        self._minimum = minimum

    async def process(
        self, post: AlertmanagerPost, author: Author, role: Role, check_owner: Callable[[str], None]
    ) -> tuple[Tally[AlertOutcome], int]:
        """Apply the alerts of a post; the number of alerts by outcome, and the revision after that.

        `check_owner` raises ForbiddenError for an owner for whom it may not make claims. Raises UnavailableError; then
        the changes, or some of them, may or may not be stored.
        """
        parsed = await read_alerts(post.alerts, self._node_label)
        alerts = [alert for alert in parsed if isinstance(alert, Alert)]
        for alert in alerts:
            check_owner(alert.owner)
        outcomes, revision = await self._apply_and_remember(alerts, author, role)
        outcomes.update(outcome for outcome in parsed if isinstance(outcome, AlertOutcome))
        self.posts += 1
        self.truncated += post.truncated
        self.alerts.update(outcomes)
        return outcomes, revision

    async def _apply_and_remember(
        self, alerts: Sequence[Alert], author: Author, role: Role
    ) -> tuple[Tally[AlertOutcome], int]:
        owners = {alert.owner for alert in alerts}
        events = await self._store.read(lambda connection: read_events(connection, owners)) if owners else {}
        results, revision = await self._submit(alerts, author, role, events)
        for node, message in results.refused.items():
            log.warning("limit rejected the block of an alert", node=node, limit=message)
        tally = Tally(outcome for _, outcome in results.assessed)
        if not owners:
            return tally, revision
        now = self._clock()
        late = await self._store.write(
            lambda connection: self._remember(connection, results.assessed, events, now, revision), Topic.ALERTS
        )
        if late:
            # Another post, perhaps to another replica, has said meanwhile that these are over.
            withdrawn = [replace(alert, firing=False, withdrawn=True) for alert, _ in late]
            _, revision = await self._submit(withdrawn, author, role, {})
            tally.subtract(outcome for _, outcome in late)
            tally[AlertOutcome.LATE] += len(late)
        return tally, revision

    def _remember(
        self, connection: Connection, assessed: _Assessed, events: _Events, now: int, revision: int
    ) -> _Assessed:
        """Store the events of these alerts; return those that blocked a node, and were over by then."""
        stored = read_events(connection, {alert.owner for alert, _ in assessed})
        news = {owner for owner, event in stored.items() if event != events.get(owner)}
        late: _Assessed = []
        after: dict[str, AlertEvent] = {}
        for alert, outcome in assessed:
            event = after.get(alert.owner, stored.get(alert.owner))
            if alert.owner in news and is_late(alert, event, now, self._duration):
                late += [(alert, outcome)] if alert.firing and outcome in _MADE else []
            elif outcome in _REMEMBERED:
                after[alert.owner] = event_after(alert, event, now, revision)
        write_events(connection, after, now)
        return late

    async def _submit(
        self, alerts: Sequence[Alert], author: Author, role: Role, events: _Events
    ) -> tuple[AlertResults, int]:
        results, revision = AlertResults(), 0
        parts = deque(_parts(_by_node(alerts), ALERTS_PER_TRANSACTION))
        while parts:
            part = parts.popleft()
            command = partial(self._apply, alerts_by_node=part, role=role, events=events)
            applied = await self._handler.submit(command, author)
            revision = applied.revision
            if applied.value is None:
                parts.extendleft(reversed([*_parts(part, ALERTS_CHECKED_ALONE)]))
            else:
                results.add(applied.value)
        return results, revision

    def _apply(
        self,
        draft: Draft,
        alerts_by_node: Mapping[str, Sequence[Alert]],
        role: Role,
        events: _Events,
    ) -> AlertResults | None:
        """Apply all alerts, but those that a limit rejects; None, and nothing is applied, if they are too many then."""
        resolved = {it.owner for alerts in alerts_by_node.values() for it in alerts if not it.firing}
        claimed = nodes_claimed_by(draft, resolved, draft.now)

        def everything(draft: Draft) -> AlertResults:
            commands = (self._command(node, alerts, claimed, events) for node, alerts in alerts_by_node.items())
            return AlertResults([it for command in commands for it in command(draft)])

        # Checking limits may scan the whole list. Usually none is reached, so check all nodes at once first.
        if len(alerts_by_node) > 1 and self._guard.dry_run(everything, role)(draft).refusal is None:
            return everything(draft)
        if len(alerts_by_node) > ALERTS_CHECKED_ALONE:
            return None
        results = AlertResults()
        for node, alerts in alerts_by_node.items():
            try:
                assessed = self._guard.enforce(self._command(node, alerts, claimed, events), role)(draft)
            except LimitError as error:
                results.refused[node] = error.detail
                assessed = [(alert, AlertOutcome.LIMITED) for alert in alerts if alert.firing]
                ended = [alert for alert in alerts if not alert.firing]
                assessed += self._command(node, ended, claimed, events)(draft)
            results.assessed.extend(assessed)
        return results

    def _command(self, node: str, alerts: Sequence[Alert], claimed: _Claimed, events: _Events) -> Command[_Assessed]:
        def run(draft: Draft) -> _Assessed:
            ignored = {alert.fingerprint: why for alert in alerts if (why := self._ignored(draft, alert, events))}
            counted = [alert for alert in alerts if alert.fingerprint not in ignored]
            current = draft.get_blocked(node)
            claims = () if current is None else draft.live_claims(current)
            continues = all(is_known(alert, events.get(alert.owner)) for alert in counted if alert.firing)
            repeat = self._automatic_blocks.repeat(draft, node, self._duration, draft.now, continues=continues)
            author = draft.author.name
            decision = decide(
                claims, counted, draft.now, self._duration, author, repeat, minimum=self._minimum, continues=continues
            )
            if decision.put or decision.remove:
                draft.change_claims(node, decision.put, decision.remove)
            elsewhere = partial(_resolve_elsewhere, draft, claimed, self._minimum)
            outcomes = map(elsewhere, counted, decision.outcomes)
            return [
                *zip(counted, outcomes, strict=True),
                *((alert, ignored[alert.fingerprint]) for alert in alerts if alert.fingerprint in ignored),
            ]

        return run

    def _ignored(self, draft: Draft, alert: Alert, events: _Events) -> AlertOutcome | None:
        """Why a post changes nothing; None if it counts."""
        event = events.get(alert.owner)
        if is_late(alert, event, draft.now, self._duration):
            return AlertOutcome.LATE
        dismissal = self._dismissals.find(draft, alert.node, alert.owner) if alert.firing else None
        return AlertOutcome.DISMISSED if is_dismissed(alert, event, dismissal) else None


def _resolve_elsewhere(
    draft: Draft, claimed: _Claimed, minimum: int, alert: Alert, outcome: AlertOutcome
) -> AlertOutcome:
    """Remove, or hold, the claims that a resolved alert has under other names; the outcome after that.

    What the name of its node means may be another node than when it fired, or none, as labels, blocks and what is known
    about machines change. Nobody else would remove them before their end.
    """
    owner = alert.owner
    for node_id in () if alert.firing else claimed.get(owner, ()):
        node = draft.get(node_id)
        claim = None if node is None else claim_of(draft.live_claims(node), owner)
        if claim is None:
            continue
        held = held_claim(alert, claim, draft.now, minimum)
        if held is None:
            draft.remove_claim(node_id, owner)
            outcome = AlertOutcome.FREED if draft.get(node_id) is None else AlertOutcome.KEPT
            continue
        if held != claim:
            draft.change_claims(node_id, [held], [])
        outcome = AlertOutcome.HELD
    return outcome


def _by_node(alerts: Iterable[Alert]) -> dict[str, list[Alert]]:
    """Alerts by node; the latest one if repeated. Nodes with only resolved alerts come first: they make room."""
    by_node: dict[str, dict[str, Alert]] = {}
    for alert in alerts:
        found = by_node.setdefault(alert.node, {})
        before = found.get(alert.fingerprint)
        if before is None or not _is_over(alert, before):
            found[alert.fingerprint] = alert
    ordered = sorted(by_node.items(), key=lambda item: any(alert.firing for alert in item[1].values()))
    return {node: list(by_fingerprint.values()) for node, by_fingerprint in ordered}


def _is_over(alert: Alert, other: Alert) -> bool:
    """Whether another post about the same alert, in whatever order, is about the end of its event, or a later one."""
    if alert.started_at is None or other.started_at is None:
        return False
    return (alert.started_at, not alert.firing) < (other.started_at, not other.firing)


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

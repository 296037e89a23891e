"""Compares the change log, and what clients saw, with the reference model; during a run and afterwards.

Each response names a revision, and the log has an order. So all operations have an order that explains their responses
if each response agrees with the log at its revision, and no operation misses what was answered before it began.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.chaos import model
from tests.chaos.evidence import EvidenceReports
from tests.chaos.faults import FaultLog
from tests.chaos.model import Block, Claims, State
from tests.chaos.operation import PUTS, PUTS_OF_SEVERAL, READS, UNBLOCKS, Kind, Operation

MAX_LATE_MS: Final = 1_000
"""How late the log may say that a claim has ended."""
_ACKNOWLEDGED: Final = {200, 201, 202}
_REFUSED: Final = {
    Kind.PUT: {409},
    Kind.PUT_MANY: {409},
    Kind.UNBLOCK: {404},
    Kind.UNBLOCK_MANY: {404},
    Kind.REMOVE_CLAIM: {404},
    Kind.REMOVE_CLAIMS: {404},
    Kind.READ_NODE: {404},
    Kind.READ_CLAIMS: {404},
    Kind.HEARTBEAT: {404, 409},
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A change of the log, and the states of its node before and after it."""

    revision: int
    type: str
    at: int
    node: str
    author: str | None
    before: State
    after: State

    def __str__(self) -> str:
        before, after = dict(self.before.claims), dict(self.after.claims)
        return f"revision {self.revision}: {self.type} {self.node} at {self.at} by {self.author}: {before} -> {after}"

    @property
    def by_time(self) -> bool:
        """Whether claims have ended, and nothing else has happened."""
        before, after = self.before.claims, self.after.claims
        ended = self.author is None and before != after and model.live(before, self.at) == after
        return self.type == "expired" or (self.type == "narrowed" and ended)


class Checker:
    """Takes changes in order with `apply`, and operations with `check`; `violations` grows."""

    def __init__(self, faults: FaultLog, reports: EvidenceReports, max_late_ms: int = MAX_LATE_MS) -> None:
        self.violations: list[str] = []
        self.figures = Counter[str]()
        self.latest_ms = 0
        self.entries: list[Entry] = []
        self._faults = faults
        self._reports = reports
        self._max_late_ms = max_late_ms
        self._history: dict[str, list[tuple[int, State]]] = defaultdict(lambda: [(0, State())])
        self._unblocked_at: dict[str, int] = defaultdict(int)
        self._waiting: list[Operation] = []
        self._unexplained: dict[int, Entry] = {}
        self._explained: dict[Operation, list[str]] = defaultdict(list)
        self._unknown: dict[str, list[Operation]] = defaultdict(list)
        """Changes of unknown outcome, by node."""
        self._answered: list[Operation] = []
        self._highest: dict[tuple[str, int], int] = defaultdict(int)
        """The highest revision in the responses of a replica to a client."""
        self._lists: dict[str | None, str] = {}
        self._tags: dict[str, str | None] = {}
        self._histories: set[str] = set()
        self._reported: set[tuple[str, str, int]] = set()

    # The log by itself

    def apply(self, change: Mapping[str, Any]) -> None:
        """The next change of the log."""
        entry = self._read(change)
        if entry.revision != len(self.entries) + 1:
            self.violations.append(f"the log has revision {entry.revision} after {len(self.entries)}")
        self.violations += [f"{fault}: {entry}" for fault in self._faults_of(entry, change)]
        self.entries.append(entry)
        self._history[entry.node].append((entry.revision, entry.after))
        self.figures[f"changes: {entry.type}"] += 1
        self.figures["claims made or changed"] += sum(
            entry.before.claims.get(owner) != block for owner, block in entry.after.claims.items()
        )
        if entry.type == "unblocked" and entry.author != "alertmanager":
            self._unblocked_at[entry.node] = entry.at
        if not entry.by_time and entry.author != model.EVIDENCE:
            self._unexplained[entry.revision] = entry

    def _read(self, change: Mapping[str, Any]) -> Entry:
        node, at, kind, author = change["node"]["id"], int(change["at"]), change["type"], change["createdBy"]
        before = self._history[node][-1][1]
        claims: Claims = {}
        if kind not in {"unblocked", "expired"}:
            implied = {author or model.ANONYMOUS: model.read_block(change["node"])}
            claims = model.read_claims(change["claims"]) if "claims" in change else implied
        dismissed = {it["owner"]: at for it in change.get("dismissed", ())}
        after = State(claims, {**before.dismissed, **dismissed})
        return Entry(
            revision=change["revision"], type=kind, at=at, node=node, author=author, before=before, after=after
        )

    def _faults_of(self, entry: Entry, change: Mapping[str, Any]) -> Iterator[str]:
        shown = model.read_block(change["node"])
        freed = None if entry.before.block is None else entry.before.block._replace(canary=False)
        if shown != (entry.after.block or freed):
            yield f"the block {shown} is not the merge of the claims"
        if entry.type != _type_of(entry):
            yield f"the type should be {_type_of(entry)}"
        if entry.type != "unblocked" and "dismissed" in change:
            yield "only unblocking dismisses"
        if entry.by_time:
            yield from self._expiry_faults(entry)
        elif model.live(entry.before.claims, entry.at) != entry.before.claims:
            yield "a claim had ended before"
        if entry.author == model.EVIDENCE:
            yield from self._evidence_faults(entry)
        yield from _new_claim_faults(entry)

    def _expiry_faults(self, entry: Entry) -> Iterator[str]:
        ended = [block.end for owner, block in entry.before.claims.items() if owner not in entry.after.claims]
        if not ended or model.live(entry.before.claims, entry.at) != entry.after.claims:
            yield "ended before its last claim"
        else:
            late = self._late(min(ended), entry.at)
            self.latest_ms = max(self.latest_ms, late)
            if late > self._max_late_ms:
                yield f"ended {late} ms late"

    def _late(self, end: int, at: int) -> int:
        return at - end - self._faults.excused(end, at)

    def _evidence_faults(self, entry: Entry) -> Iterator[str]:
        others = model.remove_claim(model.EVIDENCE)
        kept = others(entry.before, {}, entry.at)
        if kept != others(entry.after, {}, entry.at) or model.EVIDENCE not in entry.after.claims:
            yield "evidence changed another claim"
            return
        if entry.after.claims[model.EVIDENCE].end > self._reports.latest_end(entry.node, entry.at):
            yield "evidence outlives its last report"
        new = model.EVIDENCE not in entry.before.claims
        if new and not self._reports.may_claim(entry.node, entry.at, self._unblocked_at[entry.node]):
            yield "there is no new evidence"

    @property
    def nodes(self) -> list[str]:
        """All nodes in the log."""
        return list(self._history)

    def require_swept(self, now: int) -> None:
        """The log was read completely after `now`: no claim may have ended long before."""
        for node, states in self._history.items():
            for owner, block in states[-1][1].claims.items():
                key = (node, owner, block.end)
                if self._late(block.end, now) > self._max_late_ms and key not in self._reported:
                    self._reported.add(key)
                    self.violations.append(f"{node} outlives the claim of {owner}, {block}, at {now}")

    # What clients saw

    def check(self, operations: Iterable[Operation]) -> None:
        """Check what clients saw, as far as the log is known. Those of a client are in order."""
        new = list(operations)
        for operation in new:
            self.violations += [f"{fault}: {operation}" for fault in self._revision_faults(operation)]
        waiting, self._waiting = [*self._waiting, *new], []
        for operation in waiting:
            if operation.revision is not None and operation.revision > len(self.entries) and not operation.unknown:
                self._waiting.append(operation)
            else:
                self._count(operation)
                self.violations += [f"{fault}: {operation}" for fault in self._check(operation)]

    def finish(self) -> None:
        """All is known: what is not explained by an acknowledged request must be by one of unknown outcome."""
        self.violations += [f"a revision that is not in the log: {it}" for it in self._waiting]
        for entry in self._unexplained.values():
            operation = next((it for it in self._unknown[entry.node] if self._explains(it, entry)), None)
            if operation is None:
                self.violations.append(f"no request explains {entry}")
            else:
                self._explained[operation].append(entry.node)
                self.figures["changes of unknown outcome that were committed"] += 1
        for operation in {it for unknown in self._unknown.values() for it in unknown}:
            done = len(self._explained[operation])
            if operation.request.kind in PUTS_OF_SEVERAL and done not in {0, len(operation.request.effects)}:
                self.violations.append(f"only {done} of the nodes were changed: {operation}")
        self.violations += self._order_faults()

    def _revision_faults(self, operation: Operation) -> Iterator[str]:
        """The responses of a replica to a client do not go back, and a read is not below its minRevision."""
        if operation.revision is None or operation.status == 503:
            return
        at = operation.client, operation.replica
        if operation.revision < max(self._highest[at], operation.min_revision):
            yield f"comes after revision {self._highest[at]}"
        self._highest[at] = max(self._highest[at], operation.revision)

    def _order_faults(self) -> Iterator[str]:
        """Changes, refusals and ordered reads must know every change that was answered before they began."""
        returned, floor = deque(sorted(self._answered, key=lambda it: it.returned)), 0
        for operation in sorted(self._answered, key=lambda it: it.invoked):
            while returned and returned[0].returned < operation.invoked:
                floor = max(floor, returned.popleft().revision or 0)
            for node in self._ordered_nodes(operation):
                if (last := self._last_change(node, floor)) > (operation.revision or 0):
                    yield f"{node} had been changed in revision {last}, which was answered before: {operation}"

    def _ordered_nodes(self, operation: Operation) -> Iterable[str]:
        request = operation.request
        if request.kind not in READS:
            return request.effects
        if not request.ordered:
            return ()
        return list(self._history) if request.node is None else [request.node]

    def _last_change(self, node: str, revision: int) -> int:
        """The revision of the node's last change up to this one."""
        states = self._history[node]
        return states[bisect_right(states, revision, key=lambda it: it[0]) - 1][0]

    def state(self, node: str, revision: int) -> State:
        """The node at a revision."""
        states = self._history[node]
        return states[bisect_right(states, revision, key=lambda it: it[0]) - 1][1]

    def _count(self, operation: Operation) -> None:
        outcome = "no response" if operation.status is None else str(operation.status)
        self.figures[f"{operation.request.kind}: {outcome}"] += 1

    def _check(self, operation: Operation) -> Iterator[str]:
        status = operation.status
        if operation.history is not None:
            self._histories.add(operation.history)
            if len(self._histories) > 1:
                yield "another history"
        if status == 503 and not operation.retry_after:
            yield "a 503 without Retry-After"
        if operation.unknown:
            for node in operation.request.effects:
                self._unknown[node].append(operation)
        elif status == 400 and operation.request.earliest_end <= operation.returned:
            return
        elif status not in _ACKNOWLEDGED | _REFUSED.get(operation.request.kind, set()):
            yield "not in the contract"
        else:
            yield from self._check_answer(operation)

    def _check_answer(self, operation: Operation) -> Iterator[str]:
        if operation.revision is not None:
            self._answered.append(operation)
        match operation.request.kind:
            case Kind.HEARTBEAT:
                return
            case Kind.READ_NODE:
                assert operation.request.node is not None
                shown = model.read_block(operation.body) if operation.status == 200 else None
                yield from self._block_faults(operation, operation.request.node, shown)
            case Kind.READ_LIST:
                yield from self._check_list(operation)
            case Kind.READ_CLAIMS:
                yield from self._check_claims(operation)
            case _ if operation.acknowledged:
                yield from self._check_change(operation)
            case _:
                yield from self._check_refusal(operation)

    def _check_list(self, operation: Operation) -> Iterator[str]:
        for node in self._history.keys() | operation.body.keys():
            shown = model.read_block(operation.body[node]) if node in operation.body else None
            yield from self._block_faults(operation, node, shown)
        text = json.dumps(operation.body, sort_keys=True)
        if (self._lists.setdefault(operation.etag, text), self._tags.setdefault(text, operation.etag)) != (
            text,
            operation.etag,
        ):
            yield "ETag and list do not belong together"

    def _block_faults(self, operation: Operation, node: str, shown: Block | None) -> Iterator[str]:
        """A node in a list must be as at its revision; one that has ended is left out."""
        assert operation.revision is not None
        held = self.state(node, operation.revision).block
        if shown is None and held is not None and held.end > operation.returned:
            yield f"{node} is missing: {held}"
        elif shown is not None and (shown != held or shown.end <= operation.invoked):
            yield f"{node} is shown, but was {held}"

    def _check_claims(self, operation: Operation) -> Iterator[str]:
        assert operation.revision is not None
        node = operation.request.node
        assert node is not None
        held = self.state(node, operation.revision).claims
        shown = model.read_claims(operation.body["claims"]) if operation.status == 200 else {}
        if not any(shown == model.live(held, at) for at in _moments(held, operation)):
            yield f"the claims were {dict(held)}"

    def _check_refusal(self, operation: Operation) -> Iterator[str]:
        """A refusal must have been right at its revision, at some time between request and response."""
        assert operation.revision is not None
        request = operation.request
        if request.must_be_free:
            blocks = [self.state(node, operation.revision).block for node in request.must_be_free]
            right = any(block is not None and block.end > operation.invoked for block in blocks)
            yield from self._body_faults(operation)
        else:
            absent = [self._needs_nothing(operation, node, operation.revision) for node in request.effects]
            right = all(absent) if request.kind is Kind.UNBLOCK_MANY else any(absent)
        if not right:
            yield "the refusal was wrong"

    def _check_change(self, operation: Operation) -> Iterator[str]:
        """Its changes must be the last ones up to its revision; the nodes without one must have needed none."""
        assert operation.revision is not None
        made = self._take_changes(operation, operation.revision)
        for entry in made:
            if not operation.invoked <= entry.at <= operation.returned:
                yield f"made at another time: {entry}"
        for node in operation.request.effects.keys() - {entry.node for entry in made}:
            if not self._needs_nothing(operation, node, operation.revision):
                yield f"not in the log: {node} at its revision is {self.state(node, operation.revision)}"
        created = {node for node, status in _statuses(operation).items() if status == 201}
        if more := created - {entry.node for entry in made if entry.type == "blocked"}:
            yield f"a 201 for a block that it did not make: {more}"
        yield from self._body_faults(operation)

    def _take_changes(self, operation: Operation, revision: int) -> list[Entry]:
        """The changes that it made, back from its revision; no other operation can have made them."""
        made: list[Entry] = []
        while revision:
            entry = self.entries[revision - 1]
            if revision in self._unexplained and self._explains(operation, entry):
                self._explained[operation].append(entry.node)
                made.append(self._unexplained.pop(revision))
            elif not made or not self._belongs(entry, operation):
                break
            revision -= 1
        return made

    def _belongs(self, entry: Entry, operation: Operation) -> bool:
        """Whether it is an expiry that the operation may have committed before its own change."""
        return entry.by_time and entry.node in operation.request.effects and entry.at >= operation.invoked

    def _explains(self, operation: Operation, entry: Entry) -> bool:
        """Whether the operation makes this change of a node, which it has not made yet."""
        effect = operation.request.effects.get(entry.node)
        if effect is None or operation.invoked > entry.at or entry.node in self._explained[operation]:
            return False
        claims = effect(entry.before, entry.after.claims, entry.at)
        return list(claims.items()) == list(entry.after.claims.items()) and self._dismissal_fits(operation, entry)

    def _dismissal_fits(self, operation: Operation, entry: Entry) -> bool:
        unblocked = operation.request.kind in UNBLOCKS
        required = model.automatic(entry.before.claims) if unblocked else set()
        dismissed = {it for it, at in entry.after.dismissed.items() if entry.before.dismissed.get(it) != at}
        new_start = all(
            operation.invoked <= block.start <= entry.at
            for owner, block in entry.after.claims.items()
            if owner not in entry.before.claims or block.start < entry.before.claims[owner].start
        )
        return dismissed == required and new_start

    def _needs_nothing(self, operation: Operation, node: str, revision: int) -> bool:
        """Whether the state at this revision is already as the operation makes it."""
        state = self.state(node, revision)
        for at in _moments(state.claims, operation):
            alive = replace(state, claims=model.live(state.claims, at))
            if operation.request.effects[node](alive, alive.claims, at) == alive.claims:
                return True
        return False

    def _body_faults(self, operation: Operation) -> Iterator[str]:
        """The node in the response must be as at its revision: a claim that has ended counts until the log says so."""
        shown = _shown(operation)
        assert operation.revision is not None
        for node, block in shown.items():
            held = self.state(node, operation.revision)
            if block != held.block:
                yield f"the response has {block}, but {node} was {held}"


def _statuses(operation: Operation) -> dict[str, int | None]:
    """The status of each node in the response to a PUT of blocks."""
    if operation.request.kind is Kind.PUT_MANY:
        return {node: result["status"] for node, result in operation.body.items()}
    return dict.fromkeys(operation.request.effects if operation.request.kind in PUTS else (), operation.status)


def _shown(operation: Operation) -> dict[str, Block]:
    """The nodes in the response to one of these requests, by id."""
    kind, body = operation.request.kind, operation.body
    if kind is Kind.PUT_MANY:
        nodes = body["blockedNodes"] if operation.status == 409 else body
        return {node: model.read_block(fields) for node, fields in nodes.items()}
    if operation.status == 409:
        body = body["blockedNode"]
    elif kind is Kind.PUT_CLAIM or (kind is Kind.REMOVE_CLAIM and body["blocked"]):
        body = body["node"]
    elif kind not in PUTS:
        return {}
    return {body["id"]: model.read_block(body)}


def _moments(claims: Claims, operation: Operation) -> list[int]:
    """The times at which the claims may have been looked at: before and after each end."""
    ends = [block.end for block in claims.values() if operation.invoked < block.end <= operation.returned]
    return [operation.invoked, *ends, operation.returned]


def _new_claim_faults(entry: Entry) -> Iterator[str]:
    after = entry.after.claims
    ended = after.keys() - model.live(after, entry.at).keys()
    # A short claim may end after its request was accepted, and before the change is committed.
    if any(after[owner] == entry.before.claims.get(owner) for owner in ended):
        yield "a claim is kept that has ended"
    for owner in after.keys() - entry.before.claims.keys():
        # The cause of an alert says since when it fires.
        if owner.startswith(model.ALERT_OWNERS) and int(after[owner].cause.rpartition(" ")[2]) <= (
            entry.before.dismissed.get(owner, 0)
        ):
            yield f"{owner} was dismissed, and has not resolved since"


def _type_of(entry: Entry) -> str:
    """The type that a change with these states must have."""
    before, after = entry.before.block, entry.after.block
    if after is None:
        ended = not model.live(entry.before.claims, entry.at)
        return "expired" if ended else "unblocked"
    if before is None:
        return "blocked"
    removed = entry.before.claims.keys() - entry.after.claims.keys()
    weaker = after.action < before.action or after.canary > before.canary
    shorter = after.end < before.end or after.start > before.start
    return "narrowed" if removed or weaker or shorter else "merged"

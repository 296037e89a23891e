"""The actors: each sends requests of its own kind, in a thread of its own, until the run is over."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count
from typing import Any, Final

from tests.chaos import model
from tests.chaos.evidence import EvidenceReports
from tests.chaos.model import Alert, BlockSpec
from tests.chaos.operation import PUTS_OF_SEVERAL, Kind, Operation, RecordingClient, Request
from tests.integration.bodies import EVACUATE, MARK, PERMANENT

RACKS: Final = {f"rack-{rack}": [f"node-{rack}{place}" for place in "abcd"] for rack in (1, 2)}
NODES: Final = [node for nodes in RACKS.values() for node in nodes]
ALERT_DURATION_MS: Final = 4_000
"""How long an alert's claim lasts unless it is posted again."""
_RETRY_SECONDS: Final = 0.1
_BACKOFF_SECONDS: Final = 0.25
"""Additional pause after a request without a response, so that such requests do not dominate."""


class Actor(ABC):
    """Sends a request, pauses, and so on. After one without a response the next goes to another replica.

    Half of these requests are sent again, unless they change several nodes: of those, the second may find a part done.
    """

    mean_pause_seconds = 1.0

    def __init__(self, name: str, seed: str, client: RecordingClient) -> None:
        self.name = name
        self.rng = random.Random(f"{seed} {name}")
        self.client = client
        self._numbers = count(1)
        self._replica = self.rng.randrange(client.replicas)

    def run(self, stop: threading.Event, pace: float) -> None:
        """Act until `stop` is set; `pace` divides the pauses."""
        while not stop.wait(self.rng.expovariate(pace / self.mean_pause_seconds)):
            for request in self.requests():
                while (
                    self.send(request).unknown
                    and not stop.wait(_BACKOFF_SECONDS)
                    and request.kind not in PUTS_OF_SEVERAL
                    and self.rng.random() < 0.5
                ):
                    pass

    @abstractmethod
    def requests(self) -> Iterator[Request]:
        """The next requests."""

    def send(self, request: Request) -> Operation:
        done = self.client.send(request, self._replica)
        if done.unknown or self.rng.random() < 0.3:
            self._replica = self.rng.randrange(self.client.replicas)
        return done

    def spec(self, cause: str | None = None) -> BlockSpec:
        """A block that lasts for seconds, or seldom for ever, with a cause of its own."""
        end = int(PERMANENT) if self.rng.random() < 0.15 else self.soon()
        return BlockSpec(action=self.action(), end=end, cause=cause or f"{self.name} {next(self._numbers)}")

    def soon(self) -> int:
        """An end within seconds: often so soon that several claims on a node end almost at once."""
        return self.client.now() + int(self.rng.choice([0.1, 0.5, 1, 2, 2, 4]) * 1000)

    def action(self) -> str:
        return self.rng.choice([MARK, MARK, EVACUATE])

    def some_nodes(self) -> list[str]:
        return self.rng.sample(NODES, self.rng.randint(2, 4))


class Operator(Actor):
    """Blocks, merges and unblocks nodes, one or several at once."""

    def requests(self) -> Iterator[Request]:
        makers = [self._put, self.put_merged, self._put_many, self._unblock, self._unblock_rack]
        yield self.rng.choices(makers, [25, 30, 10, 30, 5])[0]()

    def _put(self) -> Request:
        return _put_request(Kind.PUT, self.rng.choice(NODES), self.spec(), merge=False)

    def put_merged(self) -> Request:
        return _put_request(Kind.PUT_MERGED, self.rng.choice(NODES), self.spec(), merge=True)

    def _put_many(self) -> Request:
        specs = {node: self.spec() for node in self.some_nodes()}
        merged = {node for node in specs if self.rng.random() < 0.8}
        return Request(
            kind=Kind.PUT_MANY,
            method="PUT",
            path="/blocklist/nodes",
            body={node: {**body_of(spec), "allowMerge": node in merged} for node, spec in specs.items()},
            effects={node: model.put(spec) for node, spec in specs.items()},
            must_be_free=frozenset(specs.keys() - merged),
            earliest_end=min(spec.end for spec in specs.values()),
        )

    def _unblock(self) -> Request:
        node = self.rng.choice(NODES)
        path = f"/blocklist/nodes/{node}"
        return Request(kind=Kind.UNBLOCK, method="DELETE", path=path, effects={node: model.unblock})

    def _unblock_rack(self) -> Request:
        rack, nodes = self.rng.choice(list(RACKS.items()))
        return Request(
            kind=Kind.UNBLOCK_MANY,
            method="DELETE",
            path="/blocklist/nodes",
            params={"selector": f"rack={rack}"},
            effects=dict.fromkeys(nodes, model.unblock),
        )


class Maintainer(Actor):
    """Claims several nodes at once for the upgrade of their kernels, and withdraws these claims."""

    mean_pause_seconds = 2.0

    def requests(self) -> Iterator[Request]:
        specs = {node: self.spec() for node in self.some_nodes()}
        yield Request(
            kind=Kind.PUT_CLAIMS,
            method="PUT",
            path="/claims/kernel",
            body={node: body_of(spec) for node, spec in specs.items()},
            effects={node: model.put_claim("kernel", spec) for node, spec in specs.items()},
            earliest_end=min(spec.end for spec in specs.values()),
        )
        withdrawn = self.rng.sample(list(specs), self.rng.randint(1, len(specs)))
        yield Request(
            kind=Kind.REMOVE_CLAIMS,
            method="DELETE",
            path="/claims/kernel",
            params={"node": withdrawn},
            effects=dict.fromkeys(withdrawn, model.remove_claim("kernel")),
        )


class Detection(Actor):
    """Repeats what it claims, extends it, makes it shorter or weaker, and withdraws it. Some claims are canaries."""

    def __init__(self, name: str, seed: str, client: RecordingClient) -> None:
        super().__init__(name, seed, client)
        self._claimed: dict[str, BlockSpec] = {}

    def requests(self) -> Iterator[Request]:
        node = self.rng.choice(NODES)
        draw = self.rng.random()
        if draw < 0.15:
            self._claimed.pop(node, None)
            yield Request(
                kind=Kind.REMOVE_CLAIM,
                method="DELETE",
                path=f"/blocklist/nodes/{node}/claims/{self.name}",
                effects={node: model.remove_claim(self.name)},
            )
            return
        claimed = self._claimed.get(node)
        if claimed is None or claimed.end < self.client.now():
            claimed = self._with_canary(self.spec())
        elif draw < 0.5:
            claimed = self._with_canary(replace(claimed, action=self.action(), end=self.soon()))
        self._claimed[node] = claimed
        for _ in range(self.rng.randint(1, 3)):
            yield self._put(node, claimed)

    def _with_canary(self, spec: BlockSpec) -> BlockSpec:
        return replace(spec, canary=spec.action == MARK and self.rng.random() < 0.5)

    def _put(self, node: str, spec: BlockSpec) -> Request:
        return Request(
            kind=Kind.PUT_CLAIM,
            method="PUT",
            path=f"/blocklist/nodes/{node}/claims/{self.name}",
            body=body_of(spec),
            effects={node: model.put_claim(self.name, spec)},
            earliest_end=spec.end,
        )


class Alertmanager(Actor):
    """Alerts that flap. Each post has some of them, and is repeated until it is acknowledged, as Alertmanager does.

    Otherwise the service would not see some alerts end, and an alert that was dismissed stays so until it has ended.
    """

    mean_pause_seconds = 1.0

    def __init__(self, name: str, seed: str, client: RecordingClient) -> None:
        super().__init__(name, seed, client)
        self._alerts = [
            Alert(owner=_owner(number), node=node, action=MARK, firing=False, started_at=0, cause="")
            for number, node in enumerate([*NODES, *NODES[:4]])
        ]

    def requests(self) -> Iterator[Request]:
        places = self.rng.sample(range(len(self._alerts)), self.rng.randint(1, 4))
        for place in places:
            self._alerts[place] = self._next(self._alerts[place])
        posted = [alert for alert in map(self._alerts.__getitem__, places) if alert.started_at]
        if posted:
            post = _post(posted)
            yield from [post] * self.rng.choice([0, 0, 1])
            while self.send(post).unknown:
                time.sleep(_RETRY_SECONDS)

    def _next(self, alert: Alert) -> Alert:
        """Most stay as they are; some resolve, fire, or change their action."""
        draw = self.rng.random()
        if not alert.firing:
            if draw < 0.5:
                return alert
            started = self.client.now()
            return replace(alert, action=self.action(), firing=True, started_at=started, cause=_cause(started))
        if draw < 0.3:
            return replace(alert, firing=False)
        return replace(alert, action=self.action()) if draw < 0.4 else alert


class Application(Actor):
    """A listener whose heartbeats report a node, for some seconds, and then none until the evidence has expired."""

    mean_pause_seconds = 3.0

    def __init__(self, name: str, seed: str, client: RecordingClient, reports: EvidenceReports) -> None:
        super().__init__(name, seed, client)
        self._reports = reports
        # Both applications report the same node at about the same time.
        self._epoch = client.now()

    def requests(self) -> Iterator[Request]:
        since = (self.client.now() - self._epoch) // 1000
        turn, place = divmod(since, 95)
        node = NODES[turn * 3 % len(NODES)] if place < 30 else None
        path = f"/listeners/{self.name}"
        evidence = {} if node is None else {node: {"kind": "excluded", "reason": "Spark excluded the host."}}
        report = None if node is None else self._reports.begin(node, self.name, self.client.now())
        done = self.send(
            Request(
                kind=Kind.HEARTBEAT,
                method="POST",
                path=f"{path}/heartbeat",
                body={"sessionId": "s1", "evidence": evidence, "nodes": NODES},
            )
        )
        if report is not None:
            report.returned, report.counted = done.returned, done.acknowledged
        if done.status == 404:
            body = {"role": "JOB_MASTER", "sessionId": "s1"}
            yield Request(kind=Kind.HEARTBEAT, method="PUT", path=path, body=body)


class Reader(Actor):
    """Reads the list, a node and its claims; most reads ask for the highest revision that any client has seen."""

    def requests(self) -> Iterator[Request]:
        node = self.rng.choice(NODES)
        path = f"/blocklist/nodes/{node}"
        reads = (
            (Kind.READ_LIST, "/blocklist", None),
            (Kind.READ_NODE, path, node),
            (Kind.READ_CLAIMS, f"{path}/claims", node),
        )
        for kind, its_path, its_node in reads:
            ordered = self.rng.random() < 0.7
            yield Request(kind=kind, method="GET", path=its_path, node=its_node, ordered=ordered)


def body_of(spec: BlockSpec) -> dict[str, Any]:
    canary = {"canary": True} if spec.canary else {}
    return {"action": spec.action, "cause": spec.cause, "endTimestamp": str(spec.end), **canary}


def _put_request(kind: Kind, node: str, spec: BlockSpec, *, merge: bool) -> Request:
    return Request(
        kind=kind,
        method="PUT",
        path=f"/blocklist/nodes/{node}",
        body={**body_of(spec), "allowMerge": merge},
        effects={node: model.put(spec)},
        must_be_free=frozenset() if merge else frozenset({node}),
        earliest_end=spec.end,
    )


def _owner(number: int) -> str:
    return model.ALERT_OWNERS + sha256(f"alert {number}".encode()).hexdigest()[:16]


def _cause(started_at: int) -> str:
    return f"alert Flapping: since {started_at}"


def _post(alerts: Sequence[Alert]) -> Request:
    by_node: dict[str, list[Alert]] = defaultdict(list)
    for alert in alerts:
        by_node[alert.node].append(alert)
    return Request(
        kind=Kind.ALERTS,
        method="POST",
        path="/integrations/alertmanager",
        body={"alerts": [_alert_body(alert) for alert in alerts]},
        effects={node: model.post(its, ALERT_DURATION_MS) for node, its in by_node.items()},
    )


def _alert_body(alert: Alert) -> dict[str, Any]:
    started = datetime.fromtimestamp(alert.started_at / 1000, UTC).isoformat(timespec="milliseconds")
    label = "evacuate" if alert.action == EVACUATE else "mark"
    return {
        "status": "firing" if alert.firing else "resolved",
        "labels": {"alertname": "Flapping", "node": alert.node, "blocklist": label},
        "annotations": {"summary": f"since {alert.started_at}"},
        "startsAt": started,
        "fingerprint": alert.owner.removeprefix(model.ALERT_OWNERS),
    }

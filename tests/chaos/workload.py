"""Random requests on a few hot nodes and many others, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from tests.chaos.operation import Kind
from tests.chaos.register import Delete, Get, NodeRequest, Put

HOT: Final = tuple(f"hot-{number}" for number in range(1, 4))
COLD: Final = tuple(f"cold-{number}" for number in range(1, 41))
NODES: Final = (*HOT, *COLD)
MAX_SHORT_BLOCK_SECONDS: Final = 3.0
"""Maximum duration of short blocks; other blocks last an hour or for ever."""
_HOT_SHARE: Final = 0.6
"""Share of the requests for one node that go to a hot node."""
_WEIGHTS: Final = {Kind.PUT: 36, Kind.DELETE: 22, Kind.GET: 20, Kind.LIST: 14, Kind.PUT_MANY: 8}


@dataclass(frozen=True, slots=True)
class Request:
    """A request to send."""

    kind: Kind
    requested: Mapping[str, NodeRequest] = field(default_factory=dict)
    body: Any = None

    @property
    def method(self) -> str:
        return self.kind.partition(" ")[0]

    @property
    def path(self) -> str:
        if self.kind is Kind.LIST:
            return "/blocklist"
        return "/blocklist/nodes" + ("" if self.kind is Kind.PUT_MANY else f"/{next(iter(self.requested))}")


class Workload:
    """The requests of one client. Each change has its own cause, which identifies it in what others read.

    `now` gives Unix milliseconds.
    """

    def __init__(self, name: str, rng: random.Random, now: Callable[[], int]) -> None:
        self._name = name
        self._dice = rng
        self._now = now
        self._made = 0

    def next(self) -> Request:
        [kind] = self._dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        if kind is Kind.LIST:
            return Request(kind)
        if kind is Kind.PUT_MANY:
            return _put(kind, {node_id: self._block(node_id) for node_id in self._several()})
        node_id = self._dice.choice(HOT if self._dice.random() < _HOT_SHARE else COLD)
        if kind is Kind.PUT:
            return _put(kind, {node_id: self._block(node_id)})
        return Request(kind, {node_id: Get() if kind is Kind.GET else Delete()})

    def _several(self) -> list[str]:
        """Two to five nodes, in any order."""
        return self._dice.sample(NODES, self._dice.randint(2, 5))

    def _block(self, node_id: str) -> Put:
        self._made += 1
        node = BlockedNode(
            id=node_id,
            action=self._dice.choice(list(BlockAction)),
            start=0,
            end=self._end(),
            cause=f"{self._name}.{self._made}",
        )
        return Put(node, allow_merge=self._dice.random() < 0.5)

    def _end(self) -> int:
        draw = self._dice.random()
        if draw < 0.6:
            return self._now() + self._dice.randint(50, int(MAX_SHORT_BLOCK_SECONDS * 1000))
        return PERMANENT if draw < 0.8 else self._now() + 3_600_000


def _put(kind: Kind, requested: Mapping[str, Put]) -> Request:
    bodies = {node_id: _body(put) for node_id, put in requested.items()}
    return Request(kind, requested, bodies if kind is Kind.PUT_MANY else next(iter(bodies.values())))


def _body(put: Put) -> dict[str, Any]:
    node = put.node
    fields = {"action": node.action.name, "cause": node.cause, "allowMerge": put.allow_merge}
    return fields if node.permanent else {**fields, "endTimestamp": str(node.end)}

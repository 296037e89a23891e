"""The map that all visitors share: names in rows, and the states of all hosts as one string."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import Final
from urllib.parse import urlencode

from fastapi import Request
from markupsafe import Markup, escape

from app.page.map_hosts import Hosts, all_hosts
from app.page.map_rows import MapRow
from app.page.map_states import LEGENDS, UNSETTLED, MapState
from app.page.shared import shared_of
from app.service import service_of

MIN_AGE_MS: Final = 1_000
MS_PER_HOST: Final = 0.1
MS_PER_BLOCK: Final = 0.5
"""The map is computed at most once in the sum of these: some tenth of the time is spent on it, while somebody looks."""
MAX_HTML_AGE_MS: Final = 60_000


class Variant(Enum):
    """For whom the cells are made: where they lead to, or nowhere."""

    OPERATOR = "/page/block?node="
    READER = "/page/nodes/"
    WALL = ""


@dataclass(frozen=True)
class HostMap:
    """The map at a time. `layout` names the order of hosts, `states` has the code of each in this order."""

    hosts: Hosts

    @cached_property
    def layout(self) -> str:
        return hashlib.sha256(repr(self.hosts.rows).encode()).hexdigest()[:16]

    @cached_property
    def states(self) -> str:
        return "".join(map(self.hosts.state, chain.from_iterable(row.hosts for row in self.hosts.rows)))

    @property
    def counts(self) -> list[tuple[MapState, int]]:
        """The number of hosts in each state, in the order of the legend."""
        counts = Counter(self.states)
        return [(state, counts[state.value]) for state in LEGENDS]

    @property
    def total(self) -> int:
        return len(self.states)

    @property
    def settled(self) -> bool:
        return UNSETTLED.isdisjoint(map(MapState, set(self.states)))

    def max_age(self) -> float:
        """In milliseconds, from the constants above."""
        return MIN_AGE_MS + MS_PER_HOST * self.total + MS_PER_BLOCK * len(self.hosts.blocked)


async def host_map(request: Request) -> HostMap:
    """The map of the service that received the request."""

    async def compute() -> HostMap:
        return HostMap(await all_hosts(service_of(request)))

    return await shared_of(request).get("map", compute, HostMap.max_age)


def rows_html(request: Request, found: HostMap, variant: Variant) -> Sequence[tuple[MapRow, Markup]]:
    """The rows of the map with the HTML of their cells, made once for all visitors of a kind."""

    def render() -> Sequence[tuple[MapRow, Markup]]:
        return [(row, _cells(row, found.hosts, variant)) for row in found.hosts.rows]

    return shared_of(request).get_now(("cells", variant, found.layout, found.states), render, MAX_HTML_AGE_MS)


def table_url(row: MapRow) -> str:
    """The table of the group of a row."""
    return f"/page/map/hosts?{urlencode({'group': row.group.key})}"


def _cells(row: MapRow, hosts: Hosts, variant: Variant) -> Markup:
    """The cells of a row. Without the templates, as there may be 10,000 of them."""
    cells = []
    for host in row.hosts:
        state, name = hosts.state(host), escape(host)
        word, free = LEGENDS[state].word, state in {MapState.FREE, MapState.NOT_READY}
        if variant is Variant.WALL:
            cells.append(f'<span class="cell {state}">{name}, {word}</span>')
        else:
            path = variant.value if free else Variant.READER.value
            cells.append(f'<a class="cell {state}" tabindex="-1" href="{path}{name}">{name}, {word}</a>')
    return Markup("\n".join(cells))  # noqa: S704 - the ids are escaped

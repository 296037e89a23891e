"""The map that all visitors share: what has changed since a version of it, and its rows as HTML."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Final
from urllib.parse import urlencode

from fastapi import Request
from markupsafe import Markup, escape

from app.components import Components
from app.page.map_hosts import Hosts, all_hosts
from app.page.map_rows import MapRow
from app.page.map_states import LEGENDS, UNSETTLED, MapState

MIN_AGE_MS: Final = 1_000
MS_PER_HOST: Final = 0.1
MS_PER_BLOCK: Final = 0.5
"""The map is computed at most once in the sum of these: some tenth of the time is spent on it, while somebody looks."""
MAX_DIFFERENCES: Final = 2_000
"""Maximum number of cells that are sent one by one; beyond it, the page loads the whole map."""


class Variant(Enum):
    """For whom the cells are made: where they lead to, or nowhere."""

    OPERATOR = "/page/block?node="
    READER = "/page/nodes/"
    WALL = ""


@dataclass(frozen=True, slots=True)
class Differences:
    """The cells that have changed, by their number, with their codes."""

    cells: Sequence[tuple[int, str]]


@dataclass(kw_only=True, slots=True)
class HostMap:
    """The map at a time (Unix ms). `layout` names the order of hosts, `version` all states, `changed` that of each."""

    at: int
    hosts: Hosts
    layout: str
    version: int
    codes: str
    changed: list[int]
    html: dict[tuple[Variant, int], tuple[str, Markup]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Names this version of the map."""
        return f"{self.layout}.{self.version}"

    @property
    def counts(self) -> list[tuple[MapState, int]]:
        """The number of hosts in each state, in the order of the legend."""
        counts = Counter(self.codes)
        return [(state, counts[state.value]) for state in LEGENDS]

    @property
    def total(self) -> int:
        return len(self.codes)

    @property
    def settled(self) -> bool:
        return UNSETTLED.isdisjoint(map(MapState, set(self.codes)))

    def differences(self, since: str) -> Differences | None:
        """What has changed since a version with this name; None if the page must load the whole map."""
        layout, _, version = since.partition(".")
        if layout != self.layout or not version.isdecimal() or len(version) > 15:
            return None
        cells = [(place, self.codes[place]) for place, at in enumerate(self.changed) if at > int(version)]
        return Differences(cells) if len(cells) <= MAX_DIFFERENCES else None


class MapCache:
    """The map, computed one at a time in turns of the event loop."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._map: HostMap | None = None
        self._computing = asyncio.Lock()

    async def get(self) -> HostMap:
        """The map, as old as the constants above allow."""
        async with self._computing:
            now, found = self._components.clock(), self._map
            if found is None or not 0 <= now - found.at < _min_age(found):
                found = self._map = _next_map(found, await all_hosts(self._components), now)
            return found

    async def rows(self, host_map: HostMap, variant: Variant) -> list[tuple[MapRow, Markup]]:
        """The rows with the HTML of their cells; those in which nothing has changed are not rendered again."""
        rendered, begin = [], 0
        for number, row in enumerate(host_map.hosts.rows):
            codes = host_map.codes[begin : begin + len(row.hosts)]
            begin += len(row.hosts)
            known = host_map.html.get((variant, number))
            if known is None or known[0] != codes:
                known = host_map.html[variant, number] = codes, _cells(row, codes, variant)
                await asyncio.sleep(0)
            rendered.append((row, known[1]))
        return rendered


def map_cache_of(request: Request) -> MapCache:
    """The cache of the service that received the request."""
    cache: MapCache = request.app.state.map_cache
    return cache


def table_url(row: MapRow) -> str:
    """The table of the group of a row."""
    return f"/page/map/hosts?{urlencode({'group': row.group.key})}"


def _min_age(host_map: HostMap) -> float:
    return MIN_AGE_MS + MS_PER_HOST * host_map.total + MS_PER_BLOCK * len(host_map.hosts.blocked)


def _next_map(before: HostMap | None, hosts: Hosts, now: int) -> HostMap:
    codes = "".join(hosts.state(host).value for host in _in_order(hosts.rows))
    if before is None or before.hosts.rows != hosts.rows:
        layout = secrets.token_hex(4)
        return HostMap(at=now, hosts=hosts, layout=layout, version=1, codes=codes, changed=[1] * len(codes))
    version = before.version + (codes != before.codes)
    changed = [at if old == new else version for at, old, new in zip(before.changed, before.codes, codes, strict=True)]
    return HostMap(
        at=now, hosts=hosts, layout=before.layout, version=version, codes=codes, changed=changed, html=before.html
    )


def _in_order(rows: Sequence[MapRow]) -> Iterator[str]:
    return chain.from_iterable(row.hosts for row in rows)


def _cells(row: MapRow, codes: str, variant: Variant) -> Markup:
    """The cells of a row. Without the templates, as there may be 10,000 of them."""
    cells = []
    for host, code in zip(row.hosts, codes, strict=True):
        word, name = LEGENDS[MapState(code)].word, escape(host)
        if variant is Variant.WALL:
            cells.append(f'<span class="cell {code}">{name}, {word}</span>')
            continue
        free = MapState(code) in {MapState.FREE, MapState.NOT_READY}
        path = variant.value if free else Variant.READER.value
        cells.append(f'<a class="cell {code}" tabindex="-1" href="{path}{name}">{name}, {word}</a>')
    return Markup("\n".join(cells))  # noqa: S704 - the ids are escaped

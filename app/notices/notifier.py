"""Notifier: turns changes and reports into notices, and hands them to the targets.

It never delays a change: what it keeps in memory is bounded, and each target sends in a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Protocol

from app.notices.grouping import Event, NoticeGroups
from app.notices.observer import ListenerObserver
from app.notices.target import Target
from app.notices.tracked_nodes import TrackedNodes
from blocklist.model.changes import Change

TICK_SECONDS: Final = 0.2
"""Interval at which groups are closed and timeouts are noticed."""
OBSERVE_SECONDS: Final = 5.0
"""Interval at which what listeners report is compared with what was noticed."""
CLOSE_SECONDS: Final = 2.0
"""Time in which the last notices are sent when the service stops."""


class Notices(Protocol):
    """What is notified of changes. See Notifier."""

    @property
    def is_enabled(self) -> bool: ...

    def publish(self, changes: Sequence[Change], *, from_log: bool) -> None: ...

    def reset(self) -> None: ...

    async def run(self) -> None: ...

    async def close(self) -> None: ...


class NoNotices:
    """Without BLOCKLIST_NOTIFY_URL: nothing is kept or sent."""

    is_enabled: Final = False

    def publish(self, changes: Sequence[Change], *, from_log: bool) -> None:
        """Do nothing."""

    def reset(self) -> None:
        """Do nothing."""

    async def run(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class Notifier:
    """Belongs to the event loop.

    With several replicas, the one that committed a change sends the notice of it. All know what listeners report: of
    that, the one for which `is_first` is true sends notices; it is None while that is uncertain. `on_left_out` is
    called with a number of notices that are not sent.
    """

    is_enabled: Final = True

    def __init__(
        self,
        targets: Sequence[Target],
        groups: NoticeGroups,
        nodes: TrackedNodes,
        observer: ListenerObserver,
        *,
        replicated: bool,
        is_first: Callable[[], bool | None],
        on_left_out: Callable[[int], None],
    ) -> None:
        self._targets = targets
        self._groups = groups
        self._nodes = nodes
        self._observer = observer
        self._replicated = replicated
        self._is_first = is_first
        self._on_left_out = on_left_out

    def publish(self, changes: Sequence[Change], *, from_log: bool) -> None:
        """These changes were committed; `from_log`: read from the database, so with replicas by another one."""
        events = self._nodes.apply(changes)
        if not (from_log and self._replicated):
            self._add(events)

    def reset(self) -> None:
        """The list was read again."""
        self._nodes.clear()

    async def run(self) -> None:
        """Send notices; never returns. May be called again after an exception."""
        for target in self._targets:
            target.start()
        time = asyncio.get_running_loop().time
        next_observation = time() + OBSERVE_SECONDS
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if time() >= next_observation:
                next_observation = time() + OBSERVE_SECONDS
                await self._observe()
            self._send_due()
            for target in self._targets:
                target.check_timeout()

    async def close(self) -> None:
        """Send what is left, within CLOSE_SECONDS."""
        self._send_due(all_groups=True)
        for target in self._targets:
            target.close()
        deadline = monotonic() + CLOSE_SECONDS
        for target in self._targets:
            await asyncio.to_thread(target.join, max(0.0, deadline - monotonic()))

    async def _observe(self) -> None:
        is_first = self._is_first()
        if is_first is None:
            return
        # Also where another replica sends them: if this one takes over, what it has observed before is not news.
        events = await self._observer.observe()
        if is_first:
            self._add(events)

    def _add(self, events: Sequence[Event]) -> None:
        now = asyncio.get_running_loop().time()
        for event in events:
            self._groups.add(event, now)

    def _send_due(self, *, all_groups: bool = False) -> None:
        notices, left_out = self._groups.due(asyncio.get_running_loop().time(), all_groups=all_groups)
        for notice in notices:
            left_out += sum(not target.put(notice) for target in self._targets)
        if left_out:
            self._on_left_out(left_out)

"""BlocklistHandler: the one way to change the list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import structlog

from app.logs.request_ids import with_request_id
from app.store.queries import LoadedState, LogTail, StaleError
from blocklist.model.changes import Author, Change
from blocklist.model.draft import Draft
from blocklist.model.errors import BlocklistError, UnavailableError
from blocklist.model.tracker import BlocklistTracker

log = structlog.get_logger(__name__)
T = TypeVar("T")
Command = Callable[[Draft], T]
"""A change of the list: it works on a draft and returns its answer, or raises a BlocklistError changing nothing."""

MAX_BATCH: Final = 1000
"""Commands in one transaction: bounds how long the ones that come meanwhile wait."""


MAX_ATTEMPTS: Final = 20
"""How often a batch is decided anew while other replicas change the list; one of them always gets on."""
YIELD_SECONDS: Final = 0.02
"""How long a replica that was first waits for the one that came second, before it goes on."""


class ChangeLog(Protocol):
    """Where changes are kept durably, by all replicas, and may be read again. See app.store.store.Store."""

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None: ...

    async def tail(self, since: int) -> LogTail: ...

    async def load(self) -> LoadedState: ...

    async def renew_history(self, lost: str) -> None: ...


class Publisher(Protocol):
    """What moves on with the list; told in the event loop, and at once."""

    def publish(self, changes: Sequence[Change], *, from_log: bool) -> None:
        """The tracker has moved on by these changes; `found`: read from the log, not made here."""

    def reset(self, loaded: LoadedState) -> None:
        """The tracker has begun anew with this list."""


class Outcome(NamedTuple, Generic[T]):
    """What a command returned, the changes it made, and the revision after them (the present one if none)."""

    value: T
    changes: tuple[Change, ...]
    revision: int


OnOutcome = Callable[[Outcome[Any] | BlocklistError], None]
"""Told once how a command ended, in the event loop and at once."""


@dataclass(slots=True)
class _QueuedCommand:
    command: Command[Any]
    author: Author
    on_outcome: OnOutcome
    outcome: Outcome[Any] | BlocklistError | None = None


class BlocklistHandler:
    """Commands in, one transaction for all that wait, changes out.

    Belongs to the event loop: `run` is the only writer of the tracker, commands are applied in the order in which
    they came. While a transaction is at the disk the next ones gather, so that one fsync serves them all. An answer
    is given after its commit, also a refusal: it may rest on a change of the same transaction, or of another replica.

    Replicas write without a lock: a commit counts only where its changes follow the log. If another was first, the
    log is followed and the commands are decided anew, so they may run more than once, each time on another draft.
    Replicas that write hard at the same time take turns: after its commit each waits a moment for one of the others.
    """

    def __init__(
        self,
        tracker: BlocklistTracker,
        log: ChangeLog,
        clock: Callable[[], int],
        publisher: Publisher,
        *,
        max_queued: int,
    ) -> None:
        self._tracker = tracker
        self._log = log
        self._clock = clock
        self._publisher = publisher
        self._max_queued = max_queued
        self._queue: list[_QueuedCommand] = []
        self._wake = asyncio.Event()
        self._closed = False
        self._behind = False
        self._last_change: Change | None = None
        self._contended = False
        self._turn_granted = asyncio.Event()

    def submit(self, command: Command[T], author: Author) -> asyncio.Future[Outcome[T]]:
        """Carry out a command for its author; await the outcome.

        Raises what the command raises, or UnavailableError: then nothing is known to have changed.
        """
        answer: asyncio.Future[Outcome[T]] = asyncio.get_running_loop().create_future()
        self.submit_callback(command, with_request_id(author), partial(_resolve_future, answer))
        return answer

    def submit_callback(self, command: Command[Any], author: Author, on_outcome: OnOutcome) -> None:
        """The same, for who is told of the outcome. Raises UnavailableError when it takes no more."""
        if self._closed:
            raise UnavailableError("The service is stopping; try again.", retry_after=1)
        if len(self._queue) >= self._max_queued:
            raise UnavailableError("Too many changes are waiting for the database; try again.", retry_after=1)
        self._queue.append(_QueuedCommand(command, author, on_outcome))
        self._wake.set()

    @property
    def queue_length(self) -> int:
        """Commands that wait for the database."""
        return len(self._queue)

    def notify_remote_change(self) -> None:
        """Another replica may have changed the list, or a commit of ours may have happened all the same."""
        self._behind = True
        self._turn_granted.set()
        self._wake.set()

    async def run(self) -> None:
        """Work until `close`, and through what waits then; may be called again after it has failed."""
        if self._behind:
            self._wake.set()
        while not self._closed or self._queue:
            await self._wake.wait()
            self._wake.clear()
            if self._behind and not self._queue:
                with suppress(UnavailableError):
                    await self._catch_up()
            while self._queue:
                if self._contended:
                    await self._yield_turn()
                await self._collect_batch()
                batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
                await self._execute_batch(batch)

    def close(self) -> None:
        """Take no more commands."""
        self._closed = True
        self._wake.set()

    async def _execute_batch(self, batch: list[_QueuedCommand]) -> None:
        try:
            await self._commit(batch)
        except BlocklistError as error:
            for waiting in batch:
                waiting.outcome = error
        except Exception:
            log.exception("a batch of changes failed")
            for waiting in batch:
                waiting.outcome = UnavailableError("The change could not be stored; try again.", retry_after=1)
        for waiting in batch:
            waiting.on_outcome(waiting.outcome or UnavailableError("The change was not carried out."))

    async def _collect_batch(self) -> None:
        """While several come in let them come: a transaction of many costs little more than one of a few."""
        seen = 1
        while seen < len(self._queue) < MAX_BATCH:
            seen = len(self._queue)
            await asyncio.sleep(0)

    async def _yield_turn(self) -> None:
        """Until another replica has changed the list after this one did; not for long, as none may want to."""
        try:
            async with asyncio.timeout(YIELD_SECONDS):
                await self._turn_granted.wait()
        except TimeoutError:
            self._contended = False

    def _apply_commands(self, batch: list[_QueuedCommand]) -> Draft:
        draft = Draft(self._tracker, self._clock())
        for waiting in batch:
            before = len(draft.changes)
            draft.author = waiting.author
            try:
                value = waiting.command(draft)
            except BlocklistError as error:
                waiting.outcome = error
            else:
                waiting.outcome = Outcome(value, tuple(draft.changes[before:]), draft.revision)
        return draft

    async def _commit(self, batch: list[_QueuedCommand]) -> None:
        for _ in range(MAX_ATTEMPTS):
            if self._behind:
                await self._catch_up()
            draft = self._apply_commands(batch)
            try:
                await self._log.commit(draft.changes, after=self._tracker.revision, history=self._tracker.history)
            except StaleError:
                self._behind = self._contended = True
                continue
            except BaseException:
                # It may have happened all the same.
                self._behind = True
                raise
            if draft.changes:
                self._turn_granted.clear()
            self._advance(draft.changes, from_log=False)
            return
        raise UnavailableError("Other replicas change the list all the time; try again.", retry_after=1)

    async def _catch_up(self) -> None:
        """Take over what the log has beyond the tracker."""
        self._behind = False
        try:
            while not await self._catch_up_page():
                pass
        except BaseException:
            self._behind = True
            raise

    async def _catch_up_page(self) -> bool:
        """Take over some of it; whether that was all."""
        tracker = self._tracker
        news = await self._log.tail(tracker.revision)
        lost = news.revision < tracker.revision or (self._last_change and news.last and news.last != self._last_change)
        if news.history == tracker.history and lost:
            # A standby that was behind has taken over: what follows has nothing to do with what was told before.
            log.error("the database has lost changes that it had acknowledged: a new history begins")
            await self._log.renew_history(tracker.history)
        if news.history != tracker.history or lost or news.is_compacted_after(tracker.revision):
            await self._reload()
            return False
        self._last_change = news.last or self._last_change
        self._advance(news.changes, from_log=True)
        return tracker.revision == news.revision

    async def _reload(self) -> None:
        loaded = await self._log.load()
        self._tracker.reset(loaded.snapshot)
        self._last_change = None
        self._publisher.reset(loaded)

    def _advance(self, changes: Sequence[Change], *, from_log: bool) -> None:
        if not changes:
            return
        for change in changes:
            self._tracker.apply(change)
        self._last_change = changes[-1]
        self._publisher.publish(changes, from_log=from_log)


def _resolve_future(answer: asyncio.Future[Outcome[Any]], outcome: Outcome[Any] | BlocklistError) -> None:
    # Done already when the client has gone and its request was cancelled: the change stays.
    if answer.done():
        return
    if isinstance(outcome, Outcome):
        answer.set_result(outcome)
    else:
        answer.set_exception(outcome)

"""BlocklistHandler: the one way to change the list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import structlog

from app.logs.request_ids import signed
from app.store.queries import Loaded, News, StaleError
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


TRIES: Final = 20
"""How often a batch is decided anew while other replicas change the list; one of them always gets on."""
GIVE_WAY_SECONDS: Final = 0.02
"""How long a replica that was first waits for the one that came second, before it goes on."""


class Log(Protocol):
    """Where changes are kept durably, by all replicas, and may be read again. See app.store.store.Store."""

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None: ...

    async def news(self, since: int) -> News: ...

    async def load(self) -> Loaded: ...

    async def renew_history(self, lost: str) -> None: ...


class Memory(Protocol):
    """What moves on with the list; told in the event loop, and at once."""

    def publish(self, changes: Sequence[Change], *, found: bool) -> None:
        """The tracker has moved on by these changes; `found`: read from the log, not made here."""

    def restart(self, loaded: Loaded) -> None:
        """The tracker has begun anew with this list."""


class Outcome(NamedTuple, Generic[T]):
    """What a command returned, the changes it made, and the revision after them (the present one if none)."""

    value: T
    changes: tuple[Change, ...]
    revision: int


Answer = Callable[[Outcome[Any] | BlocklistError], None]
"""Told once how a command ended, in the event loop and at once."""


@dataclass(slots=True)
class _Waiting:
    command: Command[Any]
    author: Author
    answer: Answer
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
        log: Log,
        clock: Callable[[], int],
        memory: Memory,
        *,
        max_waiting: int,
    ) -> None:
        self._tracker = tracker
        self._log = log
        self._clock = clock
        self._memory = memory
        self._max_waiting = max_waiting
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._closed = False
        self._behind = False
        self._last: Change | None = None
        self._rivals = False
        self._our_turn = asyncio.Event()

    def submit(self, command: Command[T], author: Author) -> asyncio.Future[Outcome[T]]:
        """Carry out a command for its author; await the outcome.

        Raises what the command raises, or UnavailableError: then nothing is known to have changed.
        """
        answer: asyncio.Future[Outcome[T]] = asyncio.get_running_loop().create_future()
        self.take(command, signed(author), partial(_settle, answer))
        return answer

    def take(self, command: Command[Any], author: Author, answer: Answer) -> None:
        """The same, for who is told of the outcome. Raises UnavailableError when it takes no more."""
        if self._closed:
            raise UnavailableError("The service is stopping; try again.", retry_after=1)
        if len(self._waiting) >= self._max_waiting:
            raise UnavailableError("Too many changes are waiting for the database; try again.", retry_after=1)
        self._waiting.append(_Waiting(command, author, answer))
        self._wake.set()

    @property
    def waiting(self) -> int:
        """Commands that wait for the database."""
        return len(self._waiting)

    def look(self) -> None:
        """Another replica may have changed the list, or a commit of ours may have happened all the same."""
        self._behind = True
        self._our_turn.set()
        self._wake.set()

    async def run(self) -> None:
        """Work until `close`, and through what waits then; may be called again after it has failed."""
        if self._behind:
            self._wake.set()
        while not self._closed or self._waiting:
            await self._wake.wait()
            self._wake.clear()
            if self._behind and not self._waiting:
                with suppress(UnavailableError):
                    await self._follow()
            while self._waiting:
                if self._rivals:
                    await self._give_way()
                await self._gather()
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                await self._carry_out(batch)

    def close(self) -> None:
        """Take no more commands."""
        self._closed = True
        self._wake.set()

    async def _carry_out(self, batch: list[_Waiting]) -> None:
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
            waiting.answer(waiting.outcome or UnavailableError("The change was not carried out."))

    async def _gather(self) -> None:
        """While several come in let them come: a transaction of many costs little more than one of a few."""
        seen = 1
        while seen < len(self._waiting) < MAX_BATCH:
            seen = len(self._waiting)
            await asyncio.sleep(0)

    async def _give_way(self) -> None:
        """Until another replica has changed the list after this one did; not for long, as none may want to."""
        try:
            async with asyncio.timeout(GIVE_WAY_SECONDS):
                await self._our_turn.wait()
        except TimeoutError:
            self._rivals = False

    def _decide(self, batch: list[_Waiting]) -> Draft:
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

    async def _commit(self, batch: list[_Waiting]) -> None:
        for _ in range(TRIES):
            if self._behind:
                await self._follow()
            draft = self._decide(batch)
            try:
                await self._log.commit(draft.changes, after=self._tracker.revision, history=self._tracker.history)
            except StaleError:
                self._behind = self._rivals = True
                continue
            except BaseException:
                # It may have happened all the same.
                self._behind = True
                raise
            if draft.changes:
                self._our_turn.clear()
            self._apply(draft.changes, found=False)
            return
        raise UnavailableError("Other replicas change the list all the time; try again.", retry_after=1)

    async def _follow(self) -> None:
        """Take over what the log has beyond the tracker."""
        self._behind = False
        try:
            while not await self._followed():
                pass
        except BaseException:
            self._behind = True
            raise

    async def _followed(self) -> bool:
        """Take over some of it; whether that was all."""
        tracker = self._tracker
        news = await self._log.news(tracker.revision)
        lost = news.revision < tracker.revision or (self._last and news.last and news.last != self._last)
        if news.history == tracker.history and lost:
            # A standby that was behind has taken over: what follows has nothing to do with what was told before.
            log.error("the database has lost changes that it had acknowledged: a new history begins")
            await self._log.renew_history(tracker.history)
        if news.history != tracker.history or lost or news.beyond(tracker.revision):
            await self._restart()
            return False
        self._last = news.last or self._last
        self._apply(news.changes, found=True)
        return tracker.revision == news.revision

    async def _restart(self) -> None:
        loaded = await self._log.load()
        self._tracker.reset(loaded.snapshot)
        self._last = None
        self._memory.restart(loaded)

    def _apply(self, changes: Sequence[Change], *, found: bool) -> None:
        if not changes:
            return
        for change in changes:
            self._tracker.apply(change)
        self._last = changes[-1]
        self._memory.publish(changes, found=found)


def _settle(answer: asyncio.Future[Outcome[Any]], outcome: Outcome[Any] | BlocklistError) -> None:
    # Done already when the client has gone and its request was cancelled: the change stays.
    if answer.done():
        return
    if isinstance(outcome, Outcome):
        answer.set_result(outcome)
    else:
        answer.set_exception(outcome)

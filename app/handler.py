"""BlocklistHandler: the one way to change the list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

from app.request_ids import signed
from app.store.queries import StaleError
from blocklist.changes import Author, Change
from blocklist.draft import Draft
from blocklist.errors import BlocklistError, UnavailableError
from blocklist.tracker import BlocklistTracker

log = structlog.get_logger(__name__)
T = TypeVar("T")
Command = Callable[[Draft], T]
"""A change of the list: it works on a draft and returns its answer, or raises a BlocklistError changing nothing."""

MAX_BATCH: Final = 1000
"""Commands in one transaction: bounds how long the ones that come meanwhile wait."""


class Log(Protocol):
    """Where changes are kept durably, and may be read again."""

    async def commit(self, changes: Sequence[Change]) -> None: ...

    async def revision(self) -> int: ...

    async def changes(self, since: int) -> list[Change]: ...


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What a command returned, the changes it made, and the revision after them (the present one if none)."""

    value: T
    changes: tuple[Change, ...]
    revision: int


@dataclass(slots=True)
class _Waiting:
    command: Command[Any]
    author: Author
    answer: asyncio.Future[Outcome[Any]]
    outcome: Outcome[Any] | BlocklistError | None = None


class BlocklistHandler:
    """Commands in, one transaction for all that wait, changes out.

    Belongs to the event loop: `run` is the only writer of the tracker, commands are applied in the order in which
    they came. While a transaction is at the disk the next ones gather, so that one fsync serves them all. An answer
    is given after its commit, also a refusal: it may rest on a change of the same transaction.
    """

    def __init__(
        self,
        tracker: BlocklistTracker,
        log: Log,
        clock: Callable[[], int],
        publish: Callable[[Sequence[Change]], None],
        *,
        max_waiting: int,
    ) -> None:
        self._tracker = tracker
        self._log = log
        self._clock = clock
        self._publish = publish
        self._max_waiting = max_waiting
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._closed = False
        self._unsure = False

    def submit(self, command: Command[T], author: Author) -> asyncio.Future[Outcome[T]]:
        """Carry out a command for its author; await the outcome.

        Raises what the command raises, or UnavailableError: then nothing is known to have changed.
        """
        if self._closed:
            raise UnavailableError("The service is stopping; try again.", retry_after=1)
        if len(self._waiting) >= self._max_waiting:
            raise UnavailableError("Too many changes are waiting for the database; try again.", retry_after=1)
        answer: asyncio.Future[Outcome[T]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(command, signed(author), answer))
        self._wake.set()
        return answer

    @property
    def waiting(self) -> int:
        """Commands that wait for the database."""
        return len(self._waiting)

    async def run(self) -> None:
        """Work until `close`, and through what waits then."""
        while not self._closed or self._waiting:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                await self._carry_out(batch)

    def close(self) -> None:
        """Take no more commands."""
        self._closed = True
        self._wake.set()

    async def _carry_out(self, batch: list[_Waiting]) -> None:
        try:
            if self._unsure:
                await self._catch_up()
            draft = self._decide(batch)
            if draft.changes:
                await self._commit(draft.changes)
        except BlocklistError as error:
            for waiting in batch:
                waiting.outcome = error
        except Exception:
            log.exception("a batch of changes failed")
            for waiting in batch:
                waiting.outcome = UnavailableError("The change could not be stored; try again.", retry_after=1)
        for waiting in batch:
            _answer(waiting)

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

    async def _commit(self, changes: Sequence[Change]) -> None:
        self._unsure = True
        try:
            await self._log.commit(changes)
        except StaleError:
            raise UnavailableError("Somebody else changed the list at the same time; try again.", 1) from None
        self._unsure = False
        self._apply(changes)

    async def _catch_up(self) -> None:
        """After a failed commit: it may have happened all the same. Follow what the database says."""
        while self._tracker.revision < await self._log.revision():
            self._apply(await self._log.changes(self._tracker.revision))
        self._unsure = False

    def _apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._tracker.apply(change)
        self._publish(changes)


def _answer(waiting: _Waiting) -> None:
    # Done already when the client has gone and its request was cancelled: the change stays.
    if waiting.answer.done():
        return
    if isinstance(waiting.outcome, Outcome):
        waiting.answer.set_result(waiting.outcome)
    else:
        waiting.answer.set_exception(waiting.outcome or UnavailableError("The change was not carried out."))

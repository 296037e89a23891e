"""BlocklistHandler: every change of the list goes through it. LimitGuard: what limits refuse."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import structlog

from app.logs import isolated, with_request_id
from app.store.queries import LoadedState, LogTail, StaleError
from app.store.store import Store
from blocklist.model.changes import Author, Change, Source
from blocklist.model.claims import Repeat, Role
from blocklist.model.draft import BlocklistTracker, Draft
from blocklist.model.errors import BlocklistError, LimitError, UnavailableError
from blocklist.model.evidence import AutomaticBlocks
from blocklist.model.inventory import Inventory
from blocklist.model.limits import LimitContext, Limits, check_limits
from blocklist.model.names import MachineSet, ReportedMachines
from blocklist.model.node import BlockedNode
from blocklist.model.usable_nodes import ListenerNodes, Shortfall, shortfalls

log = structlog.get_logger(__name__)

T = TypeVar("T")
Command = Callable[[Draft], T]
"""A change of the list: works on a draft and returns a value, or raises a BlocklistError and changes nothing."""

MAX_QUEUED: Final = 10_000
"""Maximum number of commands that wait for the database; further ones get 503."""
MAX_BATCH: Final = 1000
"""Maximum number of commands in one transaction: bounds how long later commands wait."""
MAX_LOSSES: Final = 3
"""How often a batch is committed after other replicas' changes without a lock: one of several near ones soon wins."""
LOCKING_FACTOR: Final = 40
"""Then it locks the log at once, for this many times as long as it was losing: a near one only for a moment."""
MAX_LOCKED_ATTEMPTS: Final = 3
"""More than one is needed only if there is much to read, or the history has changed."""


class Publisher(Protocol):
    """Receives committed changes, in the event loop, as soon as the tracker has applied them."""

    def publish(self, changes: Sequence[Change], *, from_log: bool) -> None:
        """The tracker has applied these changes; `from_log` if they were read from the log, not committed here."""

    def reset(self, loaded: LoadedState) -> None:
        """The tracker was reset to this list."""


class Outcome(NamedTuple, Generic[T]):
    """What a command returned, its changes, and the revision after them (the current one if there are none)."""

    value: T
    changes: tuple[Change, ...]
    revision: int


OnOutcome = Callable[[Outcome[Any] | BlocklistError], None]
"""Called once with the outcome of a command, in the event loop; must not block. If it raises, that is logged."""


class CommandFailedError(BlocklistError):
    """A command failed because of a bug in the service; it changed nothing."""


@dataclass(slots=True)
class _QueuedCommand:
    command: Command[Any]
    author: Author
    on_outcome: OnOutcome
    outcome: Outcome[Any] | BlocklistError | None = None

    @property
    def failed(self) -> bool:
        """Whether it failed unexpectedly; then it is not executed again."""
        return isinstance(self.outcome, CommandFailedError)


class BlocklistHandler:
    """Applies queued commands in order, and commits them in batches.

    - Belongs to the event loop; `run` is the only writer of the tracker.
    - Group commit: commands that are submitted during a transaction share the next one, and its fsync.
    - Outcomes are reported after the commit. This holds for refusals, too: a refusal may be based on a change of the
      same transaction, or of another replica.
    - Replicas use optimistic concurrency: a commit succeeds only if its changes follow the end of the log. Otherwise
      the replica reads the newer changes and runs the commands again on a new draft. One that is far from the database
      would lose for ever to others that are near: it locks the log.
    """

    def __init__(
        self,
        tracker: BlocklistTracker,
        store: Store,
        clock: Callable[[], int],
        publisher: Publisher,
        automatic_blocks: AutomaticBlocks,
        *,
        measured: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`measured` is entered for each commit."""
        self._tracker = tracker
        self._store = store
        self._clock = clock
        self._publisher = publisher
        self._automatic_blocks = automatic_blocks
        self._measured = measured
        self._queue: list[_QueuedCommand] = []
        self._wake = asyncio.Event()
        self._closed = False
        self._behind = False
        self._locks_until = 0.0
        self._last_change: Change | None = None

    def submit(self, command: Command[T], author: Author) -> asyncio.Future[Outcome[T]]:
        """Queue a command; the future is its outcome.

        It raises what the command raises, or UnavailableError: then it is unknown whether anything changed.
        """
        future: asyncio.Future[Outcome[T]] = asyncio.get_running_loop().create_future()
        self.submit_callback(command, with_request_id(author), partial(_resolve_future, future))
        return future

    def submit_callback(self, command: Command[Any], author: Author, on_outcome: OnOutcome) -> None:
        """Like `submit`, with a callback. Raises UnavailableError if the queue is full or closed."""
        if self._closed:
            raise UnavailableError("The service is stopping; try again.", retry_after=1)
        if len(self._queue) >= MAX_QUEUED:
            raise UnavailableError("Too many changes are queued for the database; try again.", retry_after=1)
        self._queue.append(_QueuedCommand(command, author, on_outcome))
        self._wake.set()

    @property
    def queue_length(self) -> int:
        return len(self._queue)

    def notify_remote_change(self) -> None:
        """Read the log: another replica may have committed, or a commit of this one without an answer."""
        self._behind = True
        self._wake.set()

    async def run(self) -> None:
        """Execute commands until `close`, then the rest of the queue. May be called again after an exception."""
        if self._behind or self._queue:
            self._wake.set()
        while not self._closed or self._queue:
            await self._wake.wait()
            self._wake.clear()
            if self._behind and not self._queue:
                with suppress(UnavailableError):
                    await self._catch_up()
            while self._queue:
                await self._collect_batch()
                batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
                await self._execute_batch(batch)

    def close(self) -> None:
        """Reject new commands."""
        self._closed = True
        self._wake.set()

    async def _execute_batch(self, batch: list[_QueuedCommand]) -> None:
        try:
            await self._commit(batch)
        except BlocklistError as error:
            _fail(batch, error)
        except BaseException as error:
            log.exception("a batch of changes failed unexpectedly")
            self._behind = True
            _fail(batch, UnavailableError("It is unknown whether the change was stored; try again.", retry_after=1))
            if not isinstance(error, Exception):
                raise
        finally:
            self._report_outcomes(batch)

    def _report_outcomes(self, batch: list[_QueuedCommand]) -> None:
        # The rest of the batch, and all later changes, depend on this loop.
        isolated_outcome = isolated("outcome of a change")
        for queued in batch:
            with isolated_outcome:
                queued.on_outcome(queued.outcome or UnavailableError("The change was not executed."))

    async def _collect_batch(self) -> None:
        """Wait while more commands arrive: a large transaction costs little more than a small one."""
        length = 1
        while length < len(self._queue) < MAX_BATCH:
            length = len(self._queue)
            await asyncio.sleep(0)

    def _apply_commands(self, batch: list[_QueuedCommand]) -> Draft:
        """A draft with the changes of all commands, but those that fail unexpectedly."""
        while True:
            draft = Draft(self._tracker, self._clock())
            if all(_apply(queued, draft) for queued in batch if not queued.failed):
                return draft

    async def _commit(self, batch: list[_QueuedCommand]) -> None:
        try:
            self._advance(await self._commit_changes(batch), from_log=False)
        except BaseException:
            # The commit may have succeeded without an answer.
            self._behind = True
            raise

    async def _commit_changes(self, batch: list[_QueuedCommand]) -> list[Change]:
        begun_at = time.monotonic()
        if begun_at > self._locks_until:
            for _ in range(MAX_LOSSES):
                if self._behind:
                    await self._catch_up()
                try:
                    return await self._try_commit(batch)
                except StaleError:
                    self._behind = True
            now = time.monotonic()
            self._locks_until = now + LOCKING_FACTOR * (now - begun_at)
        return await self._commit_locked(batch)

    async def _commit_locked(self, batch: list[_QueuedCommand]) -> list[Change]:
        """Other replicas wait meanwhile, for two round trips to the database."""
        for _ in range(MAX_LOCKED_ATTEMPTS):
            with suppress(StaleError):
                async with self._store.locked(self._tracker.revision) as tail:
                    if not self._follow(tail) or self._tracker.revision != tail.revision:
                        raise StaleError("there is more to read")
                    return await self._try_commit(batch)
            await self._catch_up()
        raise UnavailableError("Other replicas kept changing the list; try again.", retry_after=1)

    async def _try_commit(self, batch: list[_QueuedCommand]) -> list[Change]:
        """Commit the changes of the batch, and return them. Raises StaleError if they do not follow the log."""
        draft = self._apply_commands(batch)
        with self._measured():
            await self._store.commit(
                draft.changes,
                after=self._tracker.revision,
                history=self._tracker.history,
                blocks=self._automatic_blocks.rows(draft.changes),
            )
        return draft.changes

    async def _catch_up(self) -> None:
        """Apply the changes that the log has after the tracker's revision."""
        self._behind = False
        try:
            while not await self._catch_up_page():
                pass
        except BaseException:
            self._behind = True
            raise

    async def _catch_up_page(self) -> bool:
        """Apply one page of them; return whether the tracker is at the end of the log."""
        tracker = self._tracker
        tail = await self._store.tail(tracker.revision)
        if tail.history == tracker.history and self._has_lost_changes(tail):
            log.error("the database has lost acknowledged changes; starting a new history")
            await self._store.renew_history(tracker.history)
        if not self._follow(tail):
            await self._reload()
            return False
        return tracker.revision == tail.revision

    def _has_lost_changes(self, tail: LogTail) -> bool:
        """After a failover to a standby that was behind, revisions mean other changes than before."""
        other = self._last_change is not None and tail.last is not None and tail.last != self._last_change
        return other or tail.revision < self._tracker.revision

    def _follow(self, tail: LogTail) -> bool:
        """Apply the changes of the tail; False if they do not continue the list in memory."""
        tracker = self._tracker
        continues = tail.history == tracker.history and not self._has_lost_changes(tail)
        if not continues or tail.is_compacted_after(tracker.revision):
            return False
        self._last_change = tail.last or self._last_change
        self._advance(tail.changes, from_log=True)
        return True

    async def _reload(self) -> None:
        loaded = await self._store.load()
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


def _apply(queued: _QueuedCommand, draft: Draft) -> bool:
    """Execute a command on the draft; False if it failed unexpectedly and left changes in the draft."""
    before = len(draft.changes)
    draft.author = queued.author
    try:
        value = queued.command(draft)
    except BlocklistError as error:
        # Not the revision after the whole batch: a later command may have made the opposite true.
        error.revision = draft.revision
        queued.outcome = error
    except Exception:
        log.exception("a command failed unexpectedly", author=queued.author.name)
        queued.outcome = CommandFailedError("Internal error, nothing was changed; see the log of the service.")
        return len(draft.changes) == before
    else:
        queued.outcome = Outcome(value, tuple(draft.changes[before:]), draft.revision)
    return True


def _fail(batch: list[_QueuedCommand], error: BlocklistError) -> None:
    for queued in batch:
        if not queued.failed:
            queued.outcome = error


def _resolve_future(future: asyncio.Future[Outcome[Any]], outcome: Outcome[Any] | BlocklistError) -> None:
    # A cancelled request does not undo its change.
    if future.done():
        return
    if isinstance(outcome, Outcome):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


# LimitGuard: a command that would exceed a limit is refused. The rules are in blocklist.model.limits.


class ListenerMinimums(Protocol):
    """What live listeners report about their nodes."""

    @property
    def any_minimum(self) -> bool: ...
    @property
    def names(self) -> MachineSet: ...
    def minimums(self, changes: Iterable[Change]) -> list[ListenerNodes]: ...
    @property
    def known(self) -> ReportedMachines: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRunResult(Generic[T]):
    """What a command would return and change, and which listeners it would leave below their minimum.

    `refusal` is the reason with which a limit would refuse it; None if no limit would.
    """

    value: T
    changes: Sequence[Change]
    shortfalls: Sequence[Shortfall]
    refusal: str | None


class LimitGuard:
    """Runs a command on a fork of the draft, and adopts the fork only if it stays within the limits.

    The draft contains all earlier commands, so concurrent requests cannot exceed a limit together. `on_refused` is
    called with the source of each refused command. Belongs to the event loop.
    """

    def __init__(
        self,
        limits: Limits,
        listeners: ListenerMinimums,
        labelled: Inventory,
        on_refused: Callable[[Source], None],
    ) -> None:
        self._limits = limits
        self._any_limit = bool(limits)
        self._listeners = listeners
        self._labelled = labelled
        self._on_refused = on_refused

    def enforce(self, command: Command[T], role: Role) -> Command[T]:
        """The command, made to raise LimitError if it would exceed a limit; `role` is that of its author.

        Forced commands are not checked: the caller has verified that the author may force.
        """

        def run(draft: Draft) -> T:
            if draft.author.forced is not None or not (self._any_limit or self._listeners.any_minimum):
                return command(draft)
            try:
                return self._enforce_on_trial(command, draft, role)
            except LimitError:
                self.count_refusal(draft.author.source)
                raise

        return run

    def dry_run(self, command: Command[T], role: Role) -> Command[DryRunResult[T]]:
        """A command that reports what this one would do, without doing it. Raises the same errors but LimitError."""

        def run(draft: Draft) -> DryRunResult[T]:
            trial, refusal = draft.fork(), None
            value = command(trial)
            context = self._context(draft, trial)
            try:
                if draft.author.forced is None:
                    check_limits(self._limits, context, trial, role)
            except LimitError as error:
                refusal = error.detail
            missing = shortfalls(context.listeners, context.names, draft, trial)
            return DryRunResult(value=value, changes=tuple(trial.changes), shortfalls=missing, refusal=refusal)

        return run

    def block_each(
        self, draft: Draft, nodes: Iterable[BlockedNode], role: Role, repeat: Repeat | None = None
    ) -> dict[str, LimitError]:
        """Block or merge each node unless a limit forbids it; return the refusals by node id.

        For blocks that the service creates by itself: a refusal is neither raised nor counted.
        """
        refusals = {}
        for node in nodes:
            try:
                command = partial(Draft.block, node=node, allow_merge=True, repeat=repeat)
                self._enforce_on_trial(command, draft, role)
            except LimitError as error:
                refusals[node.id] = error
        return refusals

    def count_refusal(self, source: Source) -> None:
        with isolated("metrics of refusals"):
            self._on_refused(source)

    def _enforce_on_trial(self, command: Command[T], draft: Draft, role: Role) -> T:
        trial = draft.fork()
        value = command(trial)
        check_limits(self._limits, self._context(draft, trial), trial, role)
        draft.adopt(trial)
        return value

    def _context(self, draft: Draft, trial: Draft) -> LimitContext:
        return LimitContext(
            draft=draft,
            listeners=self._listeners.minimums(trial.changes) if self._listeners.any_minimum else (),
            names=self._listeners.names,
            known=self._listeners.known,
            labelled=self._labelled,
        )

"""LimitGuard: a command that would exceed a limit is refused. The rules are in blocklist.model.limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from app.engine.handler import Command
from app.logs import isolated
from blocklist.model.changes import Change, Source
from blocklist.model.claims import Repeat
from blocklist.model.draft import Draft
from blocklist.model.errors import LimitError
from blocklist.model.inventory import Inventory
from blocklist.model.limits import LimitContext, Limits, check_limits
from blocklist.model.names import MachineSet, ReportedMachines
from blocklist.model.node import BlockedNode
from blocklist.model.roles import Role
from blocklist.model.usable_nodes import ListenerNodes, Shortfall, shortfalls

T = TypeVar("T")


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
        """Count a refused command from this source."""
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

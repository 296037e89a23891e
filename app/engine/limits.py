"""Guard: commands that block are tried out before they count, and refused where they go beyond a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from app.engine.handler import Command
from blocklist.model.changes import Change, Source
from blocklist.model.draft import Draft
from blocklist.model.errors import LimitError
from blocklist.model.limits import LimitContext, Limits, check_limits
from blocklist.model.node import BlockedNode
from blocklist.model.roles import Role
from blocklist.model.usable_nodes import ListenerNodes, NodeSet, Shortfall, shortfalls

T = TypeVar("T")


class ListenerMinimums(Protocol):
    """What live listeners say of their nodes."""

    @property
    def any_minimum(self) -> bool: ...
    def minimums(self) -> list[ListenerNodes]: ...
    def known(self) -> NodeSet | None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRunResult(Generic[T]):
    """What a command would do: what it would return, its changes, who would be left below the minimum.

    `refused` is the sentence with which a limit would refuse it, None if none would.
    """

    value: T
    changes: Sequence[Change]
    shortfalls: Sequence[Shortfall]
    refusal: str | None


class LimitGuard:
    """Belongs to the event loop. The rules are in blocklist.model.limits.

    Commands are tried at their turn, on a draft that knows all that came before them: two that come together pass
    together only if both fit. `author_of` names who made a blocked node's last change, `refused` is told by which way
    each refused change came.
    """

    def __init__(
        self,
        limits: Limits,
        listeners: ListenerMinimums,
        author_of: Callable[[str], str | None],
        on_refused: Callable[[Source], None],
    ) -> None:
        self._limits = limits
        self._any_limit = bool(limits)
        self._listeners = listeners
        self._author_of = author_of
        self._on_refused = on_refused

    def enforce(self, command: Command[T], access: Role) -> Command[T]:
        """The command, refused with LimitError where it would go beyond a limit; `access` is the role of its author.

        An author who forces is let through: whoever submits it has seen to it that he may.
        """

        def run(draft: Draft) -> T:
            if draft.author.forced is not None or not (self._any_limit or self._listeners.any_minimum):
                return command(draft)
            try:
                return self._enforce_on_trial(command, draft, access)
            except LimitError:
                self.count_refusal(draft.author.source)
                raise

        return run

    def dry_run(self, command: Command[T], access: Role) -> Command[DryRunResult[T]]:
        """A command that says what this one would do, and does nothing. Raises what it would, but for LimitError."""

        def run(draft: Draft) -> DryRunResult[T]:
            present, trial = self._context(draft), draft.fork()
            value, refused = command(trial), None
            try:
                if draft.author.forced is None:
                    check_limits(self._limits, present, trial, access)
            except LimitError as error:
                refused = error.detail
            left = shortfalls(present.listeners, draft, trial)
            return DryRunResult(value=value, changes=tuple(trial.changes), shortfalls=left, refusal=refused)

        return run

    def block_each(self, draft: Draft, nodes: Iterable[BlockedNode], access: Role) -> dict[str, LimitError]:
        """Block or merge those that no limit forbids, one after the other; returns the refusals, by node id.

        For what blocks by itself, and goes on with the rest: nothing is raised, and nothing counted.
        """
        refused = {}
        for node in nodes:
            try:
                self._enforce_on_trial(partial(Draft.block, node=node, allow_merge=True), draft, access)
            except LimitError as error:
                refused[node.id] = error
        return refused

    def count_refusal(self, source: Source) -> None:
        """A change that came this way was refused."""
        self._on_refused(source)

    def _enforce_on_trial(self, command: Command[T], draft: Draft, access: Role) -> T:
        trial = draft.fork()
        value = command(trial)
        check_limits(self._limits, self._context(draft), trial, access)
        draft.adopt(trial)
        return value

    def _context(self, draft: Draft) -> LimitContext:
        return LimitContext(
            draft=draft,
            author_of=self._author_of,
            listeners=self._listeners.minimums() if self._listeners.any_minimum else (),
            known=self._listeners.known() if self._limits.max_share < 1 else None,
        )

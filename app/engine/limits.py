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
from blocklist.model.limits import Limits, Present, check
from blocklist.model.node import BlockedNode
from blocklist.model.roles import Access
from blocklist.model.usable_nodes import Below, NodeSet, Using, below

T = TypeVar("T")


class Listeners(Protocol):
    """What live listeners say of their nodes."""

    @property
    def any_minimum(self) -> bool: ...
    def minimums(self) -> list[Using]: ...
    def known(self) -> NodeSet | None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal(Generic[T]):
    """What a command would do: what it would return, its changes, who would be left below the minimum.

    `refused` is the sentence with which a limit would refuse it, None if none would.
    """

    value: T
    changes: Sequence[Change]
    below: Sequence[Below]
    refused: str | None


class Guard:
    """Belongs to the event loop. The rules are in blocklist.model.limits.

    Commands are tried at their turn, on a draft that knows all that came before them: two that come together pass
    together only if both fit. `author_of` names who made a blocked node's last change, `refused` is told by which way
    each refused change came.
    """

    def __init__(
        self,
        limits: Limits,
        listeners: Listeners,
        author_of: Callable[[str], str | None],
        refused: Callable[[Source], None],
    ) -> None:
        self._limits = limits
        self._any_limit = bool(limits)
        self._listeners = listeners
        self._author_of = author_of
        self._refused = refused

    def guarded(self, command: Command[T], access: Access) -> Command[T]:
        """The command, refused with LimitError where it would go beyond a limit; `access` is the role of its author.

        An author who forces is let through: whoever submits it has seen to it that he may.
        """

        def run(draft: Draft) -> T:
            if draft.author.forced is not None or not (self._any_limit or self._listeners.any_minimum):
                return command(draft)
            try:
                return self._try(command, draft, access)
            except LimitError:
                self.count(draft.author.source)
                raise

        return run

    def rehearsed(self, command: Command[T], access: Access) -> Command[Rehearsal[T]]:
        """A command that says what this one would do, and does nothing. Raises what it would, but for LimitError."""

        def run(draft: Draft) -> Rehearsal[T]:
            present, trial = self._present(draft), draft.trial()
            value, refused = command(trial), None
            try:
                if draft.author.forced is None:
                    check(self._limits, present, trial, access)
            except LimitError as error:
                refused = error.detail
            left = below(present.listeners, draft, trial)
            return Rehearsal(value=value, changes=tuple(trial.changes), below=left, refused=refused)

        return run

    def block_each(self, draft: Draft, nodes: Iterable[BlockedNode], access: Access) -> dict[str, LimitError]:
        """Block or merge those that no limit forbids, one after the other; returns the refusals, by node id.

        For what blocks by itself, and goes on with the rest: nothing is raised, and nothing counted.
        """
        refused = {}
        for node in nodes:
            try:
                self._try(partial(Draft.block, node=node, allow_merge=True), draft, access)
            except LimitError as error:
                refused[node.id] = error
        return refused

    def count(self, source: Source) -> None:
        """A change that came this way was refused."""
        self._refused(source)

    def _try(self, command: Command[T], draft: Draft, access: Access) -> T:
        trial = draft.trial()
        value = command(trial)
        check(self._limits, self._present(draft), trial, access)
        draft.adopt(trial)
        return value

    def _present(self, draft: Draft) -> Present:
        return Present(
            draft=draft,
            author_of=self._author_of,
            listeners=self._listeners.minimums() if self._listeners.any_minimum else (),
            known=self._listeners.known() if self._limits.share < 1 else None,
        )

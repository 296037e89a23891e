"""What the state machines share: the service under test, and a block in their models."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from fastapi.testclient import TestClient
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.integration.bodies import EVACUATE, MARK, PERMANENT
from tests.integration.databases import Databases
from tests.integration.in_process import ManualClock, running_service

ACTIONS: Final = [MARK, EVACUATE]
"""The weaker one first."""


@dataclass(frozen=True)
class Block:
    """A block, or a claim, in a model."""

    action: str
    start: int
    end: int | None
    cause: str
    canary: bool = False

    def ended(self, now: int) -> bool:
        return self.end is not None and self.end <= now

    def merged(self, new: Block) -> Block:
        causes = dict.fromkeys([*self.cause.split(","), *new.cause.split(",")])
        known = set(new.cause.split(",")) <= set(self.cause.split(","))
        return Block(
            action=max(self.action, new.action, key=ACTIONS.index),
            start=min(self.start, new.start),
            end=None if self.end is None or new.end is None else max(self.end, new.end),
            cause=self.cause if known else ",".join(causes),
            canary=self.canary and new.canary,
        )

    def fields(self) -> dict[str, Any]:
        """As the service shows it."""
        return {
            "action": self.action,
            "startTimestamp": str(self.start),
            "endTimestamp": PERMANENT if self.end is None else str(self.end),
            "cause": self.cause,
            **({"canary": True} if self.canary else {}),
        }

    def body(self) -> dict[str, Any]:
        """As a request has it."""
        body: dict[str, Any] = {"action": self.action, "cause": self.cause}
        if self.canary:
            body["canary"] = True
        return body if self.end is None else {**body, "endTimestamp": self.end}


class ServiceMachine(RuleBasedStateMachine):
    """A service with a database and a clock of its own, which may be restarted at any time."""

    def __init__(self, databases: Databases) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.databases = databases
        self.clock = ManualClock()
        self.stack = ExitStack()
        self.client = self._client()

    def teardown(self) -> None:
        self.stack.close()
        self.databases.drop(Path(self.folder.name))
        self.folder.cleanup()

    def _client(self) -> TestClient:
        return self.stack.enter_context(running_service(self.databases.url_for(Path(self.folder.name)), self.clock))

    def absolute(self, block: Block) -> Block:
        """A block that begins now; its end was given as milliseconds from now."""
        now = self.clock.now
        return replace(block, start=now, end=None if block.end is None else now + block.end)

    @rule()
    def restart(self) -> None:
        self.stack.close()
        self.client = self._client()

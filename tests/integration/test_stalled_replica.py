"""A replica that stalls at any moment, such as a paused container, must not keep locks that others wait for.

PostgreSQL ends a session that is idle in a transaction. In a pipeline, which the driver uses for several statements of
one call, a session waits for the rest of the pipeline, and is not idle for as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.integration.conftest import StartInProcess
from tests.integration.listeners import get_listener, heartbeat, put, register

pytestmark = pytest.mark.databases("postgresql")


@contextmanager
def sent_statements() -> Iterator[list[tuple[str, bool]]]:
    """The statements that all engines of this process send until the end of the block, and whether in a pipeline."""
    sent: list[tuple[str, bool]] = []

    def record(_connection: Any, _cursor: Any, statement: str, _parameters: Any, _context: Any, many: bool) -> None:
        sent.append((statement, many))

    event.listen(Engine, "before_cursor_execute", record)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", record)


def test_no_statement_is_sent_in_a_pipeline(start_in_process: StartInProcess) -> None:
    with sent_statements() as sent:
        service = start_in_process(heartbeat="1s")
        with service.client() as client:
            names = [f"jm-{number}" for number in range(3)]
            for name in names:
                register(client, name)
            revision = put(client, "n1")
            for name in names:
                heartbeat(
                    client, name, ackedRevision=revision, taskManagers={f"{name}:tm": "n1"}, refused={"n1": "last"}
                )
            saved = "UPDATE listeners SET acked"
            service.until(lambda: any(statement.startswith(saved) for statement, _ in sent))
            service.until(lambda: any(statement.startswith("INSERT INTO reports") for statement, _ in sent))
            assert {get_listener(client, name)["ackedRevision"] for name in names} == {revision}
    assert [statement for statement, many in sent if many] == []

"""Killed again and again while clients write and watch: nothing acknowledged is lost, no revision is used twice."""

from __future__ import annotations

import pytest

from tests.crash.trial import KillTrial
from tests.integration.databases import ON_BOTH, Databases, SqliteFiles
from tests.integration.process import ServiceProcess

pytestmark = ON_BOTH


@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_and_the_watch_has_neither_gap_nor_repeat(
    fresh: ServiceProcess, databases: Databases
) -> None:
    # PostgreSQL is not killed with the service: there is less that could go wrong.
    kills = 10 if isinstance(databases, SqliteFiles) else 4
    figures = KillTrial(fresh).run(kills)
    assert figures.resumed >= kills
    assert figures.acknowledged <= figures.changes

"""Kill the service while clients write and watch: no acknowledged change is lost, no revision is used twice."""

from __future__ import annotations

import pytest

from tests.crash.trial import KillTrial
from tests.integration.databases import ON_BOTH, Databases, SqliteFiles
from tests.integration.process import ServiceProcess
from tests.length import longer

pytestmark = ON_BOTH


@pytest.mark.timeout(600)
def test_no_acknowledged_change_is_lost_and_watches_have_no_gap_and_no_repetition(
    fresh: ServiceProcess, databases: Databases
) -> None:
    # Fewer for PostgreSQL, which is not killed with the service.
    kills = longer(10 if isinstance(databases, SqliteFiles) else 4)
    stats = KillTrial(fresh).run(kills)
    assert stats.resumed >= kills
    assert stats.acknowledged <= stats.changes

"""Killed again and again while clients write and watch: nothing acknowledged is lost, no revision is used twice."""

from __future__ import annotations

import pytest

from tests.crash.trial import KillTrial
from tests.integration.databases import ON_BOTH
from tests.integration.process import ServiceProcess

pytestmark = ON_BOTH

KILLS = 10


@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_and_the_watch_has_neither_gap_nor_repeat(fresh: ServiceProcess) -> None:
    figures = KillTrial(fresh).run(KILLS)
    assert figures.resumed >= KILLS
    assert figures.acknowledged <= figures.changes

"""While faults are injected into replicas and their database, and several owners act, no rule is violated."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.chaos_run import OWNERS, STORM, ChaosRun, Crowd
from tests.chaos.cluster import Faults, running_cluster
from tests.chaos.two_people import two_people
from tests.length import longer

pytestmark = pytest.mark.timeout(1800)

_MAX_LATE_MS = 15_000
"""The load of other tests may delay an expiry; one that is forgotten is found at the end."""
_BUSY_OWNERS = replace(OWNERS, pace=4)


@pytest.mark.parametrize(
    ("replicas", "crowd", "faults", "seconds"),
    [
        pytest.param(0, STORM, Faults.KILLS, 12, id="sqlite, killed"),
        pytest.param(3, STORM, Faults.ALL, 14, id="three"),
        pytest.param(2, _BUSY_OWNERS, Faults.FEW, 8, id="two, owners"),
        pytest.param(0, STORM, Faults.ALL, 15, id="sqlite", marks=pytest.mark.long),
        pytest.param(2, STORM, Faults.ALL, 25, id="two", marks=pytest.mark.long),
        pytest.param(0, _BUSY_OWNERS, Faults.FEW, 12, id="sqlite, owners", marks=pytest.mark.long),
    ],
)
def test_no_rule_is_violated(tmp_path: Path, replicas: int, crowd: Crowd, faults: Faults, seconds: float) -> None:
    with running_cluster(tmp_path, replicas, faults) as cluster:
        run = ChaosRun(cluster, secrets.token_hex(4), crowd, max_late_ms=_MAX_LATE_MS)
        found = run.run(longer(seconds))
    if found:
        run.save(tmp_path)
    assert not found, "\n".join([*run.summary(), *found[:20], f"the log is in {tmp_path}"])
    assert run.checker.figures["changes: narrowed"]
    assert run.faults.kinds or faults is Faults.FEW


def test_nobody_loses_a_claim_without_being_named(tmp_path: Path) -> None:
    seed = secrets.token_hex(4)
    with two_people(tmp_path, seed) as people:
        found = people.run(longer(6))
    assert not found, "\n".join([f"seed {seed}", *found])
    assert people.figures["own claims changed"]

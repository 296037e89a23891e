"""While several owners act against each other, each block lasts exactly as long as its claims."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.claims_soak.soak_run import SoakRun, running_cluster
from tests.claims_soak.two_people import two_people
from tests.length import longer

pytestmark = pytest.mark.timeout(900)

_MAX_LATE_MS = 15_000
"""The load of other tests may delay an expiry; one that is forgotten is found at the end."""


@pytest.mark.parametrize(
    ("replicas", "seconds"),
    [
        pytest.param(0, 5, id="sqlite"),
        pytest.param(2, 8, id="postgresql"),
        pytest.param(0, 12, id="sqlite, long", marks=pytest.mark.long),
        pytest.param(2, 20, id="postgresql, long", marks=pytest.mark.long),
    ],
)
def test_no_block_outlives_its_claims_or_ends_before(tmp_path: Path, replicas: int, seconds: float) -> None:
    seed = secrets.token_hex(4)
    with running_cluster(tmp_path, replicas) as cluster:
        run = SoakRun(cluster, seed, pace=4, max_late_ms=_MAX_LATE_MS)
        found = run.run(longer(seconds))
    if found:
        run.save(tmp_path)
    assert not found, "\n".join([f"seed {seed}", *run.summary(), *found[:20]])
    assert run.checker.figures["changes: narrowed"]


def test_nobody_loses_a_claim_without_being_named(tmp_path: Path) -> None:
    seed = secrets.token_hex(4)
    with two_people(tmp_path, seed) as people:
        found = people.run(longer(6))
    assert not found, "\n".join([f"seed {seed}", *found])
    assert people.figures["own claims changed"]

"""While faults are injected into replicas and their database, the contract is not violated."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.chaos.chaos_run import ChaosRun
from tests.chaos.cluster import running_cluster
from tests.length import longer

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize(
    ("replicas", "kills", "seconds"),
    [
        pytest.param(0, True, 15, id="sqlite, killed"),
        pytest.param(0, False, 6, id="sqlite"),
        pytest.param(3, False, 12, id="three"),
        pytest.param(0, False, 15, id="sqlite, long", marks=pytest.mark.long),
        pytest.param(2, False, 25, id="two, long", marks=pytest.mark.long),
        pytest.param(3, False, 25, id="three, long", marks=pytest.mark.long),
    ],
)
def test_no_contract_violation_under_faults(tmp_path: Path, replicas: int, *, kills: bool, seconds: float) -> None:
    with running_cluster(tmp_path, replicas, kills=kills) as cluster:
        record = ChaosRun(cluster, secrets.token_hex(4)).run(longer(seconds))
    found = record.violations()
    if found:
        record.save(tmp_path)
    assert not found, "\n".join([*record.summary(), *found[:20], f"the full record is in {tmp_path}"])
    assert record.faults
    assert any(operation.acknowledged for operation in record.operations)

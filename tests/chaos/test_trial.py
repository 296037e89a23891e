"""While replicas are killed, paused and cut off, and their database too, no promise of the contract is broken."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.chaos.cluster import cluster_of
from tests.chaos.trial import Trial

pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("chaos")]


@pytest.mark.parametrize(("replicas", "seconds"), [(0, 15), (2, 25), (3, 25)], ids=["sqlite", "two", "three"])
def test_no_promise_is_broken(tmp_path: Path, replicas: int, seconds: float) -> None:
    with cluster_of(tmp_path, replicas) as cluster:
        evidence = Trial(cluster, secrets.token_hex(4)).run(seconds)
    found = evidence.violations()
    if found:
        evidence.keep(tmp_path)
    assert not found, "\n".join([*evidence.figures(), *found[:20], f"all of it is in {tmp_path}"])
    assert evidence.faults
    assert any(operation.acknowledged for operation in evidence.operations)

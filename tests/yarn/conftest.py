"""One YARN for the session; each test gets it without applications, labels and exclude entries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.applications.conftest import service, service_process
from tests.integration.conftest import databases, fresh, migrated, start
from tests.yarn.cluster import YarnCluster
from tests.yarn.jars import yarn_classpath_or_skip

__all__ = ["databases", "fresh", "migrated", "service", "service_process", "start"]


@pytest.fixture(scope="session")
def yarn_jars() -> list[str]:
    """The classpath of a YARN; skips where it cannot be had."""
    return yarn_classpath_or_skip()


@pytest.fixture(scope="package")
def shared_yarn(yarn_jars: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    with YarnCluster(tmp_path_factory.mktemp("yarn"), yarn_jars) as cluster:
        yield cluster


@pytest.fixture
def yarn(shared_yarn: YarnCluster) -> YarnCluster:
    shared_yarn.reset()
    return shared_yarn

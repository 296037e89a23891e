"""The classes that decide, compiled once, in a JVM that is started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark_agent.decisions import Decisions, compile_decisions, compile_programs


@pytest.fixture(scope="session")
def decision_classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_decisions(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="session")
def decisions(decision_classes: str) -> Iterator[Decisions]:
    with Decisions(decision_classes) as started:
        yield started


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the programs that use the jar as it is."""
    return compile_programs(tmp_path_factory.mktemp("programs"))

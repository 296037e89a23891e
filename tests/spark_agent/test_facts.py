"""Facts about classes of the agent that use Spark's or Java's own, in two JVMs: one of them has no name server."""

from __future__ import annotations

import os
from collections import ChainMap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.spark_agent.decisions import facts_of

FACTS: Final = (
    "a report starts no lookup of a lost host",
    "a refusal stands until the next table is judged",
    "a pod whose executor has registered is not unbound",
    "a wait of five minutes is not accepted",
    "an agent that observes says what it would do, and refuses nothing",
    "an agent that is off acknowledges nothing",
    "a slip in the mode does less, not more",
    "a task is slow once its copy has ended first",
    "what fails on an executor that is being decommissioned blames nobody",
    "an Error while an error is reported ends no loop and reaches nobody",
    "a copy of the settings of a running application starts with excludeOnFailure",
    "a service that cannot be reached knows no application that leaves",
)
WITHOUT_NAMES: Final = (
    "a client is made while a name server hangs",
    "a name that a hanging server looks up is unknown before it is given up",
)


@pytest.fixture(scope="module")
def facts(program: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    # All lookups of this JVM read a pipe that nobody writes. Log4j, which looks up its own host, is left out.
    hosts = tmp_path_factory.mktemp("names") / "hosts"
    os.mkfifo(hosts)
    folder, _, jars = program.rpartition(":")
    slf4j = Path(jars.removesuffix("/*")).glob("slf4j-api-*.jar")
    nameless = ":".join([folder, *map(str, slf4j)])
    java = ["java", "-Xmx64m", "-XX:+UseSerialGC"]
    commands = (
        [*java, "-cp", program, "blocklist.spark.FactProgram", *FACTS],
        [*java, f"-Djdk.net.hosts.file={hosts}", "-cp", nameless, "blocklist.spark.FactProgram", *WITHOUT_NAMES],
    )
    with ThreadPoolExecutor() as threads:
        return dict(ChainMap(*threads.map(facts_of, commands)))


@pytest.mark.parametrize("fact", [*FACTS, *WITHOUT_NAMES])
def test_it_holds(facts: dict[str, str], fact: str) -> None:
    assert facts.get(fact) == "true"

"""Facts about classes of the agent that use Spark's or Java's own, in a JVM of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "fact",
    [
        "a report starts no lookup of a lost host",
        "a client is made while a name server hangs",
        "a refusal stands until the next table is judged",
        "a pod whose executor has registered is not unbound",
        "a wait of five minutes is not accepted",
        "a name that a hanging server looks up is unknown before it is given up",
    ],
)
def test_it_holds(program: str, tmp_path: Path, fact: str) -> None:
    options = ["-Xmx64m", "-XX:+UseSerialGC"]
    if "name server" in fact or "hanging server" in fact:
        # All lookups of this JVM read a pipe that nobody writes. Log4j, which looks up its own host, is left out.
        os.mkfifo(tmp_path / "hosts")
        options.append(f"-Djdk.net.hosts.file={tmp_path / 'hosts'}")
        folder, _, jars = program.rpartition(":")
        slf4j = Path(jars.removesuffix("/*")).glob("slf4j-api-*.jar")
        program = ":".join([folder, *map(str, slf4j)])
    command = ["java", *options, "-cp", program, "blocklist.spark.FactProgram", fact]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "true", done.stderr[-2000:]

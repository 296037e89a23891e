"""Long runs: `python -m tests.applications chaos --jobs 200`, `python -m tests.applications versions 3.5.9 4.0.5`."""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from demo.cluster import Cluster, spark_home
from tests.applications.application import Installation
from tests.applications.compiling import compile_applications
from tests.applications.conftest import HOSTS
from tests.applications.faults import FAULTS, WITHOUT_AGENT, Surroundings, old_jar
from tests.applications.switching import roll_out
from tests.integration.process import ROOT
from tests.spark_versions import SPARK_HOME, environment

_MAX_JOBS: Final = 25
"""Of an application, so that each fault has its turn."""
VERSIONS: Final = ("3.5.9", "4.0.5")
_VERSION_TESTS: Final = ("tests/spark_agent/test_scheduler_facts.py", "tests/applications", "tests/kubernetes/spark")


def main() -> int:
    """Return the exit code: 0 if all is well."""
    parser = argparse.ArgumentParser(prog="python -m tests.applications", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    chaos = commands.add_parser("chaos", help="jobs whose agent, jar or service has a fault, in turn")
    chaos.add_argument("--jobs", type=int, default=225)
    chaos.add_argument("--seed", type=int, default=secrets.randbits(32), help="determines jobs and responses")
    versions = commands.add_parser("versions", help="these applications, and those on Kubernetes, with other Sparks")
    versions.add_argument("versions", nargs="*", default=VERSIONS)
    given = parser.parse_args()
    return _chaos(given.jobs, given.seed) if given.command == "chaos" else _versions(given.versions)


def _chaos(jobs: int, seed: int) -> int:
    """Run the jobs in applications, each with one of the faults, beside simulated drivers."""
    home = spark_home()
    spark = Installation(home=home, applications=compile_applications(home))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="blocklist-chaos-spark-")))
        for name in ("service", "old"):
            (folder / name).mkdir()
        old = old_jar(folder / "old", spark)
        real = stack.enter_context(roll_out(folder / "service", seed))
        cluster = stack.enter_context(Cluster(HOSTS, cores=3, memory="2g"))
        around = Surroundings(spark=spark, cluster=cluster, folder=folder, seed=seed, real=real, old_jar=old)
        WITHOUT_AGENT.run(around, 1, "baseline")
        each = min(_MAX_JOBS, -(-jobs // len(FAULTS)))
        for number, first in enumerate(range(0, jobs, each)):
            count, fault = min(each, jobs - first), FAULTS[number % len(FAULTS)]
            application = fault.run(around, count, f"seed {seed}, application {number}, {fault.name}")
            modes = application.log().count("The agent's mode is")
            print(
                f"{first + count} of {jobs} jobs are right: {fault.name}, {modes} changes of its mode",
                flush=True,
            )
        print(f"the service: {_counts(real.counted)}; hostile responses: {_counts(around.answered)}", flush=True)
    return 0


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counter.most_common())


def _versions(versions: list[str]) -> int:
    """Run the tests with each version, in an environment in the system's temp folder that is made once."""
    failed = []
    for version in versions:
        python = environment(version)
        [home] = (python.parents[1] / "lib").glob("python3*/site-packages/pyspark")
        command = [sys.executable, "-m", "pytest", *_VERSION_TESTS, "-q"]
        if subprocess.run(command, cwd=ROOT, env={**os.environ, SPARK_HOME: str(home)}, check=False).returncode:
            failed.append(version)
    print(f"failed: {', '.join(failed)}" if failed else f"Spark {', '.join(versions)}: all tests passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

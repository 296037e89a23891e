"""Long runs: `python -m tests.applications chaos --jobs 200`, `python -m tests.applications versions 3.5.9 4.0.5`."""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from demo.cluster import Cluster, spark_home
from tests.applications.application import Application, Installation, obeying
from tests.applications.compiling import compile_applications
from tests.applications.conftest import HOSTS
from tests.applications.hostile_service import hostile_service
from tests.applications.jobs import run_jobs
from tests.applications.kinds import SCALA
from tests.integration.process import ROOT
from tests.spark_versions import SPARK_HOME, environment

_JOBS_PER_APPLICATION: Final = 25
VERSIONS: Final = ("3.5.9", "4.0.5")
_VERSION_TESTS: Final = ("tests/spark_agent/test_scheduler_facts.py", "tests/applications", "tests/kubernetes/spark")


def main() -> int:
    """Return the exit code: 0 if all is well."""
    parser = argparse.ArgumentParser(prog="python -m tests.applications", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    chaos = commands.add_parser("chaos", help="jobs under a hostile service and a hostile list")
    chaos.add_argument("--jobs", type=int, default=200)
    chaos.add_argument("--seed", type=int, default=secrets.randbits(32), help="determines jobs and responses")
    versions = commands.add_parser("versions", help="these applications, and those on Kubernetes, with other Sparks")
    versions.add_argument("versions", nargs="*", default=VERSIONS)
    given = parser.parse_args()
    return _chaos(given.jobs, given.seed) if given.command == "chaos" else _versions(given.versions)


def _chaos(jobs: int, seed: int) -> int:
    """Run the jobs in several applications: each starts under a hostile service, too."""
    with tempfile.TemporaryDirectory(prefix="blocklist-chaos-spark-") as name:
        folder, home = Path(name), spark_home()
        spark = Installation(home=home, applications=compile_applications(home))
        with Cluster(HOSTS, cores=3, memory="2g") as cluster:
            for first in range(0, jobs, _JOBS_PER_APPLICATION):
                count = min(_JOBS_PER_APPLICATION, jobs - first)
                with hostile_service(seed + first) as service:
                    conf = obeying(service.url, spark__blocklist__reportEvidence="true")
                    with Application(SCALA, spark, cluster, folder / str(first), conf) as application:
                        run_jobs(application, count, label=f"seed {seed}, application {first}")
                        application.end()
                answered = ", ".join(f"{name} {number}" for name, number in service.answered.most_common())
                print(f"{first + count} of {jobs} jobs are right; responses: {answered}", flush=True)
    return 0


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

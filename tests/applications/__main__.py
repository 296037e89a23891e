"""Long runs: `python -m tests.applications chaos --jobs 200`, `python -m tests.applications versions 3.5.9 4.0.5`."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
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
from tests.applications.faults import FAULTS, KINDS, WITHOUT_AGENT, Surroundings, old_jar
from tests.applications.hostile_service import FAULTS as RESPONSES
from tests.applications.switching import roll_out
from tests.integration.process import ROOT, ServiceProcess, run_app
from tests.spark_versions import SPARK_HOME, environment

VERSIONS: Final = ("3.5.9", "4.0.5")
_VERSION_TESTS: Final = ("tests/spark_agent/test_scheduler_facts.py", "tests/applications", "tests/kubernetes/spark")


def main() -> int:
    """Return the exit code: 0 if all is well."""
    signal.signal(signal.SIGTERM, _end)
    parser = argparse.ArgumentParser(prog="python -m tests.applications", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    chaos = commands.add_parser(
        "chaos", help="jobs whose agent, jar or settings have a fault, behind a hostile service"
    )
    chaos.add_argument("--jobs", type=int, default=216)
    chaos.add_argument("--seed", type=int, default=secrets.randbits(32), help="determines jobs and responses")
    versions = commands.add_parser("versions", help="these applications, and those on Kubernetes, with other Sparks")
    versions.add_argument("versions", nargs="*", default=VERSIONS)
    given = parser.parse_args()
    return _chaos(given.jobs, given.seed) if given.command == "chaos" else _versions(given.versions)


def _end(number: int, _: object) -> None:
    """As SIGINT, so that what this process has started ends with it. The same signal again does not disturb that."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _chaos(jobs: int, seed: int) -> int:
    """Run the jobs in applications, each with one of the faults, beside simulated drivers."""
    home = spark_home()
    spark = Installation(home=home, applications=compile_applications(home))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="blocklist-chaos-spark-")))
        for name in ("service", "secured", "old"):
            (folder / name).mkdir()
        (folder / "token").write_text("wrong")
        secured = ServiceProcess(folder / "secured", auth="tokens", admin_token_file=str(folder / "admin.token"))
        assert run_app("migrate", env=secured.environment()).returncode == 0
        stack.enter_context(secured)
        real = stack.enter_context(roll_out(folder / "service", seed))
        around = Surroundings(
            spark=spark,
            cluster=stack.enter_context(Cluster(HOSTS, cores=2 * len(KINDS), memory="2g")),
            folder=folder,
            seed=seed,
            service=real.service,
            secured=secured,
            old_jar=old_jar(folder / "old", spark),
        )
        WITHOUT_AGENT.run(around, 1)
        responses: Counter[str] = Counter()
        for fault in FAULTS:
            before = real.counted.copy()
            met, answered = fault.run(around, -(-jobs // (len(FAULTS) * len(KINDS))))
            responses += answered
            print(f"{met}\nthe service meanwhile: {_counts(real.counted - before)}", flush=True)
    print(f"the service: {_counts(real.counted)}; responses to the applications: {_counts(responses)}", flush=True)
    never = {response.__name__ for response in RESPONSES} - responses.keys()
    print(f"never met: {', '.join(never)}" if never else "Each hostile response was met.")
    return 1 if never else 0


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

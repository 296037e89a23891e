"""What goes wrong when many jobs get the agent: applications with one fault each, all behind a hostile service."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from demo.cluster import Cluster
from tests.applications.application import JAR, LISTENER, PLUGIN, Application, Installation, Kind, obeying
from tests.applications.hostile_service import REGISTERED, WRONG_TOKEN, HostileProxy, hostile_proxy
from tests.applications.jobs import run_jobs
from tests.applications.kinds import JAVA, PYSPARK, SCALA
from tests.integration.process import ROOT, ServiceProcess, wait_until

KINDS: Final = (SCALA, JAVA, PYSPARK)
"""Of each fault there is an application of each kind, all at once."""
_SOURCES: Final = "spark-agent/src/main/java/blocklist/spark"
_EXIT_CODE: Final = 3
_MODES: Final = "The agent's mode is"


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """Where applications with a fault run. The service wants no token, the secured one does."""

    spark: Installation
    cluster: Cluster
    folder: Path
    seed: int
    service: ServiceProcess
    secured: ServiceProcess
    old_jar: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """`conf` are further settings, in which `{old}` is the old jar and `{token}` a file with a wrong token.

    `hostile` is how many hostile responses each job meets at least; `meets` is what else its applications must meet,
    and nothing beside it. `code` is their exit code, with the agent or without.
    """

    name: str
    conf: Mapping[str, str | None] = field(default_factory=dict)
    hostile: int = 5
    meets: frozenset[str] = frozenset({REGISTERED, _MODES})
    code: int = 0

    def run(self, around: Surroundings, jobs: int) -> tuple[str, Counter[str]]:
        """Run an application of each kind with so many jobs; what each has met, and the responses to all of them.

        Raises AssertionError if one does otherwise than it must.
        """
        # Left in the other order: the applications end, so that the threads need not be waited for.
        with ThreadPoolExecutor(len(KINDS)) as threads, ExitStack() as stack:
            proxies, applications = [], []
            for number, kind in enumerate(KINDS):
                service = around.secured if WRONG_TOKEN in self.meets else around.service
                proxies.append(stack.enter_context(hostile_proxy(around.seed + number, service.port)))
                conf = obeying(proxies[-1].url, spark__blocklist__reportEvidence="true") | {
                    name: value and value.format(old=around.old_jar, token=around.folder / "token")
                    for name, value in self.conf.items()
                }
                folder = around.folder / f"{self.name}-{kind.name}".replace(" ", "-")
                application = Application(kind, around.spark, around.cluster, folder, conf)
                applications.append(stack.enter_context(application))
            labels = [f"seed {around.seed}, {self.name}, {kind.name}" for kind in KINDS]
            met = "\n".join(threads.map(self._run, labels, KINDS, applications, proxies, [jobs] * len(KINDS)))
        return met, sum((proxy.answered for proxy in proxies), Counter())

    def _run(self, label: str, kind: Kind, application: Application, proxy: HostileProxy, jobs: int) -> str:
        """Run the jobs and end the application; what it has met."""

        def met() -> set[str]:
            found = {name for name in (REGISTERED, WRONG_TOKEN) if proxy.answered[name]}
            return found | ({_MODES} if _MODES in application.log() else set())

        def is_met() -> bool:
            # Raises EndedError if it is killed meanwhile.
            application.round()
            return met() == self.meets

        only_plain = kind is not SCALA
        run_jobs(application, jobs, label=label, only_plain=only_plain, met=lambda: proxy.hostile, each=self.hostile)
        wait_until(is_met, seconds=600)
        if self.code:
            application.send(f"exit {self.code}")
        application.end(self.code)
        assert met() == self.meets
        modes = application.log().count(_MODES)
        return f"{label}: {jobs} jobs are right, {proxy.hostile} hostile responses, {modes} changes of its mode"


FAULTS: Final = (
    Fault(name="none"),
    Fault(name="wrong token", conf={"spark.blocklist.tokenFile": "{token}"}, meets=frozenset({WRONG_TOKEN})),
    # It had no plugin yet, and knew no modes.
    Fault(
        name="old jar",
        conf={
            "spark.driver.extraClassPath": "{old}",
            "spark.plugins.defaultList": None,
            "spark.extraListeners": LISTENER,
        },
        meets=frozenset({REGISTERED}),
    ),
    # The plugin is of the new jar, all that the old one has, too, is of that.
    Fault(name="two jars", conf={"spark.driver.extraClassPath": f"{{old}}:{JAR}"}, meets=frozenset({REGISTERED})),
    Fault(name="plugin and listener", conf={"spark.plugins": PLUGIN, "spark.extraListeners": LISTENER}),
    Fault(name="System.exit", code=_EXIT_CODE),
)
WITHOUT_AGENT: Final = Fault(
    name="System.exit without the agent",
    conf={"spark.driver.extraClassPath": None, "spark.plugins.defaultList": None},
    hostile=0,
    meets=frozenset(),
    code=_EXIT_CODE,
)


def old_jar(folder: Path, spark: Installation) -> Path:
    """A jar of the agent that knew no modes yet, out of the history of this checkout."""
    log = _run("git", "log", "--diff-filter=A", "--format=%H", "-1", "--", f"{_SOURCES}/Mode.java", cwd=ROOT)
    assert log, "the history of this checkout is not there"
    sources, classes = folder / "sources", folder / "classes"
    sources.mkdir()
    _run("git", "archive", "-o", folder / "old.tar", f"{log.strip()}^", _SOURCES, cwd=ROOT)
    _run("tar", "-xf", folder / "old.tar", cwd=sources)
    java = sorted(sources.rglob("*.java"))
    _run("javac", "--release", "8", "-nowarn", "-cp", f"{spark.home}/jars/*", "-d", classes, *java, cwd=folder)
    _run("jar", "cf", "old.jar", "-C", classes, ".", cwd=folder)
    return folder / "old.jar"


def _run(*command: object, cwd: Path) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=True).stdout

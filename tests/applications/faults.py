"""What goes wrong when many jobs get the agent: applications with one fault each."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from demo.cluster import Cluster
from tests.applications.application import JAR, LISTENER, PLUGIN, Application, Installation, obeying
from tests.applications.hostile_service import hostile_service
from tests.applications.jobs import run_jobs
from tests.applications.kinds import SCALA
from tests.applications.switching import ALL, RollOut
from tests.integration.process import ROOT, ServiceProcess, run_app, wait_until

_SOURCES: Final = "spark-agent/src/main/java/blocklist/spark"
_EXIT_CODE: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """Where an application with a fault runs; `answered` counts the responses of hostile services."""

    spark: Installation
    cluster: Cluster
    folder: Path
    seed: int
    real: RollOut
    old_jar: Path
    answered: Counter[str] = field(default_factory=Counter)


Conf = dict[str, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """`conf` starts what the fault needs, and returns the settings of the application.

    `registers` is whether the service hears of the application, `code` its exit code, with the agent or without.
    """

    name: str
    conf: Callable[[Surroundings, ExitStack], Conf]
    registers: bool = True
    code: int = 0

    def run(self, around: Surroundings, jobs: int, label: str) -> Application:
        """Run an application with so many jobs; it, ended. Raises AssertionError if it does otherwise than it must."""
        with ExitStack() as stack:
            conf = self.conf(around, stack)
            application = Application(
                SCALA, around.spark, around.cluster, around.folder / label.replace(" ", "-"), conf
            )
            stack.enter_context(application)
            run_jobs(application, jobs, label=label)
            if self.registers:
                wait_until(lambda: len(around.real.applications) == 1)
            if self.code:
                application.send(f"exit {self.code}")
            application.end(self.code)
        return application


def _healthy(around: Surroundings, stack: ExitStack) -> Conf:
    return obeying(around.real.service.url, spark__blocklist__reportEvidence="true")


def _hostile(around: Surroundings, stack: ExitStack) -> Conf:
    service = stack.enter_context(hostile_service(around.seed))
    stack.callback(lambda: around.answered.update(service.answered))
    return obeying(service.url, spark__blocklist__reportEvidence="true")


def _wrong_token(around: Surroundings, stack: ExitStack) -> Conf:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="blocklist-secured-")))
    token = folder / "token"
    token.write_text("wrong")
    service = ServiceProcess(folder, auth="tokens", admin_token_file=str(folder / "admin.token"))
    assert run_app("migrate", env=service.environment()).returncode == 0
    stack.enter_context(service)
    return obeying(service.url, spark__blocklist__tokenFile=token)


def _old_jar(around: Surroundings, stack: ExitStack) -> Conf:
    """It had no plugin yet."""
    return _healthy(around, stack) | {
        "spark.driver.extraClassPath": str(around.old_jar),
        "spark.plugins.defaultList": None,
        "spark.extraListeners": LISTENER,
    }


def _two_jars(around: Surroundings, stack: ExitStack) -> Conf:
    """The plugin is of the new jar, all that the old one has, too, is of that."""
    return _healthy(around, stack) | {"spark.driver.extraClassPath": f"{around.old_jar}:{JAR}"}


def _both_ways(around: Surroundings, stack: ExitStack) -> Conf:
    return _healthy(around, stack) | {"spark.plugins": PLUGIN, "spark.extraListeners": LISTENER}


def _switched(around: Surroundings, stack: ExitStack) -> Conf:
    stack.enter_context(around.real.switching(ALL))
    return _healthy(around, stack)


def _restarted(around: Surroundings, stack: ExitStack) -> Conf:
    stack.enter_context(_restarts(around.real))
    return _healthy(around, stack)


@contextmanager
def _restarts(real: RollOut) -> Iterator[None]:
    """The service is killed and started again every few seconds."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(5):
            real.restart()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


FAULTS: Final = (
    Fault(name="healthy", conf=_healthy),
    Fault(name="hostile service", conf=_hostile, registers=False),
    Fault(name="wrong token", conf=_wrong_token, registers=False),
    Fault(name="old jar", conf=_old_jar),
    Fault(name="two jars", conf=_two_jars),
    Fault(name="plugin and listener at once", conf=_both_ways),
    Fault(name="System.exit", conf=_healthy, code=_EXIT_CODE),
    Fault(name="modes switched", conf=_switched),
    Fault(name="service killed and restarted", conf=_restarted),
)
WITHOUT_AGENT: Final = Fault(name="System.exit without the agent", conf=lambda *_: {}, registers=False, code=_EXIT_CODE)


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

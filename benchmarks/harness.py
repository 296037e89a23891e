"""Servers on one core, samples from the other, in rotation, and knowing when the machine was not quiet."""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blocklist-benchmarks"
T = TypeVar("T")
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, GENERATOR_CORE = CORES[0], CORES[-1]
NOISE = 0.08  # CPU seconds a second that processes of others may use beside a sample
PATIENCE = 60.0  # seconds of one row for waiting until the machine is quiet, and for trying again
TICK = os.sysconf("SC_CLK_TCK")
GRAIN = 3 / TICK  # what rounding to ticks may make up in a short sample

_servers: list[int] = []


@dataclass(kw_only=True)
class Server:
    """A running process and where it listens."""

    pid: int
    port: int

    @property
    def url(self) -> str:
        """Base URL, no slash at the end."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(kw_only=True)
class Target:
    """`ours / peer` must be at least (or at most) `factor`. Against no peer it is the figure itself."""

    peer: str | None
    factor: float
    at_least: bool = True


@dataclass(kw_only=True)
class Row:
    """One comparison: the samples of every contender, `samples[i]` of all of them taken in round i."""

    name: str
    unit: str
    ours: str
    samples: dict[str, list[float]]
    targets: list[Target] = field(default_factory=list)
    noise: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""


def prepare() -> None:
    """Pin this process to the generator's core; it and its children may open many files and go before others."""
    if len(CORES) < 2:
        raise SystemExit("benchmarks need two cores: one for the server, one for the generator")
    os.sched_setaffinity(0, {GENERATOR_CORE})
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders do not outlive us
    CACHE.mkdir(parents=True, exist_ok=True)


@contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Do `work` in a thread meanwhile: it is to return soon after the event is set, and is waited for."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on a real disk (the system's temp folder may be memory), removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=CACHE))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(
    command: list[str], *, port: int, ready: str | None, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start `command` on the server's core; yields once `GET ready` answers 2xx (None: once it listens)."""
    pinned = ["taskset", "-c", str(SERVER_CORE), *command]
    with log.open("wb") as out:
        process = subprocess.Popen(pinned, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=out, stderr=out)
    _servers.append(process.pid)
    try:
        _await_ready(process, port, ready, log)
        yield Server(pid=process.pid, port=port)
    finally:
        _servers.remove(process.pid)
        _end(process)


def _await_ready(process: subprocess.Popen[bytes], port: int, path: str | None, log: Path) -> None:
    deadline = time.monotonic() + 90
    while not _answers(port, path):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{process.args!r} did not come up:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


def _answers(port: int, path: str | None) -> bool:
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
    """One request on a connection of its own: status, headers in lower case, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body=body, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def rotate(contenders: Mapping[str, Callable[[], float]], *, rounds: int) -> tuple[dict[str, list[float]], ...]:
    """Warm each up once, then sample them in turn, so that drift and noise hit all alike. Returns samples and noise."""
    for sample in contenders.values():
        sample()
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    noise: dict[str, list[float]] = {name: [] for name in contenders}
    patience = [PATIENCE]
    for _ in range(rounds):
        for name, sample in contenders.items():
            value, foreign = quiet(sample, patience)
            samples[name].append(value)
            noise[name].append(round(foreign, 3))
    return samples, noise


def quiet(sample: Callable[[], float], patience: list[float]) -> tuple[float, float]:
    """The least disturbed of a few samples: its value, and the CPUs that other processes used meanwhile.

    One, if nothing disturbs it; more, each from a quieter moment, while the row's seconds of `patience` last.
    """
    best = _noise(sample)
    while best[1] > NOISE and patience[0] > 0:
        began = time.monotonic()
        if _noise(partial(time.sleep, 0.3))[1] <= NOISE:
            best = min(best, _noise(sample), key=itemgetter(1))
        patience[0] -= time.monotonic() - began
    return best


def _noise(sample: Callable[[], T]) -> tuple[T, float]:
    """What `sample` returns, and how many CPUs other processes used meanwhile."""
    began, before = time.monotonic(), _foreign_seconds()
    value = sample()
    return value, max(0.0, _foreign_seconds() - before - GRAIN) / (time.monotonic() - began)


def _foreign_seconds() -> float:
    """CPU seconds of all but this process, its finished children and its servers; interrupts belong to nobody."""
    user, nice, system = (int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:4])
    own = os.times()
    servers = sum(cpu_seconds(pid) for pid in _servers)
    return (user + nice + system) / TICK - sum(own[:4]) - servers


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, its children, and those of them that ended."""
    process = Path(f"/proc/{pid}")
    fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
    children = (process / "task" / str(pid) / "children").read_text().split()
    return sum(int(ticks) for ticks in fields[11:15]) / TICK + sum(cpu_seconds(int(child)) for child in children)

"""The load: wrk for HTTP/1.1, h2load for gRPC. Both are C and, but for large bodies, never the limit."""

import itertools
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import GENERATOR_CORE

LUA = Path(__file__).parent / "wrk.lua"
SECONDS = 1  # of one sample
ATTEMPTS = 3  # a machine that stalls for seconds breaks connections

_tags = itertools.count(1)


class Load(NamedTuple):
    """What came of a sample: answers a second, milliseconds within which 99 of 100 came, how many; and refusals."""

    rate: float
    p99: float
    answers: int
    refused: int


def wrk(url: str, *, connections: int = 64, headers: Mapping[str, str] | None = None, seconds: int = SECONDS) -> Load:
    """The same GET over keep-alive connections. Raises RuntimeError when some fail each time."""
    for _ in range(ATTEMPTS):
        load = _wrk([url], connections, headers or {}, seconds, [])
        if load is not None and not load.refused:
            return load
    raise RuntimeError(f"{url}: {load}")


def wrk_write(*urls: str, method: str, body: str, connections: int, ids: int = 0, refusals: bool = False) -> Load:
    """Writes to several servers at once, which share the connections: `@` in the path and in the body is replaced.

    In the path by one of so many `ids` (0: always a new one), in the body by twelve digits that are always new.
    Raises RuntimeError when some fail each time; those that are refused (4xx, 5xx) only unless `refusals` are counted.
    """
    for _ in range(ATTEMPTS):
        load = _wrk(urls, connections, {}, SECONDS, [method, body, str(ids)])
        if load is not None and (refusals or not load.refused):
            return load
    raise RuntimeError(f"{urls}: {load}")


def _wrk(
    urls: Sequence[str], connections: int, headers: Mapping[str, str], seconds: int, arguments: list[str]
) -> Load | None:
    """None when something went wrong that is no answer."""
    named = [option for name, value in headers.items() for option in ("-H", f"{name}: {value}")]
    options = ["-t1", f"-c{connections // len(urls)}", f"-d{seconds}s", "-s", str(LUA), *named]
    commands = [["wrk", *options, url, "--", f"{next(_tags):04d}", *arguments] for url in urls]
    reports = [json.loads(output.splitlines()[-1]) for output in _pinned(commands)]
    if any(report["failed"] or report["requests"] == report["refused"] for report in reports):
        return None
    rate = sum((report["requests"] - report["refused"]) / report["seconds"] for report in reports)
    answers, refused = (sum(report[name] for report in reports) for name in ("requests", "refused"))
    return Load(rate, max(report["p99"] for report in reports), answers, refused)


def h2load(url: str, body: Path, *, connections: int, streams: int = 1) -> Load:
    """Calls of gRPC, all with the same body, over `connections` with `streams` calls at a time on each."""
    log = body.with_suffix(".log")  # a line for each call: when it began, its status, its microseconds
    options = [f"-c{connections}", f"-m{streams}", "-t1", f"--duration={SECONDS}", "--warm-up-time=200ms"]
    grpc = ["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", str(body)]
    log.unlink(missing_ok=True)
    report = _pinned([["h2load", *options, f"--log-file={log}", *grpc, url]])[0]
    rate = re.search(r"finished in .*?, ([\d.]+) req/s", report)
    if not rate or not re.search(r" 0 failed, 0 errored, 0 timeout", report):
        raise RuntimeError(report)
    took = sorted(int(line.split()[2]) for line in log.read_text().splitlines())
    return Load(float(rate[1]), took[int(len(took) * 0.99)] / 1000, len(took), 0)


def _pinned(commands: Sequence[list[str]]) -> list[str]:
    """Run them at the same time on the generator's core; what they print."""
    pinned = ["taskset", "-c", str(GENERATOR_CORE)]
    running = [subprocess.Popen([*pinned, *command], stdout=subprocess.PIPE, text=True) for command in commands]
    printed = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError(f"{commands[0]} failed: {printed}")
    return printed

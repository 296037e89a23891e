"""Load generators in C: wrk for HTTP/1.1, h2load for gRPC. They are the limit only for large bodies."""

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
ATTEMPTS = 3  # connections break if the machine stalls for seconds

_tags = itertools.count(1)


class Load(NamedTuple):
    """A sample: responses per second, 99th percentile in ms, number of responses, and of rejected requests."""

    rate: float
    p99: float
    responses: int
    refused: int


def wrk(url: str, *, connections: int = 64, headers: Mapping[str, str] | None = None, seconds: int = SECONDS) -> Load:
    """Repeat a GET over keep-alive connections. Raises RuntimeError if requests fail in all attempts."""
    for _ in range(ATTEMPTS):
        load = _wrk([url], connections, headers or {}, seconds, [])
        if load is not None and not load.refused:
            return load
    raise RuntimeError(f"{url}: {load}")


def wrk_write(*urls: str, method: str, body: str, connections: int, ids: int = 0, refusals: bool = False) -> Load:
    """Write to several servers that share the connections. `@` in the path and in the body is replaced.

    In the path by one of `ids` ids in turn (0: always a new one), in the body by twelve new characters. Raises
    RuntimeError if requests fail in all attempts; rejected requests (4xx, 5xx) count as failed unless `refusals` is
    set.
    """
    for _ in range(ATTEMPTS):
        load = _wrk(urls, connections, {}, SECONDS, [method, body, str(ids)])
        if load is not None and (refusals or not load.refused):
            return load
    raise RuntimeError(f"{urls}: {load}")


def _wrk(
    urls: Sequence[str], connections: int, headers: Mapping[str, str], seconds: int, arguments: list[str]
) -> Load | None:
    """Return None if requests failed without a response."""
    named = [option for name, value in headers.items() for option in ("-H", f"{name}: {value}")]
    options = ["-t1", f"-c{connections // len(urls)}", f"-d{seconds}s", "-s", str(LUA), *named]
    commands = [["wrk", *options, url, "--", f"{next(_tags):04d}", *arguments] for url in urls]
    reports = [json.loads(output.splitlines()[-1]) for output in _pinned(commands)]
    if any(report["failed"] or report["requests"] == report["refused"] for report in reports):
        return None
    rate = sum((report["requests"] - report["refused"]) / report["seconds"] for report in reports)
    responses, refused = (sum(report[name] for report in reports) for name in ("requests", "refused"))
    return Load(rate, max(report["p99"] for report in reports), responses, refused)


def h2load(url: str, body: Path, *, connections: int, streams: int = 1) -> Load:
    """Make gRPC calls with the same body, `streams` at a time on each of `connections`."""
    log = body.with_suffix(".log")  # a line per call: start, status, microseconds
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
    """Run the commands at the same time on the generator's core; return their output."""
    pinned = ["taskset", "-c", str(GENERATOR_CORE)]
    running = [subprocess.Popen([*pinned, *command], stdout=subprocess.PIPE, text=True) for command in commands]
    printed = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError(f"{commands[0]} failed: {printed}")
    return printed

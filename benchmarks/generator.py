"""The load: wrk for HTTP/1.1, h2load for gRPC. Both are C and, but for large bodies, never the limit."""

import itertools
import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness import GENERATOR_CORE

LUA = Path(__file__).parent / "wrk.lua"
SECONDS = int(os.environ.get("BENCH_SECONDS", "1"))  # of one sample
ATTEMPTS = 3  # a machine that stalls for seconds breaks connections

_tags = itertools.count(1)


def wrk(url: str, *, connections: int = 64, headers: Mapping[str, str] | None = None, seconds: int = SECONDS) -> float:
    """The same GET over keep-alive connections: answers per second. Raises RuntimeError when some fail each time."""
    return _wrk(url, connections, headers or {}, seconds, [])


def wrk_write(url: str, *, method: str, body: str, connections: int, seconds: int = SECONDS) -> float:
    """Writes per second, each to an id of its own: `@` in the path and in the body becomes twelve characters."""
    return _wrk(url, connections, {}, seconds, [method, f"t{next(_tags):03d}", body])


def _wrk(url: str, connections: int, headers: Mapping[str, str], seconds: int, arguments: list[str]) -> float:
    named = [option for name, value in headers.items() for option in ("-H", f"{name}: {value}")]
    options = ["-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(LUA), *named, url, "--", *arguments]
    for _ in range(ATTEMPTS):
        report = json.loads(_pinned(["wrk", *options]).splitlines()[-1])
        if report["requests"] and not report["errors"]:
            return float(report["requests"] / report["seconds"])
    raise RuntimeError(f"{url}: {report}")


def h2load(url: str, body: Path, *, connections: int, streams: int = 1, seconds: int = SECONDS) -> float:
    """Calls of gRPC per second, all with the same body, over `connections` with `streams` calls at a time on each."""
    options = [f"-c{connections}", f"-m{streams}", "-t1", f"--duration={seconds}", "--warm-up-time=200ms"]
    grpc = ["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", str(body)]
    report = _pinned(["h2load", *options, *grpc, url])
    rate = re.search(r"finished in .*?, ([\d.]+) req/s", report)
    if not rate or not re.search(r" 0 failed, 0 errored, 0 timeout", report):
        raise RuntimeError(report)
    return float(rate[1])


def _pinned(command: list[str]) -> str:
    pinned = ["taskset", "-c", str(GENERATOR_CORE), *command]
    return subprocess.run(pinned, check=True, capture_output=True, text=True).stdout

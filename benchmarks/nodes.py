"""The inventory: 10,000 nodes with 5 labels each, reported by one manager."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any

from benchmarks import systems
from benchmarks.harness import Server, fetch, scratch, unless_quick
from benchmarks.rows import Row, Samples
from benchmarks.sampling import cpu_seconds, megabytes, rotate

NODES = 10_000
PAGE = 1000
RACK = 40  # nodes in each
ROUNDS = 7
HEARTBEATS = unless_quick(5, 3)  # in one sample: the kernel counts CPU time in steps of 10 ms
NODES_PAGES, LIST, CPU = "GET /nodes, all pages", "GET /blocklist", "ms of CPU"
LEFT_OUT, REPEATED, ONE, ALL = "without nodes", "same nodes", "one other label", "all labels others"
SELECTED, UNSELECTED = "with a selector", "without"
Change = Callable[[int], dict[str, Any]]


def run() -> list[Row]:
    """Compare pages with the list of as many nodes, and reports with heartbeats that leave the nodes out."""
    with scratch() as folder, ExitStack() as stack:
        ours = stack.enter_context(systems.service(folder / "inventory"))
        blocklist = stack.enter_context(systems.service(folder / "blocklist"))
        systems.block(blocklist, NODES)
        before = megabytes(ours.pid)
        _register(ours)
        _send(ours, nodes=_nodes())
        _wait_until_known(ours)
        name = f"{NODES:,} nodes with 5 labels"
        return [
            Row(name=f"{name}: resident memory", unit="MB", ours="reported",
                samples={"reported": [megabytes(ours.pid)], "before": [before]}),
            *_reads(name, ours, blocklist),
            _selector(name, ours),
            _heartbeats(name, ours),
            Row(name=f"{name}: resident memory after these reports", unit="MB", ours="reported",
                samples={"reported": [megabytes(ours.pid)], "before": [before]}),
        ]  # fmt: skip


def _reads(name: str, ours: Server, blocklist: Server) -> Iterator[Row]:
    contenders = {
        NODES_PAGES: partial(_timed, lambda: sum(map(len, _pages(ours)))),
        LIST: partial(_timed, lambda: len(fetch(blocklist.port, "/blocklist")[2])),
    }
    samples, noise = rotate(contenders, rounds=ROUNDS)
    title = f"{name} in pages of {PAGE:,}"
    for index, unit in enumerate(("ms", "kB")):
        taken = {contender: [sample[index] for sample in given] for contender, given in samples.items()}
        yield Row(name=title, unit=unit, ours=NODES_PAGES, samples=taken, noise=noise)


def _selector(name: str, ours: Server) -> Row:
    """A page of 40 nodes: those of a rack, and the first ones."""
    contenders = {
        SELECTED: partial(_timed, lambda: len(_get(ours, "/nodes?selector=rack%3Dr7&limit=1000"))),
        UNSELECTED: partial(_timed, lambda: len(_get(ours, f"/nodes?limit={RACK}"))),
    }
    samples, noise = rotate(contenders, rounds=ROUNDS)
    taken = {contender: [sample[0] for sample in given] for contender, given in samples.items()}
    return Row(name=f"{name}: GET /nodes of one rack", unit="ms", ours=SELECTED, samples=taken, noise=noise)


def _heartbeats(name: str, ours: Server) -> Row:
    numbers = count(1)
    changes: Mapping[str, Change] = {
        REPEATED: lambda _: {"nodes": _nodes()},
        ONE: lambda number: {"nodes": _nodes(one=number)},
        ALL: lambda number: {"nodes": _nodes(every=number)},
        LEFT_OUT: lambda _: {},
    }
    samples: Samples = {contender: [] for contender in changes}
    for _ in range(unless_quick(ROUNDS, 2)):
        for contender, change in changes.items():
            _send(ours, nodes=_nodes())
            # One without nodes costs less than the step in which the kernel counts.
            heartbeats = HEARTBEATS * (30 if contender == LEFT_OUT else 1)
            samples[contender].append(_cpu(ours, [change(next(numbers)) for _ in range(heartbeats)]))
    return Row(name=f"{name}: a heartbeat of its manager", unit=CPU, ours=REPEATED, samples=samples)


def _cpu(ours: Server, reports: list[dict[str, Any]]) -> float:
    """Milliseconds of CPU per heartbeat, until what it reports is applied."""
    _wait_until_idle(ours)
    started = cpu_seconds(ours.pid)
    for report in reports:
        _send(ours, **report)
        if report:
            _wait_until_idle(ours)
    return (cpu_seconds(ours.pid) - started) * 1000 / len(reports)


def _nodes(one: int = 0, every: int = 0) -> list[dict[str, Any]]:
    """All nodes; `one` is the generation of the first, `every` that of all."""
    return [
        {
            "id": f"worker-{number:05d}",
            "addresses": [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"],
            "labels": {
                "rack": f"r{number // RACK}",
                "zone": f"z{number % 3}",
                "pool": "batch" if number % 5 else "gpu",
                "type": "m5.4xlarge",
                "generation": str(one if number == 0 and one else every),
            },
        }
        for number in range(NODES)
    ]


def _register(ours: Server) -> None:
    body = json.dumps({"role": "RESOURCE_MANAGER", "sessionId": "s1", "leaseSeconds": 3600})
    _check(201, *fetch(ours.port, "/listeners/yarn", method="PUT", body=body))


def _send(ours: Server, **report: Any) -> None:
    body = json.dumps({"sessionId": "s1", **report})
    _check(200, *fetch(ours.port, "/listeners/yarn/heartbeat", method="POST", body=body))


def _pages(ours: Server) -> Iterator[bytes]:
    after = ""
    while True:
        page = _get(ours, f"/nodes?limit={PAGE}{after}")
        yield page
        following = json.loads(page[page.rindex(b'"next":') + 7 : -1].rstrip(b"}\n"))
        if following is None:
            return
        after = f"&after={following}"


def _get(ours: Server, path: str) -> bytes:
    status, headers, body = fetch(ours.port, path)
    _check(200, status, headers, body)
    return body


def _timed(read: Callable[[], int]) -> tuple[float, float]:
    """Milliseconds, and kilobytes that were read."""
    started = time.perf_counter()
    size = read()
    return (time.perf_counter() - started) * 1000, size / 1000


def _wait_until_known(ours: Server) -> None:
    """A long report is applied in slices."""
    while json.loads(_get(ours, "/nodes?limit=1"))["total"] < NODES:
        time.sleep(0.01)
    _wait_until_idle(ours)


def _wait_until_idle(ours: Server) -> None:
    """Wait until the service has used almost no CPU for a while."""
    used = cpu_seconds(ours.pid)
    while True:
        time.sleep(0.1)
        before, used = used, cpu_seconds(ours.pid)
        if used - before <= 0.01:
            return


def _check(expected: int, status: int, _: Mapping[str, str], body: bytes) -> None:
    if status != expected:
        raise RuntimeError(f"{status}: {body[:500]!r}")

"""GET /blocklist of 1, 100 and 10,000 nodes: requests, bytes and CPU, compared with nginx serving the same bytes."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import systems
from benchmarks.harness import Server, fetch, scratch
from benchmarks.request_cost import Cost, cost
from benchmarks.rows import Row, at_most, column
from benchmarks.sampling import rotate

OURS, NGINX = "blocklist", "nginx"
SIZES = (1, 100, 10_000)
ROUNDS = 7
CPU = "µs of CPU per GET"


def run() -> list[Row]:
    """Return three rows per size, and one of responses without a body."""
    systems.require("wrk")
    with scratch() as folder, ExitStack() as stack:
        services = {count: stack.enter_context(systems.service(folder / str(count))) for count in SIZES}
        nginx = stack.enter_context(systems.nginx(folder))
        rows = [row for count, server in services.items() for row in _rows(folder, server, nginx, count)]
        return [*rows, _not_modified(services)]


def _rows(folder: Path, ours: Server, nginx: Server, count: int) -> list[Row]:
    systems.block(ours, count)
    copy = folder / f"nodes-{count}"
    systems.copy_list(ours, copy)
    megabytes = copy.stat().st_size / 1e6
    contenders: dict[str, Callable[[], Cost]] = {
        OURS: partial(cost, ours, "/blocklist"),
        NGINX: partial(cost, nginx, f"/{copy.name}"),
    }
    samples, noise = rotate(contenders, rounds=ROUNDS)
    rate, cpu = (column(samples, figure) for figure in range(2))
    bandwidth = {contender: [one * megabytes for one in rates] for contender, rates in rate.items()}
    name = f"{count:,} node{'s' if count > 1 else ''}"
    figures = {"requests/s": rate, "MB/s": bandwidth, CPU: cpu}
    return [Row(name=name, unit=unit, ours=OURS, samples=taken, noise=noise) for unit, taken in figures.items()]


def _not_modified(services: dict[int, Server]) -> Row:
    """Without a body the size must not matter."""
    few, many = f"{SIZES[0]:,} node", f"{SIZES[-1]:,} nodes"
    contenders = {many: _conditional(services[SIZES[-1]]), few: _conditional(services[SIZES[0]])}
    samples, noise = rotate(contenders, rounds=ROUNDS)
    cpu = column(samples, Cost._fields.index("cpu"))
    return Row(name="304", unit=CPU, ours=many, samples=cpu, noise=noise, targets=[at_most(1.1, few)])


def _conditional(server: Server) -> Callable[[], Cost]:
    return partial(cost, server, "/blocklist", {"If-None-Match": fetch(server.port, "/blocklist")[1]["etag"]})

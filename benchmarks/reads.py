"""GET /blocklist: 10 nodes, 1,000 nodes, 304, gzip; compared with nginx, bare ASGI and Flink's REST endpoint."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from benchmarks import systems
from benchmarks.generator import Load, wrk
from benchmarks.harness import Server, fetch, scratch
from benchmarks.rows import Row, Target, at_least, column
from benchmarks.sampling import rotate

OURS, NGINX, BARE, FLINK = "blocklist", "nginx", "bare ASGI", "Flink /config"
UNIT = "requests/s"
ROUNDS = 7
WARM_UP = 12  # seconds for the JVM's compiler


def run() -> list[Row]:
    """Return all rows on reads."""
    systems.require("wrk")
    with scratch() as folder, ExitStack() as stack:
        small = stack.enter_context(systems.service(folder / "small"))
        large = stack.enter_context(systems.service(folder / "large"))
        for server, count in ((small, 10), (large, 1000)):
            systems.block(server, count)
            systems.copy_list(server, folder / f"nodes-{count}")
        nginx = stack.enter_context(systems.nginx(folder))
        bare = stack.enter_context(systems.bare("reads", folder))
        flink = stack.enter_context(systems.flink(folder))
        return [
            _plain("10 nodes", small, nginx, bare, 10, [at_least(0.9, NGINX)]),
            _plain("1,000 nodes", large, nginx, bare, 1000, [at_least(1.6, BARE)]),
            _not_modified(small, nginx, bare, flink),
            _gzip(large),
        ]


def _plain(name: str, ours: Server, nginx: Server, bare: Server, count: int, targets: list[Target]) -> Row:
    urls = {
        OURS: f"{ours.url}/blocklist",
        NGINX: f"{nginx.url}/nodes-{count}",
        BARE: f"{bare.url}/nodes-{count}",
    }
    contenders: dict[str, Callable[[], Load]] = {contender: partial(wrk, url) for contender, url in urls.items()}
    return _row(name, contenders, targets)


def _not_modified(ours: Server, nginx: Server, bare: Server, flink: Server) -> Row:
    wrk(f"{flink.url}/config", seconds=WARM_UP)
    contenders: dict[str, Callable[[], Load]] = {
        OURS: _conditional(ours, "/blocklist"),
        NGINX: _conditional(nginx, "/nodes-10"),
        BARE: _conditional(bare, "/nodes-10"),
        FLINK: partial(wrk, f"{flink.url}/config"),
    }
    return _row("304", contenders, [at_least(0.8, NGINX), at_least(2, FLINK)])


def _conditional(server: Server, path: str) -> Callable[[], Load]:
    """Repeat the same ETag; wrk counts a 200 like a 304, so one response is checked first."""
    headers = {"If-None-Match": fetch(server.port, path)[1]["etag"]}
    assert fetch(server.port, path, headers=headers)[0] == 304
    return partial(wrk, server.url + path, headers=headers)


def _gzip(ours: Server) -> Row:
    url, headers = f"{ours.url}/blocklist", {"Accept-Encoding": "gzip"}
    assert fetch(ours.port, "/blocklist", headers=headers)[1]["content-encoding"] == "gzip"
    contenders: dict[str, Callable[[], Load]] = {
        OURS: partial(wrk, url, headers=headers),
        "blocklist, plain": partial(wrk, url),
    }
    return _row("1,000 nodes, gzip", contenders, [at_least(1.5, "blocklist, plain")])


def _row(name: str, contenders: dict[str, Callable[[], Load]], targets: list[Target]) -> Row:
    samples, noise = rotate(contenders, rounds=ROUNDS)
    return Row(name=name, unit=UNIT, ours=OURS, samples=column(samples, 0), noise=noise, targets=targets)

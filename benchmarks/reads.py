"""GET /blocklist: 10 nodes, 1,000 nodes, 304, gzip; beside nginx, a bare ASGI app and Flink's REST endpoint."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import peers
from benchmarks.generator import wrk
from benchmarks.harness import Row, Server, Target, fetch, rotate, scratch

OURS, NGINX, BARE, FLINK = "blocklist", "nginx", "bare ASGI", "Flink /config"
UNIT = "requests/s"
ROUNDS = 7
WARM_UP = 12  # seconds for the JVM's compiler


def run() -> list[Row]:
    """All rows on reads."""
    peers.require("wrk")
    with scratch() as folder, ExitStack() as stack:
        small = stack.enter_context(peers.service(folder / "small"))
        large = stack.enter_context(peers.service(folder / "large"))
        for server, count in ((small, 10), (large, 1000)):
            peers.block(server, count)
            _copy(server, folder / f"nodes-{count}")
        nginx = stack.enter_context(peers.nginx(folder))
        bare = stack.enter_context(peers.bare("reads", folder))
        flink = stack.enter_context(peers.flink(folder))
        return [
            _plain("10 nodes", small, nginx, bare, 10, [Target(peer=NGINX, factor=0.9)]),
            _plain("1,000 nodes", large, nginx, bare, 1000, [Target(peer=BARE, factor=1.6)]),
            _not_modified(small, nginx, bare, flink),
            _gzip(large),
        ]


def _copy(server: Server, path: Path) -> None:
    """The answer as files, so that all send the very same bytes."""
    status, headers, body = fetch(server.port, "/blocklist")
    assert status == 200
    path.write_bytes(body)
    kept = {name: value for name, value in headers.items() if name not in ("date", "server", "connection")}
    path.with_name(path.name + ".headers").write_text(json.dumps(kept))


def _plain(name: str, ours: Server, nginx: Server, bare: Server, count: int, targets: list[Target]) -> Row:
    urls = {
        OURS: f"{ours.url}/blocklist",
        NGINX: f"{nginx.url}/nodes-{count}",
        BARE: f"{bare.url}/nodes-{count}",
    }
    contenders: dict[str, Callable[[], float]] = {contender: partial(wrk, url) for contender, url in urls.items()}
    return _row(name, contenders, targets)


def _not_modified(ours: Server, nginx: Server, bare: Server, flink: Server) -> Row:
    wrk(f"{flink.url}/config", seconds=WARM_UP)
    contenders: dict[str, Callable[[], float]] = {
        OURS: _conditional(ours, "/blocklist"),
        NGINX: _conditional(nginx, "/nodes-10"),
        BARE: _conditional(bare, "/nodes-10"),
        FLINK: partial(wrk, f"{flink.url}/config"),
    }
    return _row("304", contenders, [Target(peer=NGINX, factor=0.8), Target(peer=FLINK, factor=2)])


def _conditional(server: Server, path: str) -> Callable[[], float]:
    """The same tag again and again; wrk counts a 200 as well as a 304, so one is looked at first."""
    headers = {"If-None-Match": fetch(server.port, path)[1]["etag"]}
    assert fetch(server.port, path, headers=headers)[0] == 304
    return partial(wrk, server.url + path, headers=headers)


def _gzip(ours: Server) -> Row:
    url, headers = f"{ours.url}/blocklist", {"Accept-Encoding": "gzip"}
    assert fetch(ours.port, "/blocklist", headers=headers)[1]["content-encoding"] == "gzip"
    contenders: dict[str, Callable[[], float]] = {
        OURS: partial(wrk, url, headers=headers),
        "blocklist, plain": partial(wrk, url),
    }
    return _row("1,000 nodes, gzip", contenders, [Target(peer="blocklist, plain", factor=1.5)])


def _row(name: str, contenders: dict[str, Callable[[], float]], targets: list[Target]) -> Row:
    samples, noise = rotate(contenders, rounds=ROUNDS)
    return Row(name=name, unit=UNIT, ours=OURS, samples=samples, noise=noise, targets=targets)

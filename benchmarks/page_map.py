"""The map of 10,000 hosts: what the page and an update cost the service, and how soon a browser shows them."""

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import httpx
from playwright.sync_api import Page

from benchmarks import systems
from benchmarks.harness import Server, scratch, unless_quick
from benchmarks.rows import Row, at_most, column
from benchmarks.sampling import rotate
from tests.browser.browsing import WIDE, chromium, monitored

RACKS, HOSTS = 250, 40
ROUNDS = 7
OURS = "blocklist"
_CPU_MS = 10
"""The kernel counts CPU time in units of 10 ms."""


def run() -> list[Row]:
    """CPU of the service and time for each of a few kinds of requests; then the same in Chromium."""
    racks = unless_quick(RACKS, 10)
    with (
        scratch() as folder,
        systems.service(folder / "service") as server,
        closing(httpx.Client(base_url=server.url, trust_env=False, timeout=60)) as client,
    ):
        _report(client, racks)
        requests = {name: partial(_request, server, client, path) for name, path in PATHS.items()}
        rows = [_row(name, request) for name, request in requests.items()]
        with chromium() as browser, monitored(browser, server.url, WIDE) as monitor:
            page = monitor.context.new_page()
            rows += [
                Row(name=name, unit="ms", ours=OURS, **_samples(sample), targets=[at_most(target)])
                for name, sample, target in (
                    ("Chromium: first paint of the map", partial(_first_paint, page, "/page/map"), 1000),
                    ("Chromium: first paint of the wall display", partial(_first_paint, page, "/page/map?wall"), 1000),
                    ("Chromium: script for an update of a rack", partial(_update, page), 50),
                )
            ]
        return rows


PATHS = {
    "the whole map": "/page/map/rows",
    "an update without a change": "/page/map/cells?since={name}",
}


def _row(name: str, request: Callable[[], tuple[float, float]]) -> Row:
    samples, noise = rotate({OURS: request}, rounds=ROUNDS)
    return Row(
        name=f"{name}: CPU of the service",
        unit="ms",
        ours=OURS,
        samples=column(samples, 1),
        noise=noise,
        targets=[at_most(500)],
    )


def _samples(sample: Callable[[], float]) -> dict[str, dict[str, list[float]]]:
    samples, noise = rotate({OURS: sample}, rounds=ROUNDS)
    return {"samples": samples, "noise": noise}


def _report(client: httpx.Client, racks: int) -> None:
    """A manager reports all hosts, and one rack is blocked."""
    body = {"role": "RESOURCE_MANAGER", "sessionId": "s1", "leaseSeconds": 3600}
    client.put("/listeners/racks", json=body).raise_for_status()
    nodes = [
        {"id": f"r{rack:03}n{place:02}", "labels": {"rack": f"r{rack:03}"}}
        for rack in range(racks)
        for place in range(HOSTS)
    ]
    client.post("/listeners/racks/heartbeat", json={"sessionId": "s1", "nodes": nodes}).raise_for_status()
    deadline = time.monotonic() + 120
    while client.get("/nodes?limit=1").raise_for_status().json()["total"] < len(nodes):
        if time.monotonic() > deadline:
            raise RuntimeError("the nodes are not applied")
        time.sleep(0.1)
    _block_rack(client, 0)


def _block_rack(client: httpx.Client, rack: int) -> None:
    block = {"action": "MARK_BLOCKED", "cause": "Switch"}
    nodes = {f"r{rack:03}n{place:02}": block for place in range(HOSTS)}
    client.put("/blocklist/nodes", json=nodes).raise_for_status()


def _request(server: Server, client: httpx.Client, path: str) -> tuple[float, float]:
    """Time and CPU in ms of one request, from a map that must be computed again."""
    name = client.get("/page/map/cells").raise_for_status().json()["name"]
    time.sleep(3)
    before, started = _cpu_ms(server.pid), time.perf_counter()
    client.get(path.format(name=name)).raise_for_status()
    return (time.perf_counter() - started) * 1000, _cpu_ms(server.pid) - before


def _cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _CPU_MS


def _first_paint(page: Page, path: str) -> float:
    page.goto(path)
    return float(page.evaluate("performance.getEntriesByType('paint')[0].startTime"))


def _update(page: Page) -> float:
    """Time in the browser's main thread that the update of the cells of a rack and their layout take."""
    page.goto("/page/map")
    return float(
        page.evaluate(
            """() => {
                const shown = cells.slice(0, 40), started = performance.now();
                for (const cell of shown) set(cell, cell.classList.contains("m") ? "e" : "m");
                document.body.getBoundingClientRect();
                return performance.now() - started;
            }"""
        )
    )

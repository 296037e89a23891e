"""The map of 10,000 hosts: what the page and an update cost the service, and what its user waits for in Chromium."""

import itertools
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import Page

from benchmarks import systems
from benchmarks.harness import Server, scratch, unless_quick
from benchmarks.rows import Row, at_most
from benchmarks.sampling import cpu_seconds, rotate
from tests.browser.browsing import WIDE, chromium, monitored

RACKS, HOSTS = 250, 40
ROUNDS = 5
OURS = "blocklist"
MAP, WALL = "/page/map", "/page/map?wall"
_COMPUTED_SECONDS = 2.2
"""The map of 10,000 hosts is computed at most every 2 s."""
# `framed` is the time of the next frame, `answered` that from the next event to the frame that shows its effect.
_TOOLS = """
window.framed = () => new Promise((done) => requestAnimationFrame(() => {
  const channel = new MessageChannel();
  channel.port1.onmessage = () => done(performance.now());
  channel.port2.postMessage(null);
}));
window.answered = (type) => new Promise((done) => addEventListener(
  type, (event) => framed().then((at) => done(at - event.timeStamp)), { once: true, capture: true }));
"""


def run() -> list[Row]:
    """CPU of the service for each of a few requests, and times of a browser; all sampled in turn."""
    racks = unless_quick(RACKS, 10)
    with (
        scratch() as folder,
        systems.service(folder / "service") as server,
        closing(httpx.Client(base_url=server.url, trust_env=False, timeout=60)) as client,
    ):
        _report(client, racks)
        with chromium("chromium") as browser, monitored(browser, server.url, WIDE) as monitor:
            monitor.context.add_init_script(_TOOLS)
            page = monitor.context.new_page()
            measured = _measured(server, client, page, racks)
            samples, noise = rotate({name: sample for name, (sample, _) in measured.items()}, rounds=ROUNDS)
            return [
                Row(
                    name=name,
                    unit="ms",
                    ours=OURS,
                    samples={OURS: samples[name]},
                    noise={OURS: noise[name]},
                    targets=[at_most(target)],
                )
                for name, (_, target) in measured.items()
            ]


def _measured(
    server: Server, client: httpx.Client, page: Page, racks: int
) -> dict[str, tuple[Callable[[], float], float]]:
    """What is measured, in ms, with its targets."""
    blocked = itertools.count(1)
    return {
        "the whole map: CPU of the service": (partial(_cpu, server, client, f"{MAP}/rows"), 500),
        "an update without a change: CPU of the service": (partial(_cpu, server, client, _CELLS), 500),
        "Chromium: the wall display is complete": (partial(_complete, page, WALL), 2000),
        "Chromium: first paint of the wall display": (partial(_first_paint, page), 1000),
        "Chromium: the map is complete": (partial(_complete, page, MAP), 2000),
        "Chromium: first paint of the map": (partial(_first_paint, page), 1000),
        "Chromium: from a block to its cell": (lambda: _shown(page, client, next(blocked) % racks), 4000),
        "Chromium: script and layout for a rack": (partial(_update, page), 50),
        "Chromium: longest of 60 frames while scrolling": (partial(_scroll, page), 100),
        "Chromium: from the pointer to the host's state": (partial(_hover, page), 100),
        "Chromium: from an arrow key to the next host": (partial(_arrow, page), 100),
        "Chromium: from a click to the form": (partial(_click, page), 1000),
    }


def _report(client: httpx.Client, racks: int) -> None:
    """A manager reports all hosts, and one rack is blocked."""
    body = {"role": "RESOURCE_MANAGER", "sessionId": "s1", "leaseSeconds": 3600}
    client.put("/listeners/racks", json=body).raise_for_status()
    nodes = [
        {"id": _host(rack, place), "labels": {"rack": f"r{rack:03}"}} for rack in range(racks) for place in range(HOSTS)
    ]
    client.post("/listeners/racks/heartbeat", json={"sessionId": "s1", "nodes": nodes}).raise_for_status()
    deadline = time.monotonic() + 120
    while client.get("/nodes?limit=1").raise_for_status().json()["total"] < len(nodes):
        if time.monotonic() > deadline:
            raise RuntimeError("the nodes are not applied")
        time.sleep(0.1)
    block = {"action": "MARK_BLOCKED", "cause": "Switch"}
    client.put("/blocklist/nodes", json={_host(0, place): block for place in range(HOSTS)}).raise_for_status()


def _host(rack: int, place: int) -> str:
    return f"r{rack:03}n{place:02}"


_CELLS = f"{MAP}/cells?since={{name}}"


def _cpu(server: Server, client: httpx.Client, path: str) -> float:
    """CPU of one request, from a map that must be computed again."""
    name = client.get(f"{MAP}/cells").raise_for_status().json()["name"]
    time.sleep(_COMPUTED_SECONDS)
    before = cpu_seconds(server.pid)
    client.get(path.format(name=name)).raise_for_status()
    return (cpu_seconds(server.pid) - before) * 1000


def _complete(page: Page, path: str) -> float:
    """From the start of the navigation to the first frame with all cells in place."""
    page.goto(path, wait_until="domcontentloaded")
    return _number(page, "framed()")


def _first_paint(page: Page) -> float:
    """From the start of the navigation, of the page that has been loaded last."""
    return _number(
        page,
        """() => new Promise((done) => new PerformanceObserver((list) => done(list.getEntries()[0].startTime))
            .observe({ type: "paint", buffered: true }))""",
    )


def _open_map(page: Page) -> None:
    """The map at rest, at its top."""
    if urlsplit(page.url).path != MAP or urlsplit(page.url).query:
        page.goto(MAP)
        page.locator("#live.on").wait_for()
        page.wait_for_timeout(500)
    page.evaluate("scrollTo(0, 0)")


def _shown(page: Page, client: httpx.Client, rack: int) -> float:
    """From before the request to the frame with the cell's new state."""
    _open_map(page)
    place = rack * HOSTS + time.monotonic_ns() % HOSTS
    node, code = _host(*divmod(place, HOSTS)), page.evaluate("place => cells[place].className", place)
    began = time.perf_counter()
    if code == "cell f":
        client.put(f"/blocklist/nodes/{node}", json={"action": "MARK_BLOCKED", "cause": "Disk"}).raise_for_status()
    else:
        client.delete(f"/blocklist/nodes/{node}").raise_for_status()
    page.wait_for_function("([place, before]) => cells[place].className !== before", arg=[place, code])
    page.evaluate("framed()")
    return (time.perf_counter() - began) * 1000


def _update(page: Page) -> float:
    """Time in the browser's main thread for new states of the cells of a rack, and their layout."""
    _open_map(page)
    return _number(
        page,
        """() => {
            const shown = cells.slice(0, 40), codes = shown.map((cell) => cell.className.slice(5));
            const other = (code) => (code === "m" ? "e" : "m"), started = performance.now();
            shown.forEach((cell, place) => set(cell, other(codes[place])));
            document.body.getBoundingClientRect();
            const took = performance.now() - started;
            shown.forEach((cell, place) => set(cell, codes[place]));
            return took;
        }""",
    )


def _scroll(page: Page) -> float:
    """From one frame to the next while the page moves by 40 px in each."""
    _open_map(page)
    return _number(
        page,
        """async () => {
            let longest = 0, before = await framed();
            for (let frame = 0; frame < 60; frame++) {
                scrollBy(0, 40);
                const at = await framed();
                longest = Math.max(longest, at - before);
                before = at;
            }
            return longest;
        }""",
    )


def _hover(page: Page) -> float:
    """The longest of five."""
    _open_map(page)
    return max(_answer(page, "mouseover", partial(page.mouse.move, *_center(page, 200 + step))) for step in range(5))


def _arrow(page: Page) -> float:
    """Arrow down, which looks for the nearest cell in the next line; the longest of five."""
    _open_map(page)
    page.evaluate("focus(0)")
    return max(_answer(page, "keydown", partial(page.keyboard.press, "ArrowDown")) for _ in range(5))


def _answer(page: Page, event: str, act: Callable[[], None]) -> float:
    """From the event to the frame that shows its effect."""
    page.evaluate("type => { window.took = answered(type); }", event)
    act()
    return _number(page, "took")


def _click(page: Page) -> float:
    """On a free host, to the first frame of the form that blocks it."""
    _open_map(page)
    place = page.evaluate("cells.findIndex((cell) => cell.matches('.f'))")
    x, y = _center(page, place)
    page.mouse.move(x, y)
    began = time.perf_counter()
    page.mouse.click(x, y)
    page.wait_for_url("**/page/block?*", wait_until="domcontentloaded")
    page.evaluate("framed()")
    return (time.perf_counter() - began) * 1000


def _center(page: Page, place: int) -> tuple[float, float]:
    box: dict[str, float] = page.evaluate("place => cells[place].getBoundingClientRect()", place)
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def _number(page: Page, script: str) -> float:
    value: Any = page.evaluate(script)
    return float(value)

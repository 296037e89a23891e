"""`python -m tests.browser.screenshots`: the pictures of the page in docs/images/, of a scene made up for them."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
from playwright.sync_api import Browser

from tests.browser.browsing import chromium, monitored
from tests.browser.scene import create_current_state, write_history
from tests.integration.bodies import now_ms
from tests.integration.process import NO_TLS, ROOT, ServiceProcess, run_app

SHOTS: Final = (
    ("page-light", "/", "light", (1280, 760)),
    ("page-dark", "/", "dark", (1280, 760)),
    ("page-groups", "/?group=cause", "light", (1280, 700)),
    ("page-map", "/page/map", "light", (1280, 560)),
    ("page-wall", "/page/map?wall", "dark", (1920, 1080)),
    ("page-node", "/page/nodes/worker-017", "light", (1280, 1000)),
    ("page-listener", "/page/listeners/spark-20261121-0004", "light", (1280, 860)),
    ("page-history", "/page/history", "dark", (1280, 640)),
    ("page-narrow", "/", "light", (400, 800)),
)


TICKETS: Final = "https://tickets.example.com/browse/{id}"


def main(folder: Path) -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        admin_token = Path(scratch) / "admin.token"
        service = ServiceProcess(Path(scratch), auth="tokens", admin_token_file=str(admin_token), ticket_url=TICKETS)
        run_app("migrate", env=service.environment()).check_returncode()
        write_history(service.database, now_ms())
        stack.enter_context(service)
        tokens = make_scene(service, admin_token, stack)
        browser = stack.enter_context(chromium())
        for name, path, scheme, size in SHOTS:
            _shoot(browser, service.url, tokens["anna"], folder / f"{name}.png", path, scheme, size)


def make_scene(service: ServiceProcess, admin_token: Path, stack: ExitStack) -> dict[str, str]:
    """Create the scene in a running service; returns tokens by name."""
    admin = stack.enter_context(service.client())
    admin.headers["Authorization"] = f"Bearer {admin_token.read_text().strip()}"
    tokens, clients = {}, {}
    for name in ("anna", "ben", "alertmanager"):
        made = admin.post("/tokens", json={"name": name, "role": "operator"}).raise_for_status().json()
        tokens[name] = made["token"]
        clients[name] = stack.enter_context(httpx.Client(base_url=service.url, trust_env=False, verify=NO_TLS))
        clients[name].headers["Authorization"] = f"Bearer {made['token']}"
    create_current_state(admin, clients)
    return tokens


def _shoot(browser: Browser, url: str, token: str, to: Path, path: str, scheme: str, size: tuple[int, int]) -> None:
    with monitored(browser, url, size, color_scheme=scheme, device_scale_factor=1) as monitor:
        page = monitor.context.new_page()
        page.goto(f"/login?next={path}")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(path)
        if page.locator("#live").count():
            page.get_by_text("Live", exact=True).wait_for()
        page.screenshot(path=to)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")

"""A real nginx with the file that is deployed, or the recipe of docs/proxy.md; only addresses in them are others."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from tests import debian
from tests.integration.process import ROOT, free_port, wait_until

CONFIG: Final = ROOT / "deploy" / "nginx.conf"
_RECIPES: Final = ROOT / "docs" / "proxy.md"


class Upstream(Protocol):
    """What nginx passes requests on to, on loopback."""

    @property
    def port(self) -> int: ...


@contextmanager
def nginx_before(folder: Path, replicas: Sequence[Upstream]) -> Iterator[str]:
    """The URL of an nginx that passes requests on to these replicas, while this is entered. It warns of nothing."""
    port = free_port()
    with _running(folder, _at(port, replicas)):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def nginx_below(folder: Path, service: Upstream, *, strips: bool) -> Iterator[str]:
    """The URL, with the path, of an nginx with the recipe for a service below a path."""
    port, page = free_port(), _RECIPES.read_text()
    location, passed = page.split("```nginx\n")[1].partition("```")[0], "proxy_pass http://127.0.0.1:8224"
    stripping = re.search(r"`(proxy_pass [^`]*/;)`", page)
    assert stripping is not None
    assert f"{passed};" in location
    if strips:
        location = location.replace(f"{passed};", stripping[1])
    location = location.replace(passed, f"proxy_pass http://127.0.0.1:{service.port}")
    server = f"server {{ listen 127.0.0.1:{port}; {location} }}"
    with _running(folder, f"error_log stderr warn; events {{}} http {{ access_log off; {server} }}"):
        yield f"http://127.0.0.1:{port}/tools/blocklist"


@contextmanager
def _running(folder: Path, text: str) -> Iterator[None]:
    config = folder / "nginx.conf"
    config.write_text(text)
    program = debian.require({"nginx": "nginx-light"})["nginx"]
    options = ["-p", str(folder), "-c", str(config), "-g", f"daemon off; pid {folder}/nginx.pid;"]
    log = folder / "nginx.log"
    with log.open("wb") as stderr, subprocess.Popen([program, *options], stderr=stderr) as process:
        try:
            wait_until(lambda: process.poll() is not None or (folder / "nginx.pid").exists())
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.terminate()
            process.wait(60)


def _at(port: int, replicas: Sequence[Upstream]) -> str:
    addresses = {f"replica-{place}:8224": f"127.0.0.1:{own.port}" for place, own in enumerate(replicas, 1)}
    text = CONFIG.read_text()
    for present, wanted in {**addresses, "listen 8224;": f"listen 127.0.0.1:{port};"}.items():
        assert present in text, present
        text = text.replace(present, wanted)
    return text

"""The service as `make run` starts it, on a free port with its own database."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from demo.cluster import LOOPBACK, wait_until

ROOT: Final = Path(__file__).parents[1]
# Ends the service when this process dies, which closes its stdin.
_DIE_WITH_PARENT: Final = '"$@" </dev/null & cat; kill $!; wait $!'
_LISTENING: Final = re.compile(r"blocklist listens on (http://\S+)")


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """Yield the URL once the service listens. Raises TimeoutError with the end of its log otherwise."""
    log, app, environment = folder / "service.log", [sys.executable, "-m", "app"], _environment(folder)
    with log.open("wb") as out:
        subprocess.run([*app, "migrate"], cwd=ROOT, env=environment, stdout=out, stderr=out, check=True)
        process = subprocess.Popen(
            ["sh", "-c", _DIE_WITH_PARENT, "sh", *app],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            # Ctrl-C must not reach the service: the demo ends it last.
            start_new_session=True,
        )
    try:
        yield _url(log)
    finally:
        process.communicate()


def _environment(folder: Path) -> dict[str, str]:
    """The environment of this process, without settings of another service."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("BLOCKLIST_")}
    database = f"sqlite:///{folder / 'blocklist.db'}"
    return {**others, "BLOCKLIST_HOST": LOOPBACK, "BLOCKLIST_PORT": "0", "BLOCKLIST_DATABASE_URL": database}


def _url(log: Path) -> str:
    def match() -> re.Match[str] | None:
        return _LISTENING.search(log.read_text(encoding="utf-8", errors="replace"))

    try:
        wait_until(lambda: match() is not None, 60, "the service to listen")
    except TimeoutError as error:
        error.add_note(log.read_text(encoding="utf-8", errors="replace")[-4000:])
        raise
    found = match()
    assert found is not None
    return found[1]

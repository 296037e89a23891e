"""Two services with the same tokens and the same empty list: one with the fast path, one without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.integration.databases import SqliteFiles
from tests.integration.process import ServiceProcess, environment, run_app, url_of
from tests.integration.secured import secured_service

TIMEOUTS: Final = {f"app.http.connection.{name}": 0.5 for name in ("HEADER_SECONDS", "BODY_SECONDS")}
"""For a head or body that never ends, as some of the random ones do not."""


@contextmanager
def fuzzed_services(folder: Path, auth: str) -> Iterator[tuple[tuple[int, int], Mapping[str, Sequence[str]]]]:
    """Their ports, and header lines by the name of who sends them."""
    template = folder / "empty.db"
    migrated = run_app("migrate", env=environment(database_url=url_of(template)))
    assert migrated.returncode == 0, migrated.stderr
    credentials: dict[str, Sequence[str]] = {"none": ()}
    settings = {"auth": auth}
    if auth == "tokens":
        template, credentials = _with_tokens(folder, template)
        settings["admin_token_file"] = str(folder / "secured" / "admin.token")
    processes = []
    for name, fast_path in (("fast", "true"), ("ordinary", "false")):
        (folder / name).mkdir()
        process = ServiceProcess(folder / name, fast_path=fast_path, constants=TIMEOUTS, **settings)
        process.database.write_bytes(template.read_bytes())
        processes.append(process)
    fast, ordinary = processes
    with fast, ordinary:
        yield (fast.port, ordinary.port), credentials


def _with_tokens(folder: Path, template: Path) -> tuple[Path, dict[str, Sequence[str]]]:
    own = folder / "secured"
    own.mkdir()
    with secured_service(own, SqliteFiles(template)) as secured:
        lines = {role.value: [f"Authorization: Bearer {token}"] for role, token in secured.tokens.items()}
    twice = [*lines["operator"], *lines["reader"]]
    return own / "blocklist.db", {"none": (), **lines, "twice": twice, "wrong": ["Authorization: Bearer x"]}

"""A real PgBouncer in front of a PostgreSQL server of the tests, from Debian's package."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests import debian
from tests.integration.process import free_port, wait_until
from tests.postgres import PASSWORD, USER, PostgresServer, unprivileged_prefix

_CONFIGURATION = """
[databases]
* = host=127.0.0.1 port={server}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = {mode}
default_pool_size = {pool_size}
max_client_conn = 500
"""


@contextmanager
def pgbouncer(server: PostgresServer, mode: str, *, pool_size: int) -> Iterator[int]:
    """Its port; `mode` is transaction or session, `pool_size` the sessions of the server for each database.

    All else is PgBouncer's default. Raises debian.MissingError.
    """
    program = debian.require({"pgbouncer": "pgbouncer"})["pgbouncer"]
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="blocklist-pgbouncer-"))
    folder.chmod(0o755)
    users, configuration, log = folder / "users", folder / "pgbouncer.ini", folder / "log"
    users.write_text(f'"{USER}" "{PASSWORD}"\n')
    text = _CONFIGURATION.format(server=server.port, port=port, users=users, mode=mode, pool_size=pool_size)
    configuration.write_text(text)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*unprivileged_prefix(), program, str(configuration)], stdout=output, stderr=output, env=dict(os.environ)
        )
    try:

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text(errors="replace")
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                return True
            return False

        wait_until(is_ready)
        yield port
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)

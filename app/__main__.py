"""`python -m app [serve | migrate | new-history | openapi]`: the service from a checkout or the image."""

from __future__ import annotations

import argparse
import gc
import json
import signal
import socket
import sys
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI

from app import logs
from app.fast_put import FastPutProtocol
from app.main import create_app, stop_streams
from app.settings import Settings, SettingsError, read_settings
from app.store.schema import SchemaError, check, migrate, path_of
from app.store.store import Store

GRACE_SECONDS: Final = 1
"""How long requests and streams that do not end by themselves may hold up the stop."""

log = structlog.get_logger("blocklist")


class Server(uvicorn.Server):
    """uvicorn's server, but open streams are told before it waits for them."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            _welcome(self, self._app)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stopping")
        stop_streams(self._app)
        await super().shutdown(sockets)


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    check(settings.database_url)
    Store(settings.database_url).check_unused()
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=FastPutProtocol if settings.fast_path else "httptools",
        loop="uvloop",
        ws="none",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    # uvicorn raises the signal again when it is done: a stop that was asked for is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    # What is loaded by now stays: the collector need not look at it again, nor so often at the rest.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    server = Server(config, app)
    server.run()
    return 0 if server.started else 1


def _welcome(server: uvicorn.Server, app: FastAPI) -> None:
    settings: Settings = app.state.service.settings
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    data = path_of(settings.database_url).resolve()
    if settings.log_format == "json":
        log.info("listening", url=url, data=str(data))
        return
    block = '{"action": "MARK_BLOCKED", "cause": "Hot machine"}'
    print(f"blocklist listens on {url} and keeps its data in {data}. Try:")
    print(f"  curl -X PUT {url}/blocklist/nodes/worker-17 -d '{block}'", flush=True)


def new_history(settings: Settings) -> int:
    """After a restore: begin a new history, so that nobody goes on from a revision that was lost."""
    check(settings.database_url)
    history = Store(settings.database_url).renew_history()
    print(f"The database begins history {history}: all watchers will start from a snapshot.")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit code. What an operator did wrong is a sentence on stderr, code 2."""
    parser = argparse.ArgumentParser(prog="python -m app", description="The blocklist service.")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("serve", help="serve (the default)")
    commands.add_parser("migrate", help="create the database, or bring it up to this version")
    commands.add_parser("new-history", help="after a restore from a backup: make watchers start from a snapshot")
    commands.add_parser("openapi", help="print the API document")
    command = parser.parse_args(arguments).command or "serve"
    try:
        settings = read_settings()
        return _run(command, settings)
    except (SettingsError, SchemaError) as error:
        print(f"blocklist: {error}", file=sys.stderr)
        return 2


def _run(command: str, settings: Settings) -> int:
    match command:
        case "migrate":
            migrate(settings.database_url)
            return 0
        case "new-history":
            return new_history(settings)
        case "openapi":
            print(json.dumps(create_app(settings).openapi(), indent=2, ensure_ascii=False))
            return 0
        case _:
            logs.configure(settings.log_format)
            return serve(settings)


if __name__ == "__main__":
    raise SystemExit(main())

"""The systems that are compared: how each is installed and started, with the settings that suit it best."""

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import (
    CACHE,
    GENERATOR_CORE,
    ROOT,
    SERVER_CORE,
    Server,
    fetch,
    running,
)
from demo.java_home import java_home
from tests import debian
from tests.integration.process import free_port
from tests.postgres import PostgresServer

PACKAGES = {"wrk": "wrk", "nginx": "nginx-light", "etcd": "etcd-server", "etcdctl": "etcd-client",
            "h2load": "nghttp2-client", "kubectl": "kubernetes-client", "amtool": "prometheus-alertmanager",
            "curl": "curl"}  # fmt: skip
DATABASE = "BLOCKLIST_DATABASE_URL"
SERVICE = [sys.executable, "-m", "app"]
UVICORN = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
UVICORN += ["--timeout-keep-alive", "60"]


def require(*commands: str) -> None:
    """Install the Debian packages of missing commands. Raises debian.MissingError if that is impossible."""
    debian.require({name: PACKAGES[name] for name in commands})


@contextmanager
def service(
    folder: Path, settings: Mapping[str, str] | None = None, *, cores: Collection[int] = (SERVER_CORE,)
) -> Iterator[Server]:
    """Start the real service on a new SQLite file in `folder`, unless the settings name another database."""
    folder.mkdir(parents=True, exist_ok=True)
    migrate({**_database(folder), **(settings or {})})
    with serving(folder, settings, cores=cores) as server:
        yield server


def migrate(settings: Mapping[str, str]) -> None:
    """Make the tables. Raises RuntimeError with what was printed."""
    environment = {**os.environ, **settings}
    command = [*SERVICE, "migrate"]
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)


@contextmanager
def serving(
    folder: Path, settings: Mapping[str, str] | None = None, *, cores: Collection[int] = (SERVER_CORE,)
) -> Iterator[Server]:
    """Start the service on the existing file."""
    port = free_port()
    environment = {"BLOCKLIST_PORT": str(port), **_database(folder), **(settings or {})}
    log = folder / "service.log"
    with running(SERVICE, port=port, ready="/readyz", log=log, env=environment, cores=cores) as server:
        yield server


def _database(folder: Path) -> dict[str, str]:
    return {DATABASE: f"sqlite:///{folder}/blocklist.db"}


@contextmanager
def postgres(*, cores: Collection[int] = (SERVER_CORE,)) -> Iterator[PostgresServer]:
    """A PostgreSQL with durable writes, on the server's core or others."""
    os.sched_setaffinity(0, set(cores))
    with PostgresServer(durable=True) as server:
        os.sched_setaffinity(0, {GENERATOR_CORE})
        yield server


def block(server: Server, count: int) -> None:
    """Add `count` nodes of 158 bytes each to the list, a thousand per request."""
    body = {"action": "MARK_BLOCKED", "cause": "lost 3 partitions", "endTimestamp": "4102444800000"}
    for first in range(0, count, 1000):
        several = {f"worker-{number:05d}": body for number in range(first, min(first + 1000, count))}
        headers = {"content-type": "application/json"}
        status, _, response = fetch(
            server.port, "/blocklist/nodes", method="PUT", body=json.dumps(several), headers=headers
        )
        if status != 200:
            raise RuntimeError(f"{status}: {response[:500]!r}")


def copy_list(server: Server, path: Path) -> None:
    """Save the service's list as files for nginx and `bare`, so that all send the same bytes."""
    status, headers, body = fetch(server.port, "/blocklist")
    assert status == 200
    path.write_bytes(body)
    stored = {name: value for name, value in headers.items() if name not in ("date", "server", "connection")}
    path.with_name(path.name + ".headers").write_text(json.dumps(stored))


@contextmanager
def bare(app: str, folder: Path) -> Iterator[Server]:
    """An app of `benchmarks.bare` on the same uvicorn as the service."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.bare:{app}", "--port", str(port), *UVICORN]
    environment = {"BARE_FOLDER": str(folder)}
    with running(command, port=port, ready=None, log=folder / f"bare-{app}.log", env=environment) as server:
        yield server


@contextmanager
def bare_sockets(folder: Path) -> Iterator[Server]:
    """A broadcaster without an HTTP server."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.bare_sockets", str(port)]
    with running(command, port=port, ready=None, log=folder / "sockets.log") as server:
        yield server


@contextmanager
def bare_posts(folder: Path) -> Iterator[Server]:
    """A sender of POSTs to the ports in the file `ports` of the folder."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.bare_posts", str(port), str(folder / "ports")]
    with running(command, port=port, ready=None, log=folder / "posts.log") as server:
        yield server


NGINX = """
daemon off; worker_processes 1; {user} pid {folder}/nginx.pid; error_log {folder}/nginx-error.log warn;
events {{ worker_connections 16384; multi_accept on; }}
http {{
  access_log off; server_tokens off; default_type application/json; gzip off; etag on;
  sendfile on; sendfile_max_chunk 0; tcp_nopush on; tcp_nodelay on; output_buffers 2 512k;
  keepalive_timeout 1h; keepalive_requests 1000000000; reset_timedout_connection on;
  open_file_cache max=100 inactive=1h; open_file_cache_valid 1h;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port} backlog=4096; root {folder}; }}
}}
"""


@contextmanager
def nginx(folder: Path) -> Iterator[Server]:
    """One worker of nginx, serving the files of `folder`."""
    require("nginx")
    port = free_port()
    user = "user root;" if os.geteuid() == 0 else ""  # otherwise the worker may not read the folder
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, user=user))
    command = [debian.find("nginx") or "nginx", "-p", str(folder), "-c", str(config)]
    with running(command, port=port, ready=None, log=folder / "nginx.log") as server:
        yield server


@contextmanager
def etcd(folder: Path) -> Iterator[Server]:
    """A single etcd member on the same disk; one port serves gRPC and the JSON gateway."""
    require("etcd")
    port, peer = free_port(), free_port()
    client, other = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    options = {"name": "bench", "data-dir": str(folder / "etcd"), "listen-client-urls": client,
               "advertise-client-urls": client, "listen-peer-urls": other, "initial-advertise-peer-urls": other,
               "initial-cluster": f"bench={other}", "log-level": "error", "logger": "zap",
               "quota-backend-bytes": str(8 << 30)}  # fmt: skip
    command = [debian.find("etcd") or "etcd", *(f"--{name}={value}" for name, value in options.items())]
    environment = {"GOMAXPROCS": "1"}  # one core, as for all systems
    with running(command, port=port, ready="/health", log=folder / "etcd.log", env=environment) as server:
        yield server


FLINK = """
rest.address: 127.0.0.1
rest.bind-address: 127.0.0.1
rest.port: {port}
jobmanager.rpc.address: 127.0.0.1
jobmanager.rpc.port: {rpc}
jobmanager.memory.process.size: 1600m
"""


def flink_jars() -> Path:
    """Return Flink's jars from its Python package, installed once in the user's cache; its Python code is not used."""
    folder = CACHE / "flink"
    if not list(folder.glob("pyflink/lib/flink-dist*.jar")):
        print("installing apache-flink-libraries (once, 330 MB)", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, "apache-flink-libraries"], check=True)
    return folder / "pyflink" / "lib"


@contextmanager
def flink(folder: Path) -> Iterator[Server]:
    """A standalone JobManager with its REST endpoint."""
    port, rpc = free_port(), free_port()
    conf = folder / "flink-conf"
    conf.mkdir()
    (conf / "config.yaml").write_text(FLINK.format(port=port, rpc=rpc))
    main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
    command = [str(java_home() / "bin" / "java"), "-Xmx1g", "-cp", f"{flink_jars()}/*", main, "--configDir", str(conf)]
    environment = {"FLINK_CONF_DIR": str(conf)}
    with running(command, port=port, ready="/config", log=folder / "flink.log", env=environment) as server:
        yield server

"""The image of `make release`, loaded from its file, and run read-only without capabilities."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from blocklist import __version__
from release.image import Podman, build
from tests import debian
from tests.integration.process import ROOT, free_port, wait_until

RESTRICTED: Final = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")
STOP_SECONDS: Final = 5
"""A tenth of what orchestrators wait, on a busy machine too."""


@pytest.fixture(scope="module")
def podman() -> Podman:
    return Podman()


@pytest.fixture(scope="module")
def image(podman: Podman, dist: Path) -> str:
    loaded = podman.run("load", "--quiet", "--input", dist / f"blocklist-{__version__}-image.tar")
    assert f"localhost/blocklist:{__version__}" in loaded
    return podman.run("inspect", "--format={{.Id}}", f"localhost/blocklist:{__version__}")


@pytest.fixture
def volume(podman: Podman) -> Iterator[str]:
    name = f"blocklist-test-{secrets.token_hex(4)}"
    podman.run("volume", "create", name)
    yield name
    podman.run("volume", "rm", name)


@contextmanager
def running(podman: Podman, image: str, *command: str, options: tuple[str, ...] = ()) -> Iterator[str]:
    """A container; its name."""
    name = f"blocklist-test-{secrets.token_hex(4)}"
    try:
        podman.run("run", "--detach", f"--name={name}", *RESTRICTED, *options, image, *command)
        yield name
    finally:
        podman.call("rm", "--force", "--volumes", "--time=0", name)


def stop(podman: Podman, name: str) -> tuple[int, float]:
    """Its exit code, and the seconds until it had ended."""
    begun = time.monotonic()
    podman.run("stop", "--time=30", name)
    return int(podman.run("inspect", "--format={{.State.ExitCode}}", name)), time.monotonic() - begun


def wait_until_healthy(podman: Podman, name: str) -> None:
    """By the check of the image, which podman without systemd does not run by itself."""

    def healthy() -> bool:
        assert podman.run("inspect", "--format={{.State.Running}}", name) == "true", podman.call("logs", name).stderr
        return podman.call("healthcheck", "run", name).returncode == 0

    wait_until(healthy)


def test_the_service_in_the_image_starts_blocks_restarts_and_stops(podman: Podman, image: str, volume: str) -> None:
    port = free_port()
    options = (f"--volume={volume}:/data", f"--publish=127.0.0.1:{port}:8224")
    with running(podman, image, options=options) as name:
        wait_until_healthy(podman, name)
        podman.run("exec", name, "blocklist", "block", "w-1", "-r", "Hot")
        token = podman.run("exec", name, "cat", "/data/admin.token")
        url, headers = f"http://127.0.0.1:{port}/blocklist", {"Authorization": f"Bearer {token}"}
        assert list(httpx.get(url, headers=headers, trust_env=False).json()) == ["w-1"]
        assert httpx.get(url, trust_env=False).status_code == 401
        _check_rights(podman.run("inspect", "--format={{.State.Pid}}", name))
        podman.run("restart", name)
        wait_until_healthy(podman, name)
        assert "w-1" in podman.run("exec", name, "blocklist", "list")
        code, seconds = stop(podman, name)
        assert (code, seconds < STOP_SECONDS) == (0, True), seconds
    # As after an upgrade: another container with the same volume.
    with running(podman, image, options=options[:1]) as name:
        wait_until_healthy(podman, name)
        assert "w-1" in podman.run("exec", name, "blocklist", "list")


def _check_rights(pid: str) -> None:
    """What the first process may do, as its kernel sees it."""
    text = Path("/proc", pid, "status").read_text()
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert status["Uid"].split() == ["8224"] * 4
    assert (status["CapEff"], status["CapBnd"], status["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")


@pytest.mark.parametrize(
    "seconds", [0, 0.3, 0.8, *(pytest.param(it, marks=pytest.mark.long) for it in (0.1, 0.2, 0.5, 1.2))]
)
def test_a_stop_at_any_moment_of_the_start_ends_it(podman: Podman, image: str, seconds: float) -> None:
    with running(podman, image) as name:
        time.sleep(seconds)
        code, taken = stop(podman, name)
        assert code in (0, 143), podman.call("logs", name).stderr
        assert taken < STOP_SECONDS


def test_a_stop_reaches_every_other_command(podman: Podman, image: str) -> None:
    """As process 1, none of these would get a signal that it does not handle."""
    for command in (("sleep", "infinity"), ("python", "-c", "import time; time.sleep(999)")):
        with running(podman, image, *command) as name:
            assert stop(podman, name)[1] < STOP_SECONDS


def test_the_image_says_what_it_is(podman: Podman, image: str) -> None:
    (inspected,) = json.loads(podman.run("inspect", image))
    config: dict[str, Any] = inspected["Config"]
    assert config["Labels"]["org.opencontainers.image.version"] == __version__
    assert (config["User"], list(config["Volumes"])) == ("8224", ["/data"])
    assert "readyz" in json.dumps(inspected["Healthcheck"])
    assert podman.run("run", "--rm", image, "blocklist", "--version") == f"blocklist {__version__}"


def test_its_user_can_read_all_modules_and_they_are_compiled(podman: Podman, image: str) -> None:
    """Built from a checkout that only its user can read. A hash-based .pyc is valid whatever time its source has."""
    assert podman.run("run", "--rm", image, "find", "/srv", "/venv", "!", "-readable") == ""
    found = podman.run("run", "--rm", image, "python", "-c", _COMPILED)
    assert found.splitlines() == ["app", "blocklist", "migrations", "uvicorn", "0"]


_COMPILED: Final = """
import importlib.util, pathlib
missing = 0
for name in ("app", "blocklist", "migrations", "uvicorn"):
    folder = pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])
    print(name)
    for source in folder.rglob("*.py"):
        compiled = pathlib.Path(importlib.util.cache_from_source(str(source)))
        missing += not compiled.exists() or compiled.read_bytes()[4:8] != b"\\1\\0\\0\\0"
print(missing)
"""


JOB: Final = """
import socket, time
from pyspark.sql import SparkSession
from blocklist.spark import BlocklistAgent

def host(rows):
    time.sleep(0.2)
    return [socket.gethostname()]

spark = SparkSession.builder.master("spark://spark-master:7077").getOrCreate()
with BlocklistAgent.start(spark):
    print("hosts", sorted(set(spark.sparkContext.parallelize(range(40), 40).mapPartitions(host).collect())))
spark.stop()
"""


class Composition:
    """The compose file with ports of its own, by docker-compose, which speaks to podman."""

    def __init__(self, podman: Podman, folder: Path, images: dict[str, str]) -> None:
        self.project, self._folder = f"test{secrets.token_hex(4)}", folder
        self._program = debian.require({"docker-compose": "docker-compose"})["docker-compose"]
        self._environment = {**podman.environment, "DOCKER_HOST": f"unix://{folder / 'podman.sock'}"}
        for service, image in images.items():
            podman.run("tag", image, f"localhost/{self.project}_{service}")
        text = (ROOT / "docker-compose.yml").read_text()
        ports = {port: free_port() for port in re.findall(r"127\.0\.0\.1:(\d+):", text)}
        self.urls = {port: f"http://127.0.0.1:{own}" for port, own in ports.items()}
        text = re.sub(r"127\.0\.0\.1:(\d+):", lambda found: f"127.0.0.1:{ports[found[1]]}:", text)
        # Podman does not complete a check of the file from the image, and splits its words at spaces. This one asks
        # whether somebody listens on port 8224: `up` starts nginx then.
        check = ["CMD", "grep", "-q", f":{8224:X}", "/proc/net/tcp"]
        text = text.replace("healthcheck: &soon\n", f"healthcheck: &soon\n      test: {json.dumps(check)}\n")
        (folder / "docker-compose.yml").write_text(text)
        shutil.copytree(ROOT / "deploy", folder / "deploy")

    def container(self, service: str) -> str:
        return f"{self.project}_{service}_1"

    def run(self, *words: str) -> str:
        command = [self._program, "--project-name", self.project, *words]
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextmanager
def composed(podman: Podman, folder: Path, images: dict[str, str], *options: str) -> Iterator[Composition]:
    """After `up`, once all are healthy. The checks are run here, as podman needs systemd for them."""
    composition = Composition(podman, folder, images)
    server = [*podman.command, "system", "service", "--time=0", f"unix://{folder / 'podman.sock'}"]
    with subprocess.Popen(server, env=podman.environment, stderr=subprocess.DEVNULL) as process:
        ended = threading.Event()
        checks = threading.Thread(target=_check_health, args=(podman, composition.project, ended))
        checks.start()
        try:
            wait_until((folder / "podman.sock").exists)
            composition.run(*options, "up", "--detach", "--no-build", *(["nginx"] if options else []))
            for service in images:
                wait_until_healthy(podman, composition.container(service))
            yield composition
        finally:
            ended.set()
            checks.join()
            composition.run(*options, "down", "--volumes")
            process.terminate()


def _check_health(podman: Podman, project: str, ended: threading.Event) -> None:
    while not ended.wait(1):
        for name in podman.run("ps", f"--filter=name={project}", "--format={{.Names}}").split():
            podman.call("healthcheck", "run", name)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_job_in_the_compose_file_leaves_the_worker_that_its_header_blocks(podman: Podman, tmp_path: Path) -> None:
    spark = build(podman, "spark")
    images = {"blocklist": build(podman), **dict.fromkeys(("spark-master", "spark-worker-1", "spark-worker-2"), spark)}
    with composed(podman, tmp_path, images) as here:
        here.run("exec", "-T", "blocklist", "blocklist", "block", "spark-worker-1", "-r", "Trial")
        token = here.run("exec", "-T", "blocklist", "blocklist", "token", "create", "spark", "--role", "listener")
        variable = f"BLOCKLIST_TOKEN={token.strip()}"
        assert "hosts ['spark-worker-2']" in here.run("exec", "-T", "-e", variable, "spark-master", "python", "-c", JOB)


STAND_INS: Final = {
    "postgres:18-alpine": """
FROM docker.io/library/python:3.13-slim
RUN apt-get update && apt-get install --yes --no-install-recommends postgresql && rm -rf /var/lib/postgresql/*
COPY start /
CMD ["sh", "-e", "/start"]
""",
    "nginx:1.28-alpine": """
FROM docker.io/library/python:3.13-slim
RUN apt-get update && apt-get install --yes --no-install-recommends nginx-light wget
CMD ["nginx", "-g", "daemon off;"]
""",
}
"""Made from Debian's packages, as there is no registry."""
START_POSTGRES: Final = """
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
export PGDATA=/var/lib/postgresql/data
user="setpriv --reuid=postgres --clear-groups"
if ! [ -e $PGDATA ]; then
  install -d -o postgres $PGDATA
  echo "$POSTGRES_PASSWORD" > /tmp/password
  $user initdb --encoding=UTF8 --no-locale --auth=scram-sha-256 --username="$POSTGRES_USER" --pwfile=/tmp/password
  echo "host all all all scram-sha-256" >> $PGDATA/pg_hba.conf
  echo "CREATE DATABASE $POSTGRES_USER" | $user postgres --single postgres
fi
exec $user postgres -h '*' -k /tmp
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_replicas_of_the_compose_file_go_on_when_one_is_killed(podman: Podman, tmp_path: Path) -> None:
    service = build(podman)
    text = (ROOT / "docker-compose.yml").read_text()
    for name, dockerfile in STAND_INS.items():
        assert f"image: {name}\n" in text
        folder = tmp_path / name
        folder.mkdir()
        (folder / "Dockerfile").write_text(dockerfile)
        (folder / "start").write_text(START_POSTGRES)
        podman.build(f"docker.io/library/{name}", "--network=host", folder)
    replicas = ("replica-1", "replica-2")
    with composed(podman, tmp_path, dict.fromkeys(replicas, service), "--profile", "ha") as here:
        wait_until_healthy(podman, here.container("nginx"))
        # As the header of the file says; the token is valid at both.
        token = here.run("--profile", "ha", "exec", "-T", "replica-1", "cat", "/data/admin.token").strip()
        headers = {"Authorization": f"Bearer {token}", "X-Forwarded-User": "somebody"}
        with httpx.Client(base_url=here.urls["8225"], headers=headers, timeout=60, trust_env=False) as client:

            def block(node: str) -> None:
                client.put(f"/blocklist/nodes/{node}", json={"action": "MARK_BLOCKED", "cause": "x"}).raise_for_status()

            for number, replica in enumerate(replicas):
                block(f"before-{number}")
                podman.run("kill", here.container(replica))
                for each in range(10):
                    block(f"without-{number}-{each}")
                    assert f"without-{number}-{each}" in client.get("/blocklist").raise_for_status().json()
                podman.run("start", here.container(replica))
                wait_until_healthy(podman, here.container(replica))
            changes = client.get("/blocklist/changes", params={"limit": 100}).raise_for_status().json()["changes"]
            assert {each["createdBy"] for each in changes} == {"admin"}, "no client names an author"

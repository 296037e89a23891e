"""The agent's jar: `GET /spark/blocklist-spark.jar`, `blocklist spark jar` and `blocklist spark defaults`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.integration.problems import problem_of
from tests.integration.process import ROOT, ServiceProcess, environment, run_app, url_of
from tests.integration.secured import SecuredService

JAR: Final = "/spark/blocklist-spark.jar"
CONTENT: Final = b"PK\x03\x04 a jar"


class Installation(ServiceProcess):
    """A service that runs from a copy of the project, in which a test may replace the jar."""

    forked = False  # Its modules are those of the copy.

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "data")
        self.folder.mkdir()
        self.root = folder / "project"
        for name in ("app", "blocklist", "migrations"):
            shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        self.jar = self.root / "blocklist" / "spark" / "blocklist-spark.jar"

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONPATH": str(self.root), "PYTHONSAFEPATH": "1"}

    def command(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        env = {**environment(**settings), "PYTHONPATH": str(self.root)}
        command = [sys.executable, "-P", "-m", "blocklist.cli", *arguments]
        return subprocess.run(command, env=env, cwd=self.root, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("installation"))
    assert run_app("migrate", env=environment(database_url=url_of(installation.database))).returncode == 0
    with installation:
        yield installation


@pytest.fixture
def client(installation: Installation) -> Iterator[httpx.Client]:
    """A client of a service that has a jar."""
    installation.jar.write_bytes(CONTENT)
    with installation.client() as client:
        yield client


def test_the_jar_is_served_with_an_etag_of_its_content(client: httpx.Client, installation: Installation) -> None:
    answer = client.get(JAR)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert client.head(JAR).headers["content-length"] == str(len(CONTENT))
    etag = answer.headers["etag"]
    assert client.get(JAR, headers={"if-none-match": etag}).status_code == 304
    installation.jar.write_bytes(CONTENT * 2)
    newer = client.get(JAR, headers={"if-none-match": etag})
    assert (newer.status_code, newer.content) == (200, CONTENT * 2)


def test_an_installation_without_a_jar_says_so(client: httpx.Client, installation: Installation) -> None:
    installation.jar.unlink()
    detail = problem_of(client.get(JAR), 404)["detail"]
    assert "run `make jar`" in detail
    done = installation.command("spark", "jar")
    assert (done.returncode, done.stdout) == (2, "")
    assert detail in done.stderr


def test_the_jar_needs_no_token(secured: SecuredService) -> None:
    assert httpx.get(f"{secured.process.url}{JAR}", trust_env=False).status_code in (200, 404)


def test_the_command_prints_the_path_of_the_jar(client: httpx.Client, installation: Installation) -> None:
    done = installation.command("spark", "jar")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{installation.jar}\n", "")


def test_the_command_prints_the_lines_for_spark_defaults(client: httpx.Client, installation: Installation) -> None:
    lines = [
        f"spark.driver.extraClassPath {installation.jar}",
        "spark.extraListeners blocklist.spark.BlocklistListener",
        "spark.blocklist.url http://blocklist.example:8224",
    ]
    done = installation.command("spark", "defaults", url="http://blocklist.example:8224/")
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, lines, "")
    token_file = installation.folder / "token"
    token_file.write_text("secret")
    done = installation.command("spark", "defaults", url="http://blocklist.example:8224", token_file=str(token_file))
    assert done.stdout.splitlines() == [*lines, f"spark.blocklist.tokenFile {token_file}"]


def test_a_token_is_not_printed(client: httpx.Client, installation: Installation) -> None:
    done = installation.command("spark", "defaults", token="blk_secret")
    assert (done.returncode, "secret" in done.stdout + done.stderr) == (0, False)
    assert "spark.blocklist.tokenFile" in done.stderr

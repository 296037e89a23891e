"""The agent's jar: `GET /spark/blocklist-spark.jar`, `blocklist spark jar` and `blocklist spark defaults`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.integration.command import run
from tests.integration.conftest import StartInProcess
from tests.integration.problems import problem_of
from tests.integration.process import environment, http_client
from tests.integration.secured import SecuredInProcess

JAR: Final = "/spark/blocklist-spark.jar"
CONTENT: Final = b"PK\x03\x04 a jar"


@pytest.fixture
def jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The jar of this installation, in a folder of its own."""
    monkeypatch.setattr("blocklist.spark.jar.__file__", str(tmp_path / "jar.py"))
    jar = tmp_path / "blocklist-spark.jar"
    jar.write_bytes(CONTENT)
    return jar


@pytest.fixture
def client(start_in_process: StartInProcess) -> Iterator[httpx.Client]:
    with http_client(start_in_process().url) as client:
        yield client


def run_spark(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return run("spark", *arguments, env=environment(**settings))


def test_the_jar_is_served_with_an_etag_of_its_content(client: httpx.Client, jar: Path) -> None:
    answer = client.get(JAR)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert client.head(JAR).headers["content-length"] == str(len(CONTENT))
    etag = answer.headers["etag"]
    assert client.get(JAR, headers={"if-none-match": etag}).status_code == 304
    jar.write_bytes(CONTENT * 2)
    newer = client.get(JAR, headers={"if-none-match": etag})
    assert (newer.status_code, newer.content) == (200, CONTENT * 2)


def test_an_installation_without_a_jar_says_so(client: httpx.Client, jar: Path) -> None:
    jar.unlink()
    detail = problem_of(client.get(JAR), 404)["detail"]
    assert "run `make jar`" in detail
    done = run_spark("jar")
    assert (done.returncode, done.stdout) == (2, "")
    assert detail in done.stderr


def test_the_jar_needs_no_token(secured: SecuredInProcess) -> None:
    assert httpx.get(f"{secured.url}{JAR}", trust_env=False).status_code in (200, 404)


def test_the_command_prints_the_path_of_the_jar(jar: Path) -> None:
    done = run_spark("jar")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{jar}\n", "")


def test_the_command_prints_the_lines_for_spark_defaults(jar: Path) -> None:
    lines = [
        f"spark.driver.extraClassPath {jar}",
        "spark.plugins.defaultList blocklist.spark.BlocklistPlugin",
        "spark.blocklist.url http://blocklist.example:8224",
    ]
    done = run_spark("defaults", url="http://blocklist.example:8224/")
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, lines, "")
    token_file = jar.parent / "token"
    token_file.write_text("secret")
    done = run_spark("defaults", url="http://blocklist.example:8224", token_file=str(token_file))
    assert done.stdout.splitlines() == [*lines, f"spark.blocklist.tokenFile {token_file}"]


@pytest.mark.usefixtures("jar")
def test_a_token_is_not_printed() -> None:
    done = run_spark("defaults", token="blk_secret")
    assert (done.returncode, "secret" in done.stdout + done.stderr) == (0, False)
    assert "spark.blocklist.tokenFile" in done.stderr

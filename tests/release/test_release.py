"""What `make release` builds from a clone of this commit, installed outside the checkout as a user does."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from blocklist import __version__
from blocklist.spark.jar import jar_path
from tests import debian
from tests.docs.console import parse_page
from tests.docs.shell import Shell
from tests.integration.process import ROOT, free_port, wait_until
from tests.release.conftest import WHEEL, install_service, run, succeed


@contextmanager
def serving(venv: Path, data: Path, port: int = 0) -> Iterator[httpx.Client]:
    """`blocklist serve --data`, as its only argument, outside any checkout."""
    port = port or free_port()
    own = {name: value for name, value in os.environ.items() if not name.startswith(("BLOCKLIST_", "PYTHON"))}
    command: list[str | Path] = [venv / "bin" / "blocklist", "serve", "--data", data]
    with subprocess.Popen(command, cwd=venv, env={**own, "BLOCKLIST_PORT": str(port)}) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                wait_until(lambda: process.poll() is not None or _is_ready(client))
                assert process.poll() is None
                yield client
        finally:
            process.terminate()
            process.wait(60)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.long
def test_the_same_commit_gives_the_same_bytes(clone: Path, dist: Path) -> None:
    before = (dist / "SHA256SUMS").read_text()
    succeed(sys.executable, "-m", "release", cwd=clone)
    assert (dist / "SHA256SUMS").read_text() == before


def test_the_checksums_are_those_of_all_files(dist: Path) -> None:
    lines = [line.split("  ") for line in (dist / "SHA256SUMS").read_text().splitlines()]
    sums = {name: digest for digest, name in lines}
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dist.iterdir() if path.name != "SHA256SUMS"
    }
    assert sums.keys() == {
        WHEEL,
        f"blocklist-{__version__}.tar.gz",
        f"blocklist-{__version__}.tgz",
        f"blocklist-{__version__}.cdx.json",
        f"blocklist-{__version__}-image.tar",
        f"blocklist-spark-{__version__}.jar",
    }


def test_a_checkout_with_changes_is_refused(clone: Path, dist: Path) -> None:
    (clone / "notes.txt").write_text("not committed")
    done = run(sys.executable, "-m", "release", cwd=clone)
    (clone / "notes.txt").unlink()
    assert (done.returncode, "notes.txt" in done.stderr) == (1, True)
    assert (dist / WHEEL).exists(), "what was built before stays"


def test_the_chart_has_the_version(dist: Path) -> None:
    with tarfile.open(dist / f"blocklist-{__version__}.tgz") as archive:
        chart = archive.extractfile("blocklist/Chart.yaml")
        assert chart is not None
        assert yaml.safe_load(chart)["appVersion"] == __version__


def test_the_jar_says_what_it_is(dist: Path) -> None:
    with zipfile.ZipFile(dist / f"blocklist-spark-{__version__}.jar") as jar:
        assert f"Implementation-Version: {__version__}\n" in jar.read("META-INF/MANIFEST.MF").decode()
        assert {"META-INF/LICENSE", "META-INF/NOTICE"} <= set(jar.namelist())
        assert (
            f"version={__version__}\n" in jar.read("META-INF/maven/blocklist/blocklist-spark/pom.properties").decode()
        )


def test_the_bill_of_materials_names_what_the_service_installs(dist: Path) -> None:
    document = json.loads((dist / f"blocklist-{__version__}.cdx.json").read_text())
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["version"] == __version__
    locked = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==", (ROOT / "requirements/service.txt").read_text(), re.MULTILINE)
    assert {component["name"] for component in document["components"]} == set(locked)


def test_the_wheel_has_one_package(dist: Path) -> None:
    names = {name.partition("/")[0] for name in zipfile.ZipFile(dist / WHEEL).namelist()}
    assert names == {"blocklist", f"blocklist-{__version__}.dist-info", f"blocklist-{__version__}.data"}


def test_the_wheel_alone_is_the_client(dist: Path, tmp_path: Path) -> None:
    uv = (sys.executable, "-m", "uv")
    succeed(*uv, "venv", "--quiet", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    succeed(*uv, "pip", "install", "--quiet", "--python", python, dist / WHEEL, cwd=tmp_path)
    command = python.with_name("blocklist")
    assert succeed(command, "--version", cwd=tmp_path) == f"blocklist {__version__}\n"
    done = run(command, "serve", cwd=tmp_path)
    assert (done.returncode, "pip install 'blocklist[service]'" in done.stderr) == (1, True), done.stderr
    installed = succeed(*uv, "pip", "list", "--quiet", "--python", python, cwd=tmp_path)
    assert "fastapi" not in installed


def test_the_installed_service_serves_and_keeps_its_data(venv: Path, tmp_path: Path) -> None:
    command = venv / "bin" / "blocklist"
    with serving(venv, tmp_path / "data") as client:
        url = str(client.base_url)
        done = run(command, "block", "w-1", "-r", "Hot", cwd=tmp_path, BLOCKLIST_URL=url)
        assert done.returncode == 0, done.stderr
        for path in ("/", "/docs", "/openapi.json", "/spark/blocklist-spark.jar"):
            assert client.get(path, headers={"Accept": "text/html"}).status_code == 200, path
    with serving(venv, tmp_path / "data") as client:
        assert "w-1" in client.get("/blocklist").json()


def test_the_commands_of_the_readme_work_with_the_wheel(venv: Path, tmp_path: Path) -> None:
    """Without the checkout: `blocklist serve` takes the place of `make run`."""
    debian.require({"curl": "curl"})
    port, page = free_port(), parse_page(ROOT / "README.md")
    substitutions = {"127.0.0.1:8224": f"127.0.0.1:{port}", "$PWD/.venv/bin": str(venv / "bin")}
    own = {name: value for name, value in os.environ.items() if not name.startswith(("BLOCKLIST_", "PYTHON"))}
    with serving(venv, tmp_path / "data", port):
        shell = Shell(tmp_path, substitutions, {**own, "BLOCKLIST_URL": f"http://127.0.0.1:{port}"}, cwd=tmp_path)
        mismatches = shell.run_page(page, {})
    assert not mismatches, "\n".join(mismatches)


OLDER: Final = "before version 0.1.0, whose tables cannot be migrated"
LATER: Final = """
import sqlalchemy as sa
from alembic import op

revision = "9998_later"
down_revision = {latest!r}


def upgrade() -> None:
    op.add_column("listeners", sa.Column("later", sa.Text))
"""


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel of the last release; before there is one, of the commit before."""
    folder = tmp_path_factory.mktemp("former")
    done = run("git", "describe", "--tags", "--abbrev=0", "--match=v*", "HEAD~1", cwd=ROOT)
    base = done.stdout.strip() or succeed("git", "rev-parse", "HEAD~1", cwd=ROOT).strip()
    succeed("sh", "-c", f"git archive {base} | tar x -C {folder}", cwd=ROOT)
    shutil.copyfile(jar_path(), folder / jar_path().relative_to(ROOT))
    succeed(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist", cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    return install_service(folder / "venv", wheel, folder / "requirements" / "service.txt")


def test_an_upgrade_keeps_the_data_and_can_be_undone(former: Path, venv: Path, tmp_path: Path) -> None:
    """By the release before, on the same database. Until the first one the migration may change: it is refused then."""
    data = tmp_path / "data"
    with serving(former, data) as client:
        _block(former, client, "w-1", tmp_path)
        history = client.get("/blocklist").headers["Blocklist-History"]
    done = run(
        venv / "bin" / "blocklist", "migrate", cwd=tmp_path, BLOCKLIST_DATABASE_URL=f"sqlite:///{data}/blocklist.db"
    )
    if OLDER in done.stderr:
        assert not run("git", "tag", "--list", "v*", cwd=ROOT).stdout, "a released migration does not change"
        assert done.returncode == 2
        return
    with serving(venv, data) as client:
        answer = client.get("/blocklist")
        assert (list(answer.json()), answer.headers["Blocklist-History"]) == (["w-1"], history)
        _block(venv, client, "w-2", tmp_path)
    with serving(former, data) as client:
        assert sorted(client.get("/blocklist").json()) == ["w-1", "w-2"]


def test_this_release_starts_on_the_database_of_a_later_one(venv: Path, tmp_path: Path) -> None:
    """Whose migrations only add: a later release stands here as this one with a further migration."""
    data, later = tmp_path / "data", tmp_path / "later"
    with serving(venv, data) as client:
        _block(venv, client, "w-1", tmp_path)
    succeed("cp", "-r", venv, later, cwd=tmp_path)
    (versions,) = later.glob("lib/python*/site-packages/blocklist/_service/migrations/versions")
    latest = max(path.stem for path in versions.glob("*_*.py"))
    (versions / "9998_later.py").write_text(LATER.format(latest=latest))
    url = f"sqlite:///{data}/blocklist.db"
    migrate = (later / "bin" / "python", "-m", "blocklist.cli", "migrate")
    done = run(*migrate, cwd=tmp_path, BLOCKLIST_DATABASE_URL=url)
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(data / "blocklist.db")) as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [("9998_later",)]
    with serving(venv, data) as client:
        _block(venv, client, "w-2", tmp_path)
        assert sorted(client.get("/blocklist").json()) == ["w-1", "w-2"]


def _block(venv: Path, client: httpx.Client, node: str, cwd: Path) -> None:
    command = (venv / "bin" / "blocklist", "block", node, "-r", "Hot")
    done = run(*command, cwd=cwd, BLOCKLIST_URL=str(client.base_url))
    assert done.returncode == 0, done.stderr


def test_commands_of_the_service_need_no_checkout(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise SystemExit('a package of somebody else')")
    command = venv / "bin" / "blocklist"
    assert "valid" in succeed(command, "check-settings", cwd=tmp_path)
    assert json.loads(succeed(command, "openapi", cwd=tmp_path))["info"]["version"] == __version__
    assert "BLOCKLIST_PORT" in succeed(command, "settings", cwd=tmp_path)

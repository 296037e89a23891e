"""What `make release` builds from a clone of this commit, installed outside the checkout as a user does."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml  # type: ignore[import-untyped]

from blocklist import __version__
from tests.integration.process import ROOT, free_port, wait_until
from tests.release.conftest import WHEEL, run, succeed


@contextmanager
def serving(venv: Path, data: Path) -> Iterator[httpx.Client]:
    """`blocklist serve --data`, as its only argument, outside any checkout."""
    port = free_port()
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


def test_commands_of_the_service_need_no_checkout(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise SystemExit('a package of somebody else')")
    command = venv / "bin" / "blocklist"
    assert "valid" in succeed(command, "check-settings", cwd=tmp_path)
    assert json.loads(succeed(command, "openapi", cwd=tmp_path))["info"]["version"] == __version__
    assert "BLOCKLIST_PORT" in succeed(command, "settings", cwd=tmp_path)

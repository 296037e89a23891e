"""What the checkout promises about itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import app.api.problems
from app.main import create_app
from app.settings import Settings
from blocklist.model.errors import BlocklistError

ROOT = Path(__file__).resolve().parents[2]


def test_the_api_document_is_that_of_the_app() -> None:
    """`make openapi` writes it anew."""
    kept = json.loads((ROOT / "openapi" / "blocklist.json").read_text())
    assert kept == json.loads(json.dumps(create_app(Settings(database_url="sqlite:///unused.db")).openapi()))


@pytest.mark.xdist_group("together")
def test_a_group_of_tests_stays_together(request: pytest.FixtureRequest) -> None:
    """Where tests are dealt out to workers, those of a group go to one by their ids. Else each starts its own Spark."""
    dealt_out = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@together") == dealt_out


def test_every_error_has_a_status() -> None:
    """An error that the table does not name would be a 500."""

    def below(kind: type[BlocklistError]) -> set[type[BlocklistError]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    assert below(BlocklistError) - {BlocklistError} == set(app.api.problems.STATUS)


def test_the_wheel_ships_the_package_alone(tmp_path: Path) -> None:
    """No package called `app` may land in somebody's site-packages."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} <= {"blocklist", wheel.name.partition("-py3")[0] + ".dist-info"}
    assert "blocklist/py.typed" in names
    assert "blocklist/spark/BlocklistBridge.java" in names


def test_lock_files_carry_hashes_and_no_addresses() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        text = lock.read_text()
        assert "--hash=sha256:" in text
        assert not re.search(r"https?://|--index-url|--find-links", text), lock.name


def test_the_service_does_not_need_pyspark() -> None:
    """`make run` installs no PySpark, and importing the service must not ask for it."""
    code = "import sys, app.cli, app.server, blocklist; sys.exit('pyspark' in sys.modules or 'py4j' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0

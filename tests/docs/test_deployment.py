"""The systemd unit, the image's recipe and the compose file, as far as they can be judged without running them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from app.settings import Settings, read_settings
from tests import debian
from tests.integration.process import ROOT, environment, run_app

UNIT: Final = ROOT / "docs" / "systemd" / "blocklist.service"
COMPOSE: Final = ROOT / "docker-compose.yml"
MOST_EXPOSED: Final = 20
"""Of a hundred, as systemd counts it; 20 is what it calls OK."""


@pytest.fixture(scope="module")
def analyze() -> str:
    return debian.require({"systemd-analyze": "systemd"})["systemd-analyze"]


def test_systemd_understands_the_unit(analyze: str, tmp_path: Path) -> None:
    """With commands that are there: systemd looks for them."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/blocklist/.venv/bin/python", sys.executable))
    done = _run(analyze, "verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_unit_gives_the_service_no_more_than_it_needs(analyze: str) -> None:
    done = _run(analyze, "security", "--offline=yes", "--no-pager", f"--threshold={MOST_EXPOSED}", str(UNIT))
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_units_settings_are_sound() -> None:
    settings = read_settings(_assigned(re.findall(r"^Environment=(.*)$", UNIT.read_text(), re.MULTILINE)))
    state = "/var/lib/blocklist/"
    assert settings.auth == "tokens"
    assert settings.admin_token_file.startswith(state)
    assert settings.database_url.startswith(f"sqlite:///{state}")


def test_the_images_settings_are_sound() -> None:
    """It listens to other machines, so it asks for tokens."""
    given = _assigned(re.findall(r"(BLOCKLIST_\w+=\S+)", (ROOT / "Dockerfile").read_text()))
    settings = read_settings(given)
    assert (settings.host, settings.auth, settings.port) == ("0.0.0.0", "tokens", Settings().port)
    assert given["BLOCKLIST_TOKEN_FILE"] == settings.admin_token_file
    assert run_app("check-settings", env={**environment(), **given}).returncode == 0


def test_hadolint_finds_no_fault_in_the_images_recipe() -> None:
    done = _run(str(Path(sys.executable).with_name("hadolint")), str(ROOT / "Dockerfile"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_names_what_is_there() -> None:
    composed: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    services, stages = (
        composed["services"],
        re.findall(r"^FROM \S+ AS (\w+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE),
    )
    for service in services.values():
        build = service["build"]
        assert build == "." or (build["context"] == "." and build["target"] in stages)
        assert set(service.get("depends_on", ())) <= set(services)
        volumes = [volume.partition(":")[0] for volume in service.get("volumes", ())]
        assert set(volumes) <= set(composed["volumes"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), "nothing is open to others"


def _assigned(lines: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

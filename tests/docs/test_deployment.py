"""The systemd unit, the Dockerfile and the compose file, checked without running them."""

from __future__ import annotations

import re
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from app.settings import Settings, read_settings
from app.store.database import is_postgresql
from tests import debian
from tests.integration.process import ROOT, environment, run_app

UNIT: Final = ROOT / "docs" / "systemd" / "blocklist.service"
COMPOSE: Final = ROOT / "docker-compose.yml"
MAX_EXPOSURE: Final = 20
"""Exposure in systemd's count, up to 100; it calls 20 OK."""


@pytest.fixture(scope="module")
def analyze() -> str:
    return debian.require({"systemd-analyze": "systemd"})["systemd-analyze"]


def test_systemd_accepts_the_unit(analyze: str, tmp_path: Path) -> None:
    """With commands that exist here, as systemd checks that."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/blocklist/bin", str(Path(sys.executable).parent)))
    done = _run(analyze, "verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_unit_confines_the_service(analyze: str) -> None:
    done = _run(analyze, "security", "--offline=yes", "--no-pager", f"--threshold={MAX_EXPOSURE}", str(UNIT))
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_units_settings_are_valid() -> None:
    settings = read_settings(_assignments(re.findall(r"^Environment=(.*)$", UNIT.read_text(), re.MULTILINE)))
    state = "/var/lib/blocklist/"
    assert settings.auth == "tokens"
    assert settings.admin_token_file.startswith(state)
    assert settings.database_url.startswith(f"sqlite:///{state}")


def test_the_images_settings_are_valid(tmp_path: Path) -> None:
    """It listens beyond loopback, so it requires tokens."""
    given = _assignments(re.findall(r"(BLOCKLIST_\w+=\S+)", (ROOT / "Dockerfile").read_text()))
    settings = read_settings(given)
    assert (settings.host, settings.auth, settings.port) == ("0.0.0.0", "tokens", Settings().port)
    assert given["BLOCKLIST_TOKEN_FILE"] == settings.admin_token_file
    here = {name: value.replace("/data", str(tmp_path)) for name, value in given.items()}
    assert run_app("check-settings", env={**environment(), **here}).returncode == 0


def test_hadolint_accepts_the_dockerfile() -> None:
    done = _run(str(Path(sys.executable).with_name("hadolint")), str(ROOT / "Dockerfile"))
    assert done.returncode == 0, done.stdout + done.stderr


class TestDockerfile:
    """Dockerfile; tests/release/test_image.py builds and runs the service's stage."""

    text: str = (ROOT / "Dockerfile").read_text()
    stages: dict[str, str] = {  # noqa: RUF012
        re.match(r"FROM \S+(?: AS (\w+))?", stage)[1] or "service": stage  # type: ignore[index]
        for stage in re.findall(r"^FROM .*?(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL)
    }

    def test_it_copies_what_the_context_has(self) -> None:
        ignored = (ROOT / ".dockerignore").read_text().splitlines()
        for source in re.findall(r"^COPY (?!--from)(\S+)", self.text, re.MULTILINE):
            assert f"!{source.partition('/')[0]}" in ignored
            assert (ROOT / source).exists()

    def test_spark_can_write_where_it_works(self) -> None:
        (folder,) = re.findall(r"SPARK_WORKER_DIR=(\S+)", self.stages["spark"])
        (home,) = re.findall(r"useradd .*--create-home (\w+)", self.stages["pyspark"])
        assert folder.startswith(f"/home/{home}/")


class TestComposeFile:
    """docker-compose.yml"""

    compose: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    services: dict[str, Any] = compose["services"]

    def test_it_names_what_exists(self) -> None:
        stages = re.findall(r"^FROM \S+ AS (\w+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        for service in self.services.values():
            build = service.get("build", ".")
            assert build == "." or (build["context"] == "." and build["target"] in stages)
            assert set(service.get("depends_on", ())) <= set(self.services)
            for volume in service.get("volumes", ()):
                source = volume.partition(":")[0]
                assert source in self.compose["volumes"] or (ROOT / source).is_file()
            ports = service.get("ports", ())
            assert all(port.startswith("127.0.0.1:") for port in ports), "ports are published on loopback only"

    def test_without_a_profile_it_is_one_service_and_a_spark(self) -> None:
        always = {name for name, service in self.services.items() if "profiles" not in service}
        assert always == {"blocklist", "spark-master", "spark-worker-1", "spark-worker-2"}
        ports = [port for service in self.services.values() for port in service.get("ports", ())]
        assert len({port.split(":")[1] for port in ports}) == len(ports)

    def test_the_replicas_settings_are_valid(self) -> None:
        image = _assignments(re.findall(r"(BLOCKLIST_\w+=\S+)", (ROOT / "Dockerfile").read_text()))
        one, two = (self.services[f"replica-{number}"] for number in (1, 2))
        settings = read_settings({**image, **_settings(one)})
        assert is_postgresql(settings.database_url)
        assert settings.admin_token_file.startswith(f"{one['volumes'][0].partition(':')[2]}/")
        assert one["environment"]["PGPASSWORD"] == self.services["postgres"]["environment"]["POSTGRES_PASSWORD"]
        assert one["depends_on"]["postgres"] == {"condition": "service_healthy"}
        assert {name: value for name, value in two.items() if name != "networks"} == {
            name: value for name, value in one.items() if name != "networks"
        }
        (network,) = self.compose["networks"]["ha"]["ipam"]["config"]
        nginx = self.services["nginx"]
        assert settings.trusted_proxies == f"{nginx['networks']['ha']['ipv4_address']}/32", "nobody else is a proxy"
        addresses = {own["networks"]["ha"]["ipv4_address"] for own in (one, two, nginx)}
        assert len(addresses) == 3
        assert all(ip_address(each) in ip_network(network["subnet"]) for each in addresses)

    def test_up_waits_until_all_of_it_works(self) -> None:
        """And asks soon: the first time that it asks is after an interval."""
        for name, service in self.services.items():
            assert service["healthcheck"]["interval"] == "2s", name
            assert service.get("build") == "." or "test" in service["healthcheck"], f"the image of {name} has no check"

    def test_spark_names_its_workers_as_the_compose_file_does(self) -> None:
        """Otherwise they register by address, and nobody knows the name in the commands at the top of the file."""
        for name in ("spark-worker-1", "spark-worker-2"):
            worker = self.services[name]
            assert worker["hostname"] == worker["environment"]["SPARK_LOCAL_HOSTNAME"] == name
            assert f"blocklist block {name}" in COMPOSE.read_text() or name != "spark-worker-1"

    def test_nginx_is_in_front_of_all_replicas(self) -> None:
        """An integration test runs this file in a real nginx."""
        config = (ROOT / "deploy" / "nginx.conf").read_text()
        replicas = {name for name in self.services if name.startswith("replica-")}
        assert set(re.findall(r"^ +server (\S+):8224 max_fails=1", config, re.MULTILINE)) == replicas
        assert set(self.services["nginx"]["depends_on"]) == replicas
        (port,) = re.findall(r"^ +listen (\d+);", config, re.MULTILINE)
        assert self.services["nginx"]["ports"][0].endswith(f":{port}")


def _settings(service: dict[str, Any]) -> dict[str, str]:
    """The BLOCKLIST_ settings of a service of the compose file."""
    return {name: value for name, value in service["environment"].items() if name.startswith("BLOCKLIST_")}


def _assignments(lines: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

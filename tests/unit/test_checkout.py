"""The checkout: its generated files, its packages, its installation."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Literal, get_args, get_origin

import jsonschema_rs
import pytest
from pydantic import ValidationError

import app.api.responses
import blocklist
from app.main import create_app
from app.settings import Settings
from blocklist.model.claims import Grants, Role
from blocklist.model.errors import BlocklistError

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm"
JAR = ROOT / "blocklist" / "spark" / "blocklist-spark.jar"
JAVA_8 = 52
"""The version of the class files that Java 8 reads."""


def test_the_api_document_is_generated_from_the_app() -> None:
    """`make openapi` writes it."""
    stored = json.loads((ROOT / "openapi" / "blocklist.json").read_text())
    assert stored == json.loads(json.dumps(create_app(Settings(database_url="sqlite:///unused.db")).openapi()))


@pytest.mark.xdist_group("together")
def test_a_group_of_tests_runs_in_one_worker(request: pytest.FixtureRequest) -> None:
    """Xdist distributes them by the group in their ids; otherwise each worker would start its own Spark."""
    by_group = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@together") == by_group


def test_every_error_has_a_status() -> None:
    """An error that is not in the table would be a 500. The command has errors of its own."""

    def below(kind: type[BlocklistError]) -> set[type[BlocklistError]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    errors = {kind for kind in below(BlocklistError) if not kind.__module__.startswith("blocklist.cli.")}
    assert errors - {BlocklistError} == set(app.api.responses.STATUS)


def test_the_wheel_ships_the_package_alone(tmp_path: Path) -> None:
    """A package called `app` must not be installed beside other people's packages."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    release = wheel.name.partition("-py3")[0]
    assert {name.partition("/")[0] for name in names} <= {"blocklist", f"{release}.dist-info", f"{release}.data"}
    # Installed into sys.prefix.
    [unit] = [name for name in names if name.startswith(f"{release}.data/")]
    assert unit.endswith("/share/blocklist/blocklist.service")
    assert "blocklist/py.typed" in names
    # Here the build finds PySpark; without a JDK the wheel has no jar.
    assert ("blocklist/spark/blocklist-spark.jar" in names) == (JAR.exists() or shutil.which("javac") is not None)


def test_the_jar_is_loaded_by_java_8() -> None:
    if not JAR.exists():
        pytest.skip("there is no jar: make jar")
    with zipfile.ZipFile(JAR) as jar:
        classes = {name: jar.read(name) for name in jar.namelist() if name.endswith(".class")}
    assert "blocklist/spark/BlocklistPlugin.class" in classes
    assert {int.from_bytes(data[6:8], "big") for data in classes.values()} == {JAVA_8}


def test_without_a_jdk_the_build_of_the_jar_says_what_is_missing(tmp_path: Path) -> None:
    """`make jar` fails, and `make setup` goes on."""
    shutil.copytree(ROOT / "spark-agent", tmp_path / "spark-agent", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, str(tmp_path / "spark-agent" / "build.py")]
    for options, code in (([], 1), (["--if-possible"], 0)):
        done = subprocess.run([*command, *options], env={"PATH": "/none"}, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (code, "")
        assert "building it needs a JDK (11 or later)" in done.stderr


def test_lock_files_carry_hashes_and_no_addresses() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        text = lock.read_text()
        assert "--hash=sha256:" in text
        assert not re.search(r"https?://|--index-url|--find-links", text), lock.name


def test_the_lock_file_of_npm_carries_hashes_and_no_addresses() -> None:
    packages = json.loads((ROOT / "requirements" / "npm" / "package-lock.json").read_text())["packages"]
    locked = [package for path, package in packages.items() if path]
    assert locked
    assert all(package["integrity"].startswith("sha512-") for package in locked)
    assert not any("resolved" in package for package in locked)


def test_the_service_does_not_need_pyspark() -> None:
    """`make run` does not install PySpark, so importing the service must not need it."""
    code = "import sys, app.cli, app.server, blocklist; sys.exit('pyspark' in sys.modules or 'py4j' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_checkout_is_installed_for_every_folder(tmp_path: Path) -> None:
    """`make setup` installs it in place: the package, the service and the command are those of this checkout."""
    code = "import app, blocklist; print(app.__file__, blocklist.__file__)"
    found = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(ROOT / name / "__init__.py") for name in ("app", "blocklist")]
    command = Path(sys.executable).with_name("blocklist")
    version = subprocess.run([command, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert version.stdout == f"blocklist {blocklist.__version__}\n"


def test_git_ignores_what_a_service_in_the_checkout_creates() -> None:
    created = [
        "blocklist.db",
        "blocklist.db-wal",
        "blocklist.db-shm",
        "blocklist.db.head",
        "admin.token",
    ]
    ignored = subprocess.run(["git", "check-ignore", *created], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ignored.stdout.split() == created


def test_the_files_that_the_docs_for_developers_name_are_there() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    docs = [(ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", "docs/architecture.md")]
    named = set(re.findall(r"`([\w./-]+\.(?:py|java|sql|md|json|yml|toml))`", "".join(docs)))
    assert len(named) > 40
    assert [name for name in sorted(named) if not any(f"/{path}".endswith(f"/{name}") for path in listed)] == []


def test_each_meaning_of_409_has_a_type_which_the_docs_name() -> None:
    kinds = [kind for kind, status in app.api.responses.STATUS.items() if status == HTTPStatus.CONFLICT]
    types = [app.api.responses.TYPES[kind] for kind in kinds]
    assert len(set(types)) == len(kinds)
    docs = (ROOT / "docs" / "api.md").read_text()
    assert [name for name in types if f"| `{name.rpartition(':')[2]}` |" not in docs] == []


# What the chart has a copy of. tests/kubernetes has what it renders.


def test_the_chart_has_the_alert_rules_of_the_documentation() -> None:
    """A chart can contain only files of its own: after a change of docs/monitoring/alerts.yml, copy it."""
    original = (ROOT / "docs" / "monitoring" / "alerts.yml").read_text()
    assert (CHART / "files" / "alerts.yml").read_text() == original


def test_the_schema_has_every_setting_of_the_service() -> None:
    """Except for those that have a value of their own. After a new setting: add it to values.schema.json."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = schema["properties"]["settings"]["properties"]
    own = {"HOST", "PORT", "AUTH", "DATABASE_URL", "DATABASE_URL_FILE", "ADMIN_TOKEN_FILE", "TLS_CERT", "TLS_KEY"}
    own |= {"SERVICE_ACCOUNT_AUDIENCE", "SERVICE_ACCOUNT_ROLES"}
    assert set(found) == {name.upper() for name in Settings.model_fields} - own


# As people write them in YAML, where 0 is a number and off is false.
WRITTEN: dict[object, Sequence[object]] = {
    int: (0, 1, 1000, "5"),
    float: (0.5, 1, "0.2"),
    bool: (True, False, "false"),
    str: ("x", ""),
    timedelta: (0, "90s", "2h", "7d", "0"),
}


def _types(annotation: object) -> set[object]:
    """A type, and those of which a union or an annotated type is made."""
    return {annotation}.union(*map(_types, get_args(annotation)))


def test_the_schema_takes_what_the_service_takes() -> None:
    """Of each setting all values that the service takes, however YAML reads them; and nothing of another type."""
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]["properties"]
    for name, field in Settings.model_fields.items():
        if name.upper() not in schema:
            continue
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        kind = next((it for it in WRITTEN if it in _types(field.annotation)), str)
        for value in choices or (*WRITTEN[kind], "forever"):
            written = False if value == "off" else value
            text = value if isinstance(value, str) else json.dumps(value)
            try:
                Settings.model_validate({name: text})
                taken = True
            except ValidationError:
                taken = False
            for form in (written, text):
                assert jsonschema_rs.is_valid(schema[name.upper()], form) or not taken, (name, form)
        assert not jsonschema_rs.is_valid(schema[name.upper()], []), name


def test_the_schema_has_every_role_of_the_service() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    roles = schema["properties"]["serviceAccountTokens"]["properties"]["roles"]["additionalProperties"]
    for role in [*Role, "operator:alertmanager/*|night", "listener:etl-*", "root", "admin:x", "reader:x"]:
        try:
            taken = bool(Grants.parse(f"x={role}").rules)
        except ValueError:
            taken = False
        assert jsonschema_rs.is_valid(roles, str(role)) == taken, role

"""docs/settings.md agrees with the code, and the table of versions in README.md with the tests."""

from __future__ import annotations

import re
from typing import Final

from app import cli
from app.settings import CLIENT_SETTINGS, PREFIX, Settings, read_settings
from blocklist.cli.environment import DEFAULT_TIMEOUT, SETTINGS
from blocklist.client import DEFAULT_URL
from tests.docs import versions
from tests.integration.process import ROOT, environment, run_app

PAGE: Final = ROOT / "docs" / "settings.md"


def test_the_page_is_generated_from_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert cli.fill_page(page) == page, "docs/settings.md is stale: run make settings"


def test_the_service_prints_its_settings() -> None:
    done = run_app("settings", env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in PAGE.read_text(encoding="utf-8")


def test_each_setting_is_described_in_a_sentence() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description is not None, name
        assert re.fullmatch(r"[A-Z`].*\.", field.description), name
        assert "|" not in field.description, "the table has columns"


def test_each_default_on_the_page_is_a_valid_value() -> None:
    rows = re.findall(r"\| `(BLOCKLIST_\w+)` \| `([^`]+)` \|", cli.service_table())
    assert read_settings(dict(rows)) == Settings()


def test_the_names_and_defaults_of_the_client() -> None:
    in_both = {"BLOCKLIST_DEFAULT_DURATION"}
    assert {PREFIX + name for name in cli.CLIENT_SETTINGS} == CLIENT_SETTINGS | in_both
    assert set(cli.CLIENT_SETTINGS) == set(SETTINGS)
    defaults = {name: default for name, (default, _) in cli.CLIENT_SETTINGS.items() if default}
    assert defaults == {"URL": DEFAULT_URL, "TIMEOUT": DEFAULT_TIMEOUT}


def test_the_versions_are_those_of_the_tests() -> None:
    page = versions.README.read_text(encoding="utf-8")
    assert versions.fill(page) == page, "README.md is stale: run make versions"
    assert re.search(r"^\| PostgreSQL \| 14, .*\d \|$", page, re.MULTILINE)

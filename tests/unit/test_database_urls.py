"""Database URLs: validation, and no password in messages."""

from __future__ import annotations

import traceback

import pytest

from app.settings import Settings, SettingsError, read_settings
from app.store.database import check_url, redacted


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:////var/lib/blocklist.db", "sqlite:////var/lib/blocklist.db"),
        ("postgresql://anna:secret@db.example/blocklist", "postgresql://db.example/blocklist"),
        ("postgres://anna:secret@db.example:5433/blocklist", "postgresql://db.example:5433/blocklist"),
        ("postgresql://anna@a:5432,b:5433/blocklist", "postgresql://a:5432,b:5433/blocklist"),
        ("postgresql://anna@a,b/blocklist?port=5433", "postgresql://a:5433,b:5433/blocklist"),
        ("postgresql://anna@[::1]:5433/blocklist", "postgresql://[::1]:5433/blocklist"),
        ("postgresql://anna@/blocklist?host=/run/postgresql&password=secret", "postgresql:///run/postgresql/blocklist"),
        ("postgresql:///blocklist?user=anna", "postgresql://localhost/blocklist"),
        ("postgresql://anna:s%40c%2Fret%25@db.example/blocklist", "postgresql://db.example/blocklist"),
    ],
)
def test_redacted_urls_name_hosts_ports_and_database_without_credentials(url: str, expected: str) -> None:
    assert check_url(url) == url
    assert redacted(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "sqlite:///",
        "sqlite:///:memory:",
        "mysql://anna:secret@db.example/blocklist",
        "postgresql://anna:secret@db.example",
        "postgresql://anna:secret@db.example/",
        "postgresql://anna:secret@db.example/blocklist?nonsense=1",
        "postgresql://anna:secret%@db.example/blocklist",
        # The password is not percent-encoded: libpq takes a part of it for a host, port or database.
        "postgresql://anna:top@secret@db.example/blocklist",
        "postgresql://anna:top/secret@db.example/blocklist",
        "postgresql://anna:secret/blocklist",
    ],
)
def test_an_invalid_url_is_rejected_without_repeating_it(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"BLOCKLIST_DATABASE_URL": url})
    assert "BLOCKLIST_DATABASE_URL: " in str(caught.value)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_printed_settings_show_no_password() -> None:
    assert "hunter2" not in repr(Settings(database_url="postgresql://anna:hunter2@db.example/blocklist"))

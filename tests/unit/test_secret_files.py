"""Secrets in files: what is read, what is refused with which words, and files that are replaced."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from app import secret_files
from app.secret_files import MAX_BYTES, FileWatcher, SecretFile, read_secret
from app.settings import SECRETS, Settings, SettingsError, read_settings
from app.store.database import check_renewed
from tests.integration.process import wait_until

POSTGRESQL = "postgresql://u:{}@db.example:5432/blocklist"


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"], ids=["", "BOM"])
def test_the_line_break_at_the_end_is_not_part_of_the_secret(tmp_path: Path, begin: bytes, end: bytes) -> None:
    (tmp_path / "url").write_bytes(begin + " a b ü".encode() + end)
    assert read_secret(str(tmp_path / "url")) == " a b ü"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b" \r\n", "is empty"),
        (b"\xff", "is not UTF-8 text"),
        (b"a\nb\n", "has several lines"),
        (b"a\0b", "characters that cannot be printed"),
        (b"x" * (MAX_BYTES + 1), "has more than 64 KiB"),
    ],
)
def test_what_is_no_secret_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "url").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_secret(str(tmp_path / "url"))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in {"none": "cannot be read: No such file", "": "Is a directory", "pipe": "not a regular"}.items():
        with pytest.raises(ValueError, match=words):
            read_secret(str(tmp_path / name))


def replaced_as_kubernetes_does(folder: Path, version: int, **files: str) -> None:
    """A new folder with all files, to which the link ..data leads from one moment to the next."""
    (folder / f"..{version}").mkdir()
    for name, text in files.items():
        (folder / f"..{version}" / name).write_text(text)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    (folder / "..next").symlink_to(f"..{version}")
    (folder / "..next").rename(folder / "..data")


class TestSettings:
    def test_every_secret_may_be_in_a_file(self) -> None:
        hidden = {name for name, field in Settings.model_fields.items() if not field.repr}
        assert hidden == set(SECRETS)

    def test_the_file_has_the_value(self, tmp_path: Path) -> None:
        replaced_as_kubernetes_does(tmp_path, 1, url=POSTGRESQL.format("one") + "\n")
        settings = read_settings({"BLOCKLIST_DATABASE_URL_FILE": str(tmp_path / "url"), "BLOCKLIST_DATABASE_URL": ""})
        assert settings.database_url == POSTGRESQL.format("one")

    def test_an_empty_name_is_no_file(self) -> None:
        assert read_settings({"BLOCKLIST_NOTIFY_URL_FILE": ""}).notify_url == ""

    @pytest.mark.parametrize("name", SECRETS)
    def test_both_are_refused(self, tmp_path: Path, name: str) -> None:
        setting = f"BLOCKLIST_{name.upper()}"
        with pytest.raises(SettingsError, match=f"{setting}_FILE: {setting} is set, too: set one of the two"):
            read_settings({setting: "x", f"{setting}_FILE": str(tmp_path / "x")})

    @pytest.mark.parametrize("name", SECRETS)
    def test_a_missing_file_is_named(self, tmp_path: Path, name: str) -> None:
        setting = f"BLOCKLIST_{name.upper()}_FILE"
        with pytest.raises(SettingsError, match=f"^{setting}: {tmp_path}/x cannot be read: No such file"):
            read_settings({setting: str(tmp_path / "x")})

    def test_a_value_that_is_refused_is_named_by_its_file_and_not_shown(self, tmp_path: Path) -> None:
        file = tmp_path / "url"
        file.write_text("postgresql://u:s3cr@t@h/b")
        with pytest.raises(SettingsError, match=f"^BLOCKLIST_DATABASE_URL_FILE: {file}: give postgresql") as error:
            read_settings({"BLOCKLIST_DATABASE_URL_FILE": str(file)})
        assert "s3cr" not in str(error.value)


class TestRenewal:
    @pytest.fixture
    def file(self, tmp_path: Path) -> SecretFile:
        replaced_as_kubernetes_does(tmp_path, 1, url=POSTGRESQL.format("one"))
        first = POSTGRESQL.format("one")
        return SecretFile("BLOCKLIST_DATABASE_URL_FILE", str(tmp_path / "url"), first, partial(check_renewed, first))

    def test_a_replaced_file_is_read(self, tmp_path: Path, file: SecretFile) -> None:
        assert file.read() == POSTGRESQL.format("one")
        replaced_as_kubernetes_does(tmp_path, 2, url=POSTGRESQL.format("two") + "\n")
        assert file.read() == POSTGRESQL.format("two")

    def test_another_user_is_read_as_well(self, tmp_path: Path, file: SecretFile) -> None:
        replaced_as_kubernetes_does(tmp_path, 2, url=POSTGRESQL.format("two").replace("u:", "v-1234:"))
        assert "v-1234" in file.read()

    @pytest.mark.parametrize(
        "text",
        ["", "\n", "no URL", POSTGRESQL.format("two").replace("db.", "other."), POSTGRESQL.format("two") + "2",
         "sqlite:///x.db", POSTGRESQL.format("two") + "?sslmode=disable"],
    )  # fmt: skip
    def test_a_file_that_cannot_be_used_leaves_what_was_read_before(
        self, tmp_path: Path, file: SecretFile, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2):
            (tmp_path / "url").write_text(text)
            assert file.read() == POSTGRESQL.format("one")
        assert caplog.text.count("a secret cannot be renewed") == 1
        assert "two" not in caplog.text
        (tmp_path / "url").unlink()
        assert file.read() == POSTGRESQL.format("one")
        (tmp_path / "url").write_text(POSTGRESQL.format("three"))
        assert file.read() == POSTGRESQL.format("three")


@pytest.mark.anyio
async def test_each_change_of_a_file_is_noticed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_files, "CHECK_SECONDS", 0.01)
    replaced_as_kubernetes_does(tmp_path, 1, cert="c1", key="k1")
    noticed: list[str] = []

    async def on_change() -> None:
        noticed.append(await asyncio.to_thread((tmp_path / "cert").read_text))
        raise OSError

    watcher = FileWatcher()
    watcher.watch([str(tmp_path / "cert"), str(tmp_path / "key")], on_change)
    task = asyncio.create_task(watcher.run())
    await asyncio.sleep(0.1)
    assert noticed == []
    replaced_as_kubernetes_does(tmp_path, 2, cert="c2", key="k1")
    await until(lambda: noticed == ["c2"])
    replaced_as_kubernetes_does(tmp_path, 3, cert="c2", key="k3")
    await until(lambda: noticed == ["c2", "c2"])
    await asyncio.sleep(0.1)
    assert len(noticed) == 2
    task.cancel()


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)

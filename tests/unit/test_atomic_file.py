"""A file is replaced as a whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from blocklist.managers.exec import FileContent, read_file, replace_file
from blocklist.managers.plan import ManagerError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "state"
    file.write_bytes(b"old")
    return file


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_mode_and_symbolic_link_are_kept(file: Path, tmp_path: Path) -> None:
    file.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(file.name)
    replace_file(link, b"new", read_file(link))
    assert link.is_symlink()
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new", 0o640)
    assert names(tmp_path) == {"state", "link"}


def test_a_file_that_does_not_exist_is_empty_and_is_created(tmp_path: Path) -> None:
    file = tmp_path / "state"
    assert read_file(file) == FileContent()
    replace_file(file, b"new", FileContent())
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new", 0o644)


@pytest.mark.parametrize("content", [b"longer than before", None])
def test_a_file_that_was_changed_meanwhile_stays_and_nothing_else_is_left(file: Path, content: bytes | None) -> None:
    before = read_file(file)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(ManagerError, match="was changed by another process"):
        replace_file(file, b"new", before)
    assert names(file.parent) == (set() if content is None else {"state"})
    assert content is None or file.read_bytes() == content


def test_a_folder_in_which_nothing_can_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ManagerError, match=r"cannot be written: No such file or directory\."):
        replace_file(tmp_path / "none" / "state", b"new", FileContent())

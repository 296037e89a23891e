"""Read a file and replace it atomically: other processes see the old content or the new one, never a part."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from blocklist.managers.plan import ManagerError


@dataclass(frozen=True, kw_only=True, slots=True)
class FileContent:
    """The bytes of a file, and its version: inode, size and modification time. No bytes and None without a file."""

    data: bytes = b""
    version: tuple[int, int, int] | None = None


def read(path: Path) -> FileContent:
    """The content of the file, empty if there is none. Raises ManagerError if it cannot be read."""
    try:
        with path.open("rb") as file:
            version = _version(os.fstat(file.fileno()))
            return FileContent(data=file.read(), version=version)
    except FileNotFoundError:
        return FileContent()
    except OSError as error:
        raise ManagerError(f"{path} cannot be read: {error.strerror}.") from error


def replace(path: Path, data: bytes, expected: FileContent) -> None:
    """Replace the content that `read` returned by `data`, durably; mode, owner and a symbolic link are kept.

    Raises ManagerError, and leaves the file unchanged, if its version is not the expected one or it cannot be written.
    """
    # The name is always the same: the next write replaces what a crash left behind.
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.blocklist")
    try:
        _write(temporary, data, target)
        if _current_version(target) != expected.version:
            raise ManagerError(f"{path} was changed by another process while it was being replaced.")
        temporary.replace(target)
        _fsync_folder(target.parent)
    except OSError as error:
        raise ManagerError(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _write(temporary: Path, data: bytes, target: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
        descriptor = file.fileno()
        _copy_owner_and_mode(target, descriptor)
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _copy_owner_and_mode(target: Path, descriptor: int) -> None:
    try:
        stat = target.stat()
    except FileNotFoundError:
        os.fchmod(descriptor, 0o644)
        return
    current = os.fstat(descriptor)
    if (current.st_uid, current.st_gid) != (stat.st_uid, stat.st_gid):
        os.fchown(descriptor, stat.st_uid, stat.st_gid)
    os.fchmod(descriptor, stat.st_mode & 0o7777)


def _current_version(path: Path) -> tuple[int, int, int] | None:
    try:
        return _version(path.stat())
    except FileNotFoundError:
        return None


def _version(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

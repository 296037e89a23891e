"""A file that others read, replaced so that they see the old one or the new one, never half of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from blocklist.managers.plan import ManagerError


@dataclass(frozen=True, kw_only=True, slots=True)
class FileContent:
    """What a file held, and which version of it that was; None and no bytes where there is no file."""

    data: bytes = b""
    version: tuple[int, int, int] | None = None


def read(path: Path) -> FileContent:
    """Raises ManagerError if there is a file that cannot be read."""
    try:
        with path.open("rb") as file:
            version = _version(os.fstat(file.fileno()))
            return FileContent(data=file.read(), version=version)
    except FileNotFoundError:
        return FileContent()
    except OSError as error:
        raise ManagerError(f"{path} cannot be read: {error.strerror}.") from error


def replace(path: Path, data: bytes, expected: FileContent) -> None:
    """Replace what `read` found by `data`, on the disk when this returns; mode, owner and a symbolic link are kept.

    Raises ManagerError, and leaves the file as it is, if somebody else changed it since, or if it cannot be written.
    """
    # Always the same name: what a crash leaves behind, the next write takes over.
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.blocklist")
    try:
        _write(temporary, data, target)
        if _current_version(target) != expected.version:
            raise ManagerError(f"{path} was changed by somebody else at the same moment.")
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
        try:
            target_stat = target.stat()
        except FileNotFoundError:
            os.fchmod(descriptor, 0o644)
        else:
            own_stat = os.fstat(descriptor)
            if (own_stat.st_uid, own_stat.st_gid) != (target_stat.st_uid, target_stat.st_gid):
                os.fchown(descriptor, target_stat.st_uid, target_stat.st_gid)
            os.fchmod(descriptor, target_stat.st_mode & 0o7777)
        file.write(data)
        file.flush()
        os.fsync(descriptor)


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

"""A file that others read, replaced so that they see the old one or the new one, never half of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from blocklist.managers.plan import ManagerError


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """What a file held, and which version of it that was; None and no bytes where there is no file."""

    data: bytes = b""
    version: tuple[int, int, int] | None = None


def read(path: Path) -> Content:
    """Raises ManagerError if there is a file that cannot be read."""
    try:
        with path.open("rb") as file:
            version = _version(os.fstat(file.fileno()))
            return Content(data=file.read(), version=version)
    except FileNotFoundError:
        return Content()
    except OSError as error:
        raise ManagerError(f"{path} cannot be read: {error.strerror}.") from error


def replace(path: Path, data: bytes, before: Content) -> None:
    """Replace what `read` found by `data`, on the disk when this returns; mode, owner and a symbolic link are kept.

    Raises ManagerError, and leaves the file as it is, if somebody else changed it since, or if it cannot be written.
    """
    # Always the same name: what a crash leaves behind, the next write takes over.
    real = Path(os.path.realpath(path))
    new = real.with_name(f".{real.name}.blocklist")
    try:
        _write(new, data, real)
        if _present(real) != before.version:
            raise ManagerError(f"{path} was changed by somebody else at the same moment.")
        new.replace(real)
        _sync(real.parent)
    except OSError as error:
        raise ManagerError(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        new.unlink(missing_ok=True)


def _write(new: Path, data: bytes, like: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
        number = file.fileno()
        try:
            model = like.stat()
        except FileNotFoundError:
            os.fchmod(number, 0o644)
        else:
            own = os.fstat(number)
            if (own.st_uid, own.st_gid) != (model.st_uid, model.st_gid):
                os.fchown(number, model.st_uid, model.st_gid)
            os.fchmod(number, model.st_mode & 0o7777)
        file.write(data)
        file.flush()
        os.fsync(number)


def _present(path: Path) -> tuple[int, int, int] | None:
    try:
        return _version(path.stat())
    except FileNotFoundError:
        return None


def _version(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

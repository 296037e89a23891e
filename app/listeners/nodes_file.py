"""NodesFile: BLOCKLIST_NODES_FILE, read again when it changes."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from app.listeners.inventory_updater import InventoryUpdater
from blocklist.model.errors import InvalidError
from blocklist.model.nodes_file import parse_nodes_file
from blocklist.model.reported_node import FILE_SOURCE, ReportedNode

log = structlog.get_logger(__name__)

CHECK_SECONDS: Final = 2.0
"""Interval at which the file is checked."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of the file."""


class _Version(NamedTuple):
    """What changes with the content of a file, even if a copy keeps the time of modification."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class NodesFile:
    """The nodes of the file, as a source of the inventory. Belongs to the event loop; the file is read in a thread.

    `fault` is why the file could not be used, None if it is in force: until it is repaired, what was read before stays
    in force. A file that changes is read once it has stayed the same for CHECK_SECONDS: until then it may be half
    written. Without a path there is no file.
    """

    def __init__(self, path: str, updater: InventoryUpdater, on_fault: Callable[[int], object]) -> None:
        self.fault: str | None = None
        self._path = Path(path) if path else None
        self._updater = updater
        self._on_fault = on_fault
        self._checked = False
        self._seen: _Version | None = None
        self._last_read: _Version | None = None

    @property
    def is_configured(self) -> bool:
        return self._path is not None

    async def run(self) -> None:
        """Check every CHECK_SECONDS; never returns."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        """Read the file if it has changed since it was last read; the first time at once."""
        if self._path is None:
            return
        first, self._checked = not self._checked, True
        try:
            version = await asyncio.to_thread(_version_of, self._path)
            settled, self._seen = first or version == self._seen, version
            if version == self._last_read or not settled:
                return
            nodes = await asyncio.to_thread(_read, self._path, version)
        except OSError as error:
            # Tried again each time; a file with faults only when it changes.
            self._last_read = None
            self._fail([error.strerror or str(error)])
        except InvalidError as error:
            self._last_read = version
            self._fail(error.lines)
        else:
            if nodes is not None:
                self._last_read = version
                self._apply(nodes)

    def _apply(self, nodes: list[ReportedNode]) -> None:
        self._updater.set_nodes(FILE_SOURCE, nodes)
        self.fault = None
        self._on_fault(0)
        log.info("file of nodes read", file=str(self._path), nodes=len(nodes))

    def _fail(self, lines: Sequence[str]) -> None:
        fault = f"{self._path}: {lines[0]}"
        if fault != self.fault:
            log.error(
                "cannot use the file of nodes; what was read before stays in force", file=str(self._path), faults=lines
            )
        self.fault = fault
        self._on_fault(1)


def _version_of(file: Path | int) -> _Version:
    """The version of a path or an open file. Raises OSError, also for what is no file: reading it might never end."""
    status = os.fstat(file) if isinstance(file, int) else file.stat()
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "It is not a regular file")
    return _Version(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file that may have become a pipe: that would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read(path: Path, version: _Version) -> list[ReportedNode] | None:
    """The nodes in this version of the file; None if it has changed meanwhile. Raises OSError, InvalidError."""
    with open(path, "rb", opener=_open_at_once) as file:
        data = file.read(MAX_BYTES + 1) if _version_of(file.fileno()) == version else b""
        if _version_of(file.fileno()) != version:
            return None
    if len(data) > MAX_BYTES:
        raise InvalidError(f"the file is larger than {MAX_BYTES >> 20} MiB.")
    try:
        return parse_nodes_file(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidError(f"line {line}: the text is not UTF-8.") from None

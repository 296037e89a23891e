"""Secrets in files, which are renewed while the service runs: by Vault, cert-manager, or Kubernetes itself.

A path may lead through symbolic links that are replaced, as Kubernetes does: files are opened again each time.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from app.logs import isolated

log = structlog.get_logger(__name__)

CHECK_SECONDS: Final = 5.0
"""Interval at which files are compared with what was read before."""
MAX_BYTES: Final = 64 * 1024
"""Of a file with a secret."""

OnChange = Callable[[], Awaitable[object]]


def read_secret(path: str) -> str:
    """The one line of a file, without the line break at its end. Raises ValueError with a sentence for the operator."""
    content = _read(path)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES // 1024} KiB: name the file with the secret alone.")
    try:
        text = content.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text.") from None
    if not text.strip():
        raise ValueError(f"{path} is empty.")
    if not text.isprintable():
        raise ValueError(f"{path} has several lines, or characters that cannot be printed: one line is expected.")
    return text


def _read(path: str) -> bytes:
    try:
        # A pipe would wait for a writer, and could not be read again.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError(f"{path} is not a regular file.")
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None


class SecretFile:
    """The value of a setting that is in a file. Where the file cannot be used, the last value stays in force.

    `check` raises ValueError, without the secret in its text, for a value that cannot be used.
    """

    def __init__(self, setting: str, path: str, value: str, check: Callable[[str], object]) -> None:
        self.path = path
        self._setting = setting
        self._value = value
        self._check = check
        self._fault: str | None = None

    def read(self) -> str:
        """The value that the file has now."""
        fault = None
        try:
            text = read_secret(self.path)
            if text != self._value:
                self._check(text)
                log.info("secret renewed", setting=self._setting, file=self.path)
            self._value = text
        except ValueError as error:
            fault = str(error)
        if fault and fault != self._fault:
            log.error("a secret cannot be renewed; the one before stays in force", setting=self._setting, why=fault)
        self._fault = fault
        return self._value


class FileWatcher:
    """Calls a function each time the content of files has changed. Belongs to the event loop; reads in a thread."""

    def __init__(self) -> None:
        self._watches: list[tuple[Sequence[str], OnChange]] = []
        self._digests: list[list[bytes]] = []

    def watch(self, paths: Sequence[str], on_change: OnChange) -> None:
        """Call `on_change` after each change of one of these files from now on. It logs what is wrong with them."""
        self._watches.append((paths, on_change))
        self._digests.append(_digests_of(paths))

    async def run(self) -> None:
        """Check every CHECK_SECONDS; never returns."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for number, (paths, on_change) in enumerate(self._watches):
                before, self._digests[number] = self._digests[number], await asyncio.to_thread(_digests_of, paths)
                if self._digests[number] != before:
                    with isolated("renewal of a secret"):
                        await on_change()


def _digests_of(paths: Sequence[str]) -> list[bytes]:
    return [_digest_of(path) for path in paths]


def _digest_of(path: str) -> bytes:
    """Of the content of a file, or of the reason why it cannot be read."""
    try:
        content = _read(path)
    except ValueError as error:
        content = str(error).encode()
    return hashlib.sha256(content).digest()

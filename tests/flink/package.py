"""Flink from its Python package: its jars, in a folder of the user's cache that tests and benchmarks share.

The package is a download of 330 MB. With `CI` in the environment its absence is an error, elsewhere a reason to skip.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

PACKAGE: Final = "apache-flink-libraries"
FLINK_2: Final = "2.3.0"
FLINK_1: Final = "1.20.5"


class PackageMissingError(Exception):
    """The package is not in the cache and cannot be downloaded."""


def flink_lib(version: str = FLINK_2) -> Path:
    """The folder with the jars of this version; downloads and unpacks them the first time.

    Raises PackageMissingError with one line.
    """
    cache = _cache()
    lib = cache / version / "lib"
    with _locked(cache / "lock"):
        if not lib.is_dir():
            _unpack(_downloaded(cache, version), lib)
    return lib


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "blocklist" / "flink"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _downloaded(cache: Path, version: str) -> Path:
    """The archive: a wheel, or, for versions before 2, a source distribution that contains the jars."""
    if found := _archive(cache, version):
        return found
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, "--dest", str(cache), f"{PACKAGE}=={version}"],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if (found := _archive(cache, version)) is None:
        raise PackageMissingError(f"The package {PACKAGE} {version} could not be downloaded: {_reason(done.stderr)}")
    return found


def _reason(output: str) -> str:
    """The last line with which pip names an error; hints follow it."""
    lines = [line.strip() for line in output.splitlines()] or ["no reason given"]
    return next((line for line in reversed(lines) if line.lower().startswith("error")), lines[-1])[:200]


def _archive(cache: Path, version: str) -> Path | None:
    return next(iter(sorted(cache.glob(f"apache_flink_libraries-{version}[-.]*"))), None)


def _unpack(archive: Path, lib: Path) -> None:
    """Write all jars of its folder lib into `lib`, or nothing."""
    lib.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=lib.parent))
    for name, data in _jars(archive):
        with (folder / name).open("wb") as file:
            shutil.copyfileobj(data, file)
    folder.chmod(0o755)
    folder.rename(lib)


def _jars(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if name.startswith("pyflink/lib/") and name.endswith(".jar"):
                    yield Path(name).name, wheel.open(name)
        return
    with tarfile.open(archive) as source:
        for member in source:
            data = source.extractfile(member) if "/lib/" in member.name and member.name.endswith(".jar") else None
            if data is not None:
                yield Path(member.name).name, data


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; workers of pytest start together."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

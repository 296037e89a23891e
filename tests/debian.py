"""Programs that tests and benchmarks run for real, from Debian's packages: installed where that is allowed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class MissingError(Exception):
    """A program is missing and cannot be installed or built from here; the sentence says which one, and what to do."""


def require(packages: Mapping[str, str]) -> dict[str, str]:
    """The path of each program (`packages` is program to package); what is missing is installed, as root on Debian.

    Raises MissingError where that cannot be done.
    """
    if _missing(packages):
        with _locked():
            # Another worker may have installed it meanwhile.
            if missing := _missing(packages):
                _install(missing)
    return {program: find(program) or program for program in packages}


def _missing(packages: Mapping[str, str]) -> list[str]:
    return sorted({package for program, package in packages.items() if find(program) is None})


@contextmanager
def _locked() -> Iterator[None]:
    """One worker at a time: `apt-get update` fails if another one runs, whatever its options say."""
    with (Path(tempfile.gettempdir()) / "blocklist-tests-apt.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find(program: str) -> str | None:
    """Its path, also of one for administrators; None if it is not there."""
    return shutil.which(program, path=_PATH)


def _install(packages: list[str]) -> None:
    # Somebody else may be installing, too.
    apt = ["apt-get", "--quiet", "--option", "DPkg::Lock::Timeout=300"]
    install = [*apt, "install", "--yes", "--no-install-recommends", *packages]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise MissingError(f"missing: {' '.join(packages)}. As root on Debian: apt-get install {' '.join(packages)}")
    print(f"installing {' '.join(packages)}", flush=True)  # noqa: T201
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in ([*apt, "update"], install):
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise MissingError(f"{' '.join(command)} failed: {done.stderr.strip()}")

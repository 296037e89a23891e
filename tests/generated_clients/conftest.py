"""The generators of clients, installed from their lock files into folders of their own below build/."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.debian import require
from tests.integration.conftest import databases, migrated, secured
from tests.integration.process import ROOT

__all__ = ["databases", "migrated", "secured"]

_REQUIREMENTS: Final = ROOT / "requirements"


@pytest.fixture(scope="session")
def generator_python() -> Path:
    """The Python of an environment with openapi-python-client; the tests' own one has a newer typer than it allows."""
    lock = _REQUIREMENTS / "generators.txt"

    def install(folder: Path) -> None:
        run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
        run([*pip, "install", "--quiet", "--require-hashes", "--requirement", str(lock)])

    return _installed("python", [lock], install) / "bin" / "python"


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The folder with openapi-typescript, openapi-fetch and the TypeScript compiler."""
    npm = require({"node": "nodejs", "npm": "npm"})["npm"]
    files = [_REQUIREMENTS / "npm" / name for name in ("package.json", "package-lock.json", ".npmrc")]

    def install(folder: Path) -> None:
        folder.mkdir()
        for file in files:
            shutil.copy(file, folder)
        run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder)

    return _installed("npm", files, install) / "node_modules"


def _installed(kind: str, locks: list[Path], install: Callable[[Path], None]) -> Path:
    """The folder of what these files lock: installed by the first run, and again after they have changed."""
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:12]
    folder = ROOT / "build" / "generators" / f"{kind}-{digest}"
    complete = folder / "complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        install(folder)
        complete.touch()
    return folder


def run(command: list[str], *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """What the command prints; the test fails, and shows that, if the command does."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout

"""What `make release` builds, once for all tests: from a clone of this commit that only its user can read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from blocklist import __version__
from blocklist.spark.jar import jar_path
from tests.integration.process import ROOT

WHEEL: Final = f"blocklist-{__version__}-py3-none-any.whl"
SECONDS: Final = 300


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without anything of this checkout in its environment."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("BLOCKLIST_", "PYTHON"))}
    return subprocess.run(
        command, cwd=cwd, env=own | environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def succeed(*command: str | Path, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="package")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of the last commit with a jar, as `make jar` leaves it, under umask 077."""
    folder = tmp_path_factory.mktemp("release") / "clone"
    succeed("sh", "-c", 'umask 077; git clone --quiet "$@"', "sh", f"file://{ROOT}", folder, cwd=ROOT)
    jar = jar_path()
    shutil.copyfile(jar, folder / jar.relative_to(ROOT))
    return folder


@pytest.fixture(scope="package")
def dist(clone: Path) -> Path:
    succeed(sys.executable, "-m", "release", cwd=clone)
    return clone / "dist"


@pytest.fixture(scope="package")
def venv(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_service(tmp_path_factory.mktemp("venv"), dist / WHEEL, ROOT / "requirements" / "service.txt")


def install_service(folder: Path, wheel: Path, lock: Path) -> Path:
    """An environment with the wheel and what its service needs, in the versions of the lock file."""
    uv = (sys.executable, "-m", "uv")
    succeed(*uv, "venv", "--quiet", "--allow-existing", folder, cwd=ROOT)
    versions = re.findall(r"^([\w.\[\]-]+==\S+)", lock.read_text(), re.MULTILINE)
    (folder / "versions.txt").write_text("\n".join(versions))
    install = (*uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python")
    succeed(*install, "-c", folder / "versions.txt", f"{wheel}[service]", cwd=folder)
    return folder

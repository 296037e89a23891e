"""`make release`: what a user installs, in dist/, from a clean checkout. The same commit gives the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

import yaml  # type: ignore[import-untyped]

from blocklist import __version__
from release import image
from tests.debian import MissingError

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist"
CHART: Final = ROOT / "deploy" / "helm"
JAR: Final = ROOT / "blocklist" / "spark" / "blocklist-spark.jar"
_SBOM_ENVIRONMENT: Final = ROOT / "build" / "release"


class ReleaseError(Exception):
    """The release cannot be built; the message says what to do."""


def main() -> int:
    """Build everything; exit code 1, with a sentence on stderr, if that is impossible."""
    try:
        check_clean()
        check_versions()
        os.environ["SOURCE_DATE_EPOCH"] = _output("git", "log", "-1", "--format=%ct")
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        build_packages()
        shutil.copyfile(JAR, DIST / f"blocklist-spark-{__version__}.jar")
        (DIST / f"blocklist-{__version__}.tgz").write_bytes(chart(int(os.environ["SOURCE_DATE_EPOCH"])))
        build_sbom()
        if "--without-image" not in sys.argv[1:]:
            build_image()
        (DIST / "SHA256SUMS").write_text(checksums(), encoding="utf-8")
    except ReleaseError as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    print(*sorted(path.name for path in DIST.iterdir()), sep="\n")
    return 0


def check_clean() -> None:
    """Raises ReleaseError if the checkout differs from its commit."""
    if changes := _output("git", "status", "--porcelain"):
        raise ReleaseError(f"commit or remove these changes first:\n{changes}")


def check_versions() -> None:
    """Raises ReleaseError unless everything that has a version has that of the package."""
    chart_file = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    label = re.search(r'image\.version="(.+)"', (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    changes = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    found = {
        "version in deploy/helm/Chart.yaml": chart_file["version"],
        "appVersion in deploy/helm/Chart.yaml": chart_file["appVersion"],
        "info.version in openapi/blocklist.json": _api_document()["info"]["version"],
        "image.version in the Dockerfile": label and label[1],
        "the first section of CHANGELOG.md": changes and changes[1],
    }
    if wrong := [f"{where} is {version}" for where, version in found.items() if version != __version__]:
        raise ReleaseError(f"the version is {__version__} in blocklist/__init__.py, but {'; '.join(wrong)}")


def _api_document() -> dict[str, dict[str, str]]:
    document: dict[str, dict[str, str]] = json.loads((ROOT / "openapi" / "blocklist.json").read_text(encoding="utf-8"))
    return document


def build_packages() -> None:
    """The sdist and the wheel, which contains the service, and the jar. Raises ReleaseError."""
    _run(sys.executable, "-m", "hatchling", "build", "-d", str(DIST))
    if not JAR.exists():
        raise ReleaseError(f"there is no {JAR.name}: run `make jar`, which says what is missing")


def chart(epoch: int) -> bytes:
    """The chart, as `helm package` would make it, but with the time `epoch` (Unix seconds) for all files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(CHART.rglob("*")):
            if path.is_file():
                data = path.read_bytes()
                entry = tarfile.TarInfo(f"blocklist/{path.relative_to(CHART).as_posix()}")
                entry.size, entry.mtime = len(data), epoch
                archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=epoch)


def build_sbom() -> None:
    """A CycloneDX bill of materials of what the service's image installs."""
    python = _SBOM_ENVIRONMENT / "bin" / "python"
    uv = (sys.executable, "-m", "uv")
    _run(*uv, "venv", "--quiet", "--allow-existing", str(_SBOM_ENVIRONMENT))
    lock = ("--require-hashes", "-r", "requirements/release.txt")
    _run(*uv, "pip", "install", "--quiet", "--python", str(python), *lock)
    target = DIST / f"blocklist-{__version__}.cdx.json"
    options = ("--pyproject", "pyproject.toml", "--mc-type", "application", "--output-reproducible")
    program = str(python.with_name("cyclonedx-py"))
    _run(program, "requirements", *options, "--of", "JSON", "-o", str(target), "requirements/service.txt")
    document = json.loads(target.read_text(encoding="utf-8"))
    # pyproject.toml takes the version from the package, which the program does not read.
    document["metadata"]["component"]["version"] = __version__
    target.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def build_image() -> None:
    """Raises ReleaseError."""
    try:
        podman = image.Podman()
        image.save(podman, image.build(podman), DIST / f"blocklist-{__version__}-image.tar")
    except (image.PodmanError, MissingError) as error:
        raise ReleaseError(f"{error}\n`make release ARGS=--without-image` builds all but the image") from None


def checksums() -> str:
    """SHA256SUMS of what is in dist/, as `sha256sum --check` reads it."""
    files = sorted(path for path in DIST.iterdir() if path.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(command[:4])} … failed:\n{(done.stdout + done.stderr)[-4000:]}")


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

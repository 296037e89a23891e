"""The image of the service, built with Debian's podman from Debian's packages, without any registry.

The base image and the layers are kept in the user's cache folder, for all checkouts. `python -m release.image` builds
the image and says its name; `--target spark` is the one that docker-compose.yml uses for Spark.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from blocklist import __version__
from tests import debian

ROOT: Final = Path(__file__).resolve().parents[1]
JAR: Final = ROOT / "blocklist" / "spark" / "blocklist-spark.jar"
_BASE: Final = "docker.io/library/python:3.13-slim"
"""What the Dockerfile builds on. Debian 13 has this Python, so its packages take the place of the official image."""
_PACKAGES: Final = "ca-certificates,python3-pip,python3-venv"
_BASE_DAYS: Final = 7
"""Then the base is made anew, with Debian's updates."""
_EPOCH: Final = "315532800"
"""1980, the time of all files: the same contents give the same bytes, and layers are found again in the cache."""
_CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
_PROGRAMS: Final = {
    "podman": "podman",
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "iptables": "iptables",
    "/usr/lib/podman/netavark": "netavark",
    "/usr/lib/podman/aardvark-dns": "aardvark-dns",
}
_MOST: Final = 4096
"""Open files and processes in a container: more than the machine has are refused, and podman asks for a million."""
_CONF: Final = """
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{state}/libpod"
[network]
network_backend = "netavark"
"""


class PodmanError(Exception):
    """A command of podman failed; with its output."""


class Podman:
    """Podman with images and containers of its own, which needs neither systemd nor crun.

    Raises MissingError if it is not there and cannot be installed.
    """

    def __init__(self) -> None:
        debian.require(_PROGRAMS)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = cache / "blocklist" / "images"
        self.folder.mkdir(parents=True, exist_ok=True)
        # Not in the cache: podman removes it to learn that the machine was started again.
        runtime = Path("/run") if os.geteuid() == 0 else Path(tempfile.gettempdir())
        state = runtime / f"blocklist-images-{hashlib.sha256(bytes(self.folder)).hexdigest()[:8]}"
        state.mkdir(mode=0o700, exist_ok=True)
        conf = self.folder / "containers.conf"
        files, processes = _limit(resource.RLIMIT_NOFILE), _limit(resource.RLIMIT_NPROC)
        text = _CONF.format(files=files, processes=processes, state=state)
        if not conf.exists() or conf.read_text(encoding="utf-8") != text:
            conf.write_text(text, encoding="utf-8")
        self.environment = {**os.environ, "CONTAINERS_CONF": str(conf)}
        self.command = ("podman", "--root", str(self.folder / "store"), "--runroot", str(state / "run"))

    def run(self, *arguments: str | Path) -> str:
        """What it prints on stdout. Raises PodmanError."""
        done = self.call(*arguments)
        if done.returncode != 0:
            raise PodmanError(f"podman {' '.join(map(str, arguments))}\n{(done.stdout + done.stderr)[-4000:]}")
        return done.stdout.strip()

    def call(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = (*self.command, *arguments)
        return subprocess.run(command, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False)

    def build(self, tag: str, *options: str | Path) -> str:
        """The name of the image, which lasts until another one is built with this tag. Raises PodmanError."""
        # The OCI format has no health check.
        self.run("build", "--pull=never", "--format=docker", f"--timestamp={_EPOCH}", f"--tag={tag}", *options)
        return tag

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time makes the base image."""
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _limit(kind: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)


def build(podman: Podman, target: str = "") -> str:
    """The name of the image of a stage of the Dockerfile; without one, of the service. With the jar of `make jar`.

    Raises PodmanError.
    """
    if not JAR.exists():
        raise PodmanError(f"there is no {JAR.name}: run `make jar`, which says what is missing")
    _require_base(podman)
    options: list[str | Path] = ["--network=host", "--build-arg=JAR=given", *([f"--target={target}"] if target else [])]
    if Path(_CERTIFICATES).exists():
        # For a machine that reaches the package index through a proxy with an authority of its own.
        options.append(f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro")
    tag = f"localhost/blocklist{target and f'-{target}'}:{__version__}"
    name = podman.build(tag, *options, ROOT)
    # Of images that lost their tag, those that no other is built on.
    podman.call("image", "prune", "--force")
    return name


def _require_base(podman: Podman) -> None:
    with podman.locked():
        stamp = podman.folder / "base.stamp"
        fresh = stamp.exists() and time.time() - stamp.stat().st_mtime < _BASE_DAYS * 86400
        if fresh and podman.call("image", "exists", _BASE).returncode == 0:
            return
        with tempfile.TemporaryDirectory() as folder:
            _make_base(podman, Path(folder))
        stamp.touch()


def _make_base(podman: Podman, folder: Path) -> None:
    hooks = [
        'ln -s python3 "$1/usr/bin/python"',
        'rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',
        'rm -rf "$1"/var/log/* "$1"/var/cache/*',
    ]
    system, mirror = Path("/etc/os-release").read_text(encoding="utf-8"), "http://deb.debian.org/debian"
    if "\nID=debian\n" in f"\n{system}":
        sources = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
        mirror = subprocess.run(sources, capture_output=True, text=True, check=True).stdout.split()[0]
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}"]
    command += [f"--customize-hook={hook}" for hook in hooks]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _EPOCH}
    archive = folder / "base.tar"
    done = subprocess.run(
        [*command, "trixie", str(archive), mirror], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise PodmanError(f"mmdebstrap failed:\n{done.stderr[-4000:]}")
    path = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    text = f'FROM scratch\nADD base.tar /\nENV PATH={path}\nCMD ["python3"]\n'
    (folder / "Dockerfile").write_text(text, encoding="utf-8")
    podman.build(_BASE, folder)


def save(podman: Podman, name: str, target: Path) -> None:
    """A file for `docker load` and `podman load`, and for `ctr images import`. Raises PodmanError."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "image.tar"
        podman.run("save", "--format=docker-archive", "--output", archive, name)
        # Not compressed: podman 4.3 would not read it.
        with tarfile.open(archive) as source, tarfile.open(target, "w") as saved:
            _copy(source, saved)


def _copy(source: tarfile.TarFile, target: tarfile.TarFile) -> None:
    """The layers, and a configuration without what differs between two builds of the same: ids of the build's steps."""
    (manifest,) = json.loads(_read(source, "manifest.json"))
    config = json.loads(_read(source, manifest["Config"]))
    for name in ("container", "parent"):
        config.pop(name, None)
    for part in (config, config.get("config", {}), config.get("container_config", {}), *config["history"]):
        for name in ("Hostname", "Image", "comment"):
            part.pop(name, None)
    text = json.dumps(config).encode()
    manifest["Config"] = f"{hashlib.sha256(text).hexdigest()}.json"
    for layer in manifest["Layers"]:
        target.addfile(source.getmember(layer), source.extractfile(layer))
    for name, data in ((manifest["Config"], text), ("manifest.json", json.dumps([manifest]).encode())):
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        target.addfile(entry, io.BytesIO(data))


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def main() -> int:
    """Build an image, or say what is missing, with exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m release.image", description=__doc__)
    parser.add_argument("--target", choices=["spark"], default="", help="a stage of the Dockerfile")
    options = parser.parse_args()
    try:
        podman = Podman()
        name = build(podman, options.target)
        print(f"{name} is in {podman.command[2]}")
        if not options.target:
            target = ROOT / "dist" / f"blocklist-{__version__}-image.tar"
            target.parent.mkdir(exist_ok=True)
            save(podman, name, target)
            print(f"{target.relative_to(ROOT)}: `docker load --input` or `podman load --input` takes it")
    except (PodmanError, debian.MissingError) as error:
        print(f"make image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

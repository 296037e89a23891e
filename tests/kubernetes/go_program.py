"""Programs that are built from Go modules, once on a machine.

They are in the user's cache folder, so all checkouts with the same sources share them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.debian import MissingError


@dataclass(frozen=True, kw_only=True, slots=True)
class GoProgram:
    """A program called `name`, of a package of the module in the folder `sources`; `files` there determine it."""

    name: str
    version: str
    sources: Path
    files: Sequence[str]
    package: str = "."
    linker_flags: str = "-s -w"

    def require(self) -> Path:
        """The path of the program, which is built first if it is not there. Raises MissingError without Go.

        An error of the compiler is a RuntimeError with its output.
        """
        program = self._folder() / self.name
        if not program.exists():
            if shutil.which("go") is None:
                raise MissingError(f"Go is not installed (https://go.dev/dl/): {self.name} cannot be built")
            with (program.parent / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # Another worker may be building, too.
                if not program.exists():
                    self._build(program)
        return program

    def _folder(self) -> Path:
        digest = hashlib.sha256(b"".join((self.sources / file).read_bytes() for file in self.files))
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = cache / "blocklist" / f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _build(self, program: Path) -> None:
        unfinished = program.with_suffix(".new")
        # Flags of the linker alone: Go's cache of compiled packages stays valid.
        flags = ["-buildvcs=false", f"-ldflags={self.linker_flags}"]
        run_go("build", *flags, "-o", str(unfinished), self.package, folder=self.sources)
        unfinished.replace(program)


def run_go(*arguments: str, folder: Path) -> str:
    """What `go` prints. An error of it is a RuntimeError with its output."""
    done = subprocess.run(["go", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"go {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout

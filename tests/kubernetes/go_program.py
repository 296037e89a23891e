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
from typing import Final

from tests.debian import MissingError

_COMPILER_FLAGS: Final = "-gcflags=all=-dwarf=false"
"""Nobody debugs these programs."""
_COLLECT_AT: Final = "200"
"""GOGC: the compiler has its memory collected half as often, which costs memory and saves time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GoProgram:
    """A program called `name`, of the module in the folder `sources`; `files` there determine it."""

    name: str
    version: str
    sources: Path
    files: Sequence[str]
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
        # The same flags of the compiler for all programs, so that they share compiled packages.
        flags = ["-buildvcs=false", _COMPILER_FLAGS, f"-ldflags={self.linker_flags}"]
        run_go("build", *flags, "-o", str(unfinished), ".", folder=self.sources)
        unfinished.replace(program)


def run_go(*arguments: str, folder: Path) -> str:
    """What `go` prints. An error of it is a RuntimeError with its output."""
    environment = {"GOGC": _COLLECT_AT} | os.environ
    command = ["go", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"go {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout

"""The installed command, run as users run it: in a process of its own."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.integration.process import environment

TIMEOUT: Final = 60


class Command:
    """`blocklist` on the path, for the service at `url`; `settings` are the other BLOCKLIST_ variables."""

    def __init__(self, binaries: Path, url: str, **settings: str) -> None:
        self.env = environment(url=url, timeout="30s", **settings)
        self.env["PATH"] = f"{binaries}:{self.env['PATH']}"
        self.env.pop("NO_COLOR", None)

    def run(self, *arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Run it until it ends. Fails on a traceback."""
        done = subprocess.run(
            ["blocklist", *arguments],
            input=stdin,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def stdout_of(self, *arguments: str, stdin: str = "", **env: str) -> str:
        """Its stdout. Fails unless the exit code is 0."""
        done = self.run(*arguments, stdin=stdin, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run it in the background, with pipes."""
        # In a background job of a shell SIGINT is ignored, and child processes inherit that.
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": _restore_sigint}
        with subprocess.Popen(["blocklist", *arguments], env=self.env, **pipes) as process:  # type: ignore[call-overload]
            try:
                yield process
            finally:
                process.kill()

    def on_terminal(self, *arguments: str, **env: str) -> str:
        """Its output if stdout is a terminal."""
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            ["blocklist", *arguments], env=self.env | {"TERM": "xterm"} | env, stdin=theirs, stdout=theirs
        ):
            os.close(theirs)
            text = b"".join(_read_all(ours))
        os.close(ours)
        return text.decode().replace("\r\n", "\n")


def _restore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGINT; return the exit code and stderr."""
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=TIMEOUT)
    return process.returncode, stderr


def install(folder: Path) -> Path:
    """Create `folder/bin` with the Python that runs the tests and the command that `make setup` installed beside it."""
    binaries = folder / "bin"
    binaries.mkdir()
    for name, program in {"python": sys.executable, "blocklist": Path(sys.executable).with_name("blocklist")}.items():
        script = binaries / name
        script.write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
        script.chmod(0o755)
    return binaries


def _read_all(terminal: int) -> Iterator[bytes]:
    # On Linux reading fails after the other side was closed.
    with suppress(OSError):
        while data := os.read(terminal, 65536):
            yield data
